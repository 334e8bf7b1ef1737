"""Training from Python: what `async-dqn baseline` runs, as one call."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from async_dqn.agents.table import find, make_config
from async_dqn.envs import registry
from async_dqn.roles.baseline import run_baseline
from async_dqn.run import build, preflight
from async_dqn.run.directory import RunDirectory, default_logdir
from async_dqn.run.progress import Progress


def train(
    *, env: str, agent: str = "dqn", logdir: str | Path | None = None, preset: str = "auto", **settings: Any
) -> Path:
    """Trains an agent in this process, and gives the run's folder, which `load` takes.

    Args:
      env: an Atari game such as pong, or a gymnasium id.
      agent: a name that `async-dqn agents` lists, or package.module:NAME.
      logdir: a new folder; None: runs/ENV-AGENT-TIME.
      preset: settings to start from; auto: by the environment.
      **settings: single settings by their names, as the flags of `async-dqn baseline`.

    Raises:
      UserError: a setting that the agent does not have or does not allow, or a folder that holds a run already.
      RunError: the run could not go on.
      KeyboardInterrupt: Ctrl-C was pressed; all is saved.
    """
    if preset == "auto":
        preset = find(agent).default_preset(registry.resolve(env, settings.get("protocol", "classic")))
    config = make_config(agent, preset, settings | {"env": env, "num_workers": 1, "num_ps": 1})
    run = RunDirectory(logdir or default_logdir(config.env, config.agent))
    run.check(resume=False)
    built = build.make_agent(config)
    preflight.check_replay_memory(config, built.spec, 1)
    run.create()
    with run.claimed(Progress().say), _interruptible() as should_stop:
        code = run_baseline(built, run, resume=False, plain=False, should_stop=should_stop)
    if code == 130:
        raise KeyboardInterrupt
    return run.path


@contextlib.contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, so that the run saves and ends; a second one interrupts at once."""
    should_stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # no other may set signal handlers
        yield should_stop
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: object) -> None:
        del number, frame
        if should_stop.is_set():
            raise KeyboardInterrupt
        should_stop.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield should_stop
    finally:
        signal.signal(signal.SIGINT, before)
