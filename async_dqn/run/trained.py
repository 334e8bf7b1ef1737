"""The networks that a run has trained."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from async_dqn.agents.base import Agent
from async_dqn.base.errors import UserError
from async_dqn.run import checkpoints
from async_dqn.run.directory import RunDirectory
from async_dqn.run.resume import load_newest, store_state


class Trained(NamedTuple):
    """Networks, and what they are."""

    online: dict[str, np.ndarray]  # parameters {module: [P] float32}
    env_steps: int  # global agent steps that they were trained for
    name: str = ""  # "newest", "best", or "" for one that was asked for by its number


def load_trained(
    run: RunDirectory, agent: Agent, say: Callable[[str], None], checkpoint: str | int | None = None
) -> Trained:
    """The networks of one checkpoint.

    Args:
      say: takes a line on each newer one that is damaged.
      checkpoint: best, newest, or the agent steps of one; None: the best, or else the newest.

    Raises:
      UserError: there is none, or it is not one of this agent's networks.
    """
    found, name = _find(run, say, checkpoint)
    state = store_state(found)
    if "online" in state and len(agent.modules) == 1:  # of format 1, which knew one network and no names
        state = {f"{agent.modules[0].name}/online": state["online"]}
    online = {module.name: state.get(f"{module.name}/online") for module in agent.modules}
    for module in agent.modules:
        one = online[module.name]
        if one is None or one.dtype not in (np.float32, np.float16) or one.shape != (module.size,):
            raise UserError(
                f"--logdir={run.path}: checkpoint {found.number} is not one of this network ({module.name})"
            )
    return Trained({module: np.asarray(one, np.float32) for module, one in online.items()}, found.number, name)


def _find(
    run: RunDirectory, say: Callable[[str], None], wanted: str | int | None
) -> tuple[checkpoints.Checkpoint, str]:
    if wanted in (None, "best"):
        best, faults = checkpoints.load_newest(run.best)
        for fault in faults:
            say(f"warning: {fault}; not using it")
        if best is not None:
            return best, "best"
        if wanted == "best":
            why = "it has not played 100 games, or was exported"
            raise UserError(f"--checkpoint=best: --logdir={run.path} holds none: {why}; leave the flag out")
    if wanted in (None, "newest"):
        newest = load_newest(run.checkpoints, say)
        if newest is None:
            raise UserError(f"--logdir={run.path} holds no whole checkpoint yet")
        return newest, "newest"
    return _numbered(run, str(wanted)), ""


def _numbered(run: RunDirectory, wanted: str) -> checkpoints.Checkpoint:
    text = wanted.replace("_", "").replace(",", "")
    there = {number: folder for folder in (run.best, run.checkpoints) for number in checkpoints.numbers(folder)}
    if not text.isascii() or not text.isdigit() or int(text) not in there:
        known = ", ".join(map(str, sorted(there))) or "none"
        raise UserError(
            f"--checkpoint={wanted}: must be best, newest, or the agent steps of one that is there: {known}"
        )
    try:
        return checkpoints.load(there[int(text)], int(text))
    except ValueError as error:
        raise UserError(f"--checkpoint={wanted}: {error}") from error
