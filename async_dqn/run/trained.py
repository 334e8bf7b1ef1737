"""The networks that a run has trained."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from async_dqn.agents.base import Agent
from async_dqn.base.errors import UserError
from async_dqn.run.directory import RunDirectory
from async_dqn.run.resume import load_newest, store_state


class Trained(NamedTuple):
    """The online parameters {module: [P] float32}, and the global agent steps that they were trained for."""

    online: dict[str, np.ndarray]
    env_steps: int


def load_trained(run: RunDirectory, agent: Agent, say: Callable[[str], None]) -> Trained:
    """The networks of the newest whole checkpoint.

    Args:
      say: takes a line on each newer one that is damaged.

    Raises:
      UserError: there is none, or it is not one of this agent's networks.
    """
    checkpoint = load_newest(run, say)
    if checkpoint is None:
        raise UserError(f"--logdir={run.path} holds no whole checkpoint yet")
    state = store_state(checkpoint)
    if "online" in state and len(agent.modules) == 1:  # of format 1, which knew one network and no names
        state = {f"{agent.modules[0].name}/online": state["online"]}
    online = {module.name: state.get(f"{module.name}/online") for module in agent.modules}
    for module in agent.modules:
        found = online[module.name]
        if found is None or found.dtype not in (np.float32, np.float16) or found.shape != (module.size,):
            raise UserError(
                f"--logdir={run.path}: checkpoint {checkpoint.number} is not one of this network ({module.name})"
            )
    return Trained({name: np.asarray(one, np.float32) for name, one in online.items()}, checkpoint.number)
