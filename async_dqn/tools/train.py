"""Training from Python: what `async-dqn baseline` runs, as one call."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from async_dqn.agents.table import find, make_config
from async_dqn.base.errors import UserError
from async_dqn.roles.baseline import run_baseline
from async_dqn.run import build, preflight
from async_dqn.run.directory import RunDirectory, default_logdir
from async_dqn.run.progress import Progress
from async_dqn.settings.config import ALONE, refuse_sharing
from async_dqn.system import devices


def train(
    *, env: str, agent: str = "dqn", logdir: str | Path | None = None, preset: str = "auto", **settings: Any
) -> Path:
    """See `async_dqn.train`."""
    if "resume" in settings:
        raise UserError("resume: train begins new runs; async-dqn baseline --logdir=RUN --resume goes on with one")
    refuse_sharing(settings, find(agent).Config.unshared(), "train")
    config = make_config(agent, preset, settings | {"env": env, **ALONE})
    run = RunDirectory(logdir or default_logdir(config.env, config.agent))
    run.check(resume=False)
    devices.hide_gpus(devices.card_of_worker(config.gpus, 0))  # has no effect once TensorFlow has seen them
    built = build.make_agent(config)
    preflight.check_memory(config, built.spec, [0])
    umask = os.umask(0o077)  # a run is for this user's eyes only; what the caller writes later is his own affair
    try:
        run.create()
        with run.claimed(Progress().say), _interruptible() as should_stop:
            code = run_baseline(built, run, resume=False, plain=False, should_stop=should_stop)
    finally:
        os.umask(umask)
    if code == 130:
        raise KeyboardInterrupt
    return run.path


@contextlib.contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets, so that the run saves and ends; a second one interrupts at once."""
    should_stop = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    # Another thread may set no handler; one that Python has not set, as of a program around it, cannot be put back.
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield should_stop
        return

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
