"""Deep reinforcement learning on TensorFlow parameter servers.

From Python: `train` runs what `async-dqn baseline` runs, `load` gives what was trained. Nothing else is public.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from async_dqn.tools.player import Player

__version__ = "0.2.0"
__all__ = ["load", "train"]


def load(logdir: str | Path, checkpoint: str | int | None = None) -> Player:
    """The agent of a run, to play: `act`, `values`, `reset` and `make_env`; `checkpoint` and `env_steps` say which.

    Args:
      logdir: the run directory.
      checkpoint: best, newest, or the agent steps of one; None: the best, or else the newest.

    Raises:
      UserError: there is no run, no checkpoint, or one that does not fit.
    """
    from async_dqn.tools import player  # not above: TensorFlow takes seconds

    return player.load(logdir, checkpoint)


def train(
    *, env: str, agent: str = "dqn", logdir: str | Path | None = None, preset: str = "auto", **settings: Any
) -> Path:
    """Trains an agent in this process, as `async-dqn baseline` does, and gives the run's folder, which `load` takes.

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
    from async_dqn.tools import train as training

    return training.train(env=env, agent=agent, logdir=logdir, preset=preset, **settings)
