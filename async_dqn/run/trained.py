"""The network that a run has trained."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from async_dqn.base.errors import UserError
from async_dqn.run.build import Problem
from async_dqn.run.directory import RunDirectory
from async_dqn.run.resume import load_newest


class Trained(NamedTuple):
    """The parameters of the online network [P] float32, and the global agent steps that they were trained for."""

    online: np.ndarray
    env_steps: int


def load_trained(run: RunDirectory, problem: Problem, say: Callable[[str], None]) -> Trained:
    """The network of the newest whole checkpoint.

    Args:
      say: takes a line on each newer one that is damaged.

    Raises:
      UserError: there is none, or it is not one of the network of `problem`.
    """
    checkpoint = load_newest(run, say)
    if checkpoint is None:
        raise UserError(f"--logdir={run.path} holds no whole checkpoint yet")
    online = checkpoint.arrays.get("store/online")
    is_known = online is not None and online.dtype in (np.float32, np.float16)
    if online is None or not is_known or online.shape != (problem.layout.num_parameters,):
        raise UserError(f"--logdir={run.path}: checkpoint {checkpoint.number} is not one of this network")
    return Trained(online.astype(np.float32), checkpoint.number)
