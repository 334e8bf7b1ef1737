"""Behaviour policies over a batch of action values, in NumPy, with the random generator passed in."""

import numpy as np


def epsilon_greedy(q_values: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """The best action, or with probability epsilon a uniformly random one.

    Args:
      q_values: [N, A] float.
      epsilon: probability in [0, 1].
      rng: the caller's generator; it draws the same amount whatever the values are.

    Returns:
      [N] int32 actions. Ties go to the lowest action.
    """
    num_rows, num_actions = q_values.shape
    random_actions = rng.integers(num_actions, size=num_rows)
    explore = rng.random(num_rows) < epsilon
    return np.where(explore, random_actions, q_values.argmax(axis=1)).astype(np.int32)


def worker_epsilon(base: float, worker: int, num_workers: int, alpha: float = 7.0) -> float:
    """The constant exploration of one of N workers: base ** (1 + alpha * i / (N - 1)) (Ape-X, Horgan et al. 2018)."""
    return base ** (1 + alpha * worker / max(num_workers - 1, 1))
