"""The few named tuples that environments, replay, agents and metrics exchange.

Shapes use N for environments, B for a minibatch, S for stacked frames and `...` for one observation
(84, 84 on Atari, the vector elsewhere).
"""

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


class Episode(NamedTuple):
    """One whole game as the environment scores it: rewards unclipped, lives lost included."""

    environment: int
    episode_return: float
    length: int  # agent steps


class StepResult(NamedTuple):
    """What one step of N environments gives.

    `next_observation` is the s_t of this transition; `observation` is what to act on next. They differ only where
    an episode ended, where `observation` is already the first one of the next episode.
    """

    observation: np.ndarray  # [N, ...]
    next_observation: np.ndarray  # [N, ...]
    reward: np.ndarray  # [N] float32, unclipped
    terminated: np.ndarray  # [N] bool; ends the training episode, no bootstrap
    truncated: np.ndarray  # [N] bool; ends the training episode, bootstraps
    episodes: list[Episode]  # whole games that ended with this step
