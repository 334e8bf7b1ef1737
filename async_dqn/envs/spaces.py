"""What the spaces of an environment become: agents see numbered actions from 0, or vectors in [-1, 1]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

MAX_COMBINATIONS = 1_024  # of several discrete choices that are numbered as one


class Unsupported(Exception):
    """A space that no agent can use; says what is supported instead."""


class Adapter(NamedTuple):
    """A space that agents see, and the way between it and the environment's own.

    Attributes:
      space: what agents see.
      convert: an action of an agent -> the environment's own.
    """

    space: gymnasium.Space
    convert: Callable[[Any], Any]


def adapt_actions(space: gymnasium.Space) -> Adapter:
    """Discrete choices numbered from 0; or vectors [D], whose -1 and 1 are the bounds of a Box.

    Components of a Box without two finite bounds stay as they are. What lies outside of the bounds is clipped.

    Raises:
      Unsupported: it is none of Discrete, MultiDiscrete, MultiBinary and Box.
    """
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return Adapter(spaces.Discrete(int(space.n)), lambda action: action + start)
    if isinstance(space, spaces.MultiDiscrete):
        return _combinations(space.nvec, space.start.ravel(), space)
    if isinstance(space, spaces.MultiBinary):
        return _combinations(np.full(space.shape, 2), np.zeros(1, int), space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return _scaled(space)
    raise Unsupported("only Discrete, MultiDiscrete, MultiBinary and a Box of floats are supported")


def _combinations(choices: np.ndarray, start: np.ndarray, space: gymnasium.Space) -> Adapter:
    """Several choices as one: number i stands for the i-th combination, the last choice changing fastest."""
    count = int(np.prod(choices, dtype=np.float64))
    if count > MAX_COMBINATIONS:
        raise Unsupported(f"these are {count} combinations, and at most {MAX_COMBINATIONS} are supported")
    sizes = tuple(int(one) for one in choices.ravel())

    def convert(action: Any) -> np.ndarray:
        return (np.array(np.unravel_index(int(action), sizes)) + start).reshape(space.shape).astype(space.dtype)

    return Adapter(spaces.Discrete(count), convert)


def _scaled(space: spaces.Box) -> Adapter:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    is_bounded = np.isfinite(low) & np.isfinite(high)
    with np.errstate(invalid="ignore"):
        middle, half = np.where(is_bounded, (low + high) / 2, 0), np.where(is_bounded, (high - low) / 2, 1)

    def convert(action: Any) -> np.ndarray:
        own = middle + half * np.reshape(action, space.shape)
        return np.clip(own, low, high).astype(space.dtype)

    return Adapter(spaces.Box(-1, 1, (int(np.prod(space.shape)),), np.float32), convert)


class Adapted(gymnasium.Wrapper):
    """An environment with the spaces that agents see. Raises Unsupported where there are none."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.action_space, self._own_action = adapt_actions(env.action_space)

    def step(self, action: Any) -> Any:
        return self.env.step(self._own_action(action))
