"""The few named tuples that environments, replay, agents and metrics exchange.

Shapes use N for environments, B for a minibatch, S for stacked frames and `...` for one observation
(84, 84 on Atari, the vector elsewhere).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Transition(NamedTuple):
    """A minibatch of (n-step) transitions, in the literature's notation.

    `discount_t` is gamma ** m for a transition over m steps, and 0 where it ended in termination; a truncated
    episode still bootstraps from `s_t`.
    """

    s_tm1: np.ndarray  # [B, S, ...]
    a_tm1: np.ndarray  # [B] int32
    r_t: np.ndarray  # [B] float32, discounted sum of the m rewards
    discount_t: np.ndarray  # [B] float32
    s_t: np.ndarray  # [B, S, ...]


class WeightedTransition(NamedTuple):
    """A minibatch of transitions that were not drawn uniformly: those of `Transition`, and what each counts for."""

    s_tm1: np.ndarray  # [B, S, ...]
    a_tm1: np.ndarray  # [B] int32
    r_t: np.ndarray  # [B] float32
    discount_t: np.ndarray  # [B] float32
    s_t: np.ndarray  # [B, S, ...]
    weight: np.ndarray  # [B] float32, at most 1


class Episode(NamedTuple):
    """One whole game as the environment scores it: rewards unclipped, lives lost included."""

    environment: int
    episode_return: float
    length: int  # agent steps


class BadValue(NamedTuple):
    """A value from an environment that nothing can be learned from: NaN, infinite, or beyond float32.

    Also, without a value, a step that an environment in a process of its own could not take.
    """

    environment: int
    step: int  # of its game; 0: it is in what the game began with, and told with the step that was taken there
    field: str  # "reward", "observation[3]"; without a value, what happened
    value: float | None

    def described(self, env: str) -> str:
        """What is bad and where, for people; `env` is the id of the environment."""
        where = f"at step {self.step} of its game" if self.step else "at the start of a game"
        what = self.field if self.value is None else f"{self.field} is {self.value}"
        return f"{env}, environment {self.environment}: {what} {where}"


class StepResult(NamedTuple):
    """What one step of N environments gives.

    `next_observation` is the s_t of this transition; `observation` is what to act on next. They differ only where
    an episode ended, where `observation` is already the first one of the next episode.

    A step with a bad value is none: its game ended before it, at what was acted on, which stands in
    `next_observation` again; its reward is 0, it is neither terminated nor truncated, and nothing may learn from it.
    """

    observation: np.ndarray  # [N, ...]
    next_observation: np.ndarray  # [N, ...]
    reward: np.ndarray  # [N] float32, unclipped
    terminated: np.ndarray  # [N] bool; ends the training episode, no bootstrap
    truncated: np.ndarray  # [N] bool; ends the training episode, bootstraps
    episodes: list[Episode]  # whole games that ended with this step
    bad_values: Sequence[BadValue] = ()  # one at most of each environment, in their order

    def spoilt(self) -> np.ndarray:
        """The environments whose step had a bad value."""
        return np.array([bad.environment for bad in self.bad_values], np.int64)

    def first(self) -> np.ndarray:
        """[N] bool, whether `observation` begins an episode."""
        first = self.terminated | self.truncated
        first[self.spoilt()] = True
        return first
