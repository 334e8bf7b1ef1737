"""Policies over a batch of action values or logits, in NumPy, with the random generator passed in."""

import numpy as np

NEVER = -1e9  # the value, or the logit, of an action that cannot be taken


def greedy(values: np.ndarray) -> np.ndarray:
    """The best action [N] int32 by values or logits [N, A]. Ties go to the lowest action."""
    return values.argmax(axis=1).astype(np.int32)


def epsilon_greedy(q_values: np.ndarray, epsilon: float | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The best action, or with probability epsilon a uniformly random one.

    Args:
      q_values: [N, A] float; an action of the value `NEVER` is not taken.
      epsilon: probability in [0, 1], one for all rows or [N] of them.
      rng: the caller's generator; it draws the same amount whatever the values are.

    Returns:
      [N] int32 actions. Ties go to the lowest action.
    """
    num_rows, num_actions = q_values.shape
    random_actions = rng.integers(num_actions, size=num_rows)
    chance = rng.random(num_rows)
    explore = chance < epsilon
    allowed = q_values > NEVER
    if not allowed.all():
        # Where it explores, chance / epsilon is uniform too: which of the allowed actions.
        share = np.divide(chance, epsilon, out=np.zeros(num_rows), where=explore)
        number = np.floor(share * allowed.sum(axis=1))  # [N]
        random_actions = (allowed.cumsum(axis=1) > number[:, None]).argmax(axis=1)
    return np.where(explore, random_actions, greedy(q_values)).astype(np.int32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities [..., A] of softmax policies with these logits [..., A], however large they are."""
    shifted = logits - logits.max(axis=-1, keepdims=True)  # [..., A]
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def sample_softmax(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Actions drawn from softmax policies by the Gumbel-max trick (Maddison et al. 2014).

    Args:
      logits: [N, A] float32.
      rng: the caller's generator; it draws the same amount whatever the logits are.

    Returns:
      [N] int32 actions.
    """
    return greedy(logits + rng.gumbel(size=logits.shape))


def ape_x_epsilons(first: int, count: int, total: int) -> np.ndarray:
    """The constant exploration of some environments: 0.4 ** (1 + 7 i / (total - 1)) (Ape-X, Horgan et al. 2018).

    Args:
      first, count: the environments are i = first ... first + count - 1.
      total: environments of all workers together. With one, its epsilon is 0.4.

    Returns:
      [count] float64.

    Raises:
      ValueError: there are not so many environments.
    """
    if not 0 <= first <= first + count <= total:
        raise ValueError(f"environments {first} to {first + count - 1} are not among the {total} from 0")
    return 0.4 ** (1 + 7.0 * np.arange(first, first + count) / max(total - 1, 1))


_DRAWN, _SHARES = (0.1, 0.01, 0.5), (0.4, 0.3, 0.3)
_DRAWS = 0x657073  # tells these draws from others by the same seed


def drawn_epsilons(seed: int, first: int, count: int) -> np.ndarray:
    """What the exploration of some environments falls to: 0.1, 0.01 or 0.5 with probability 0.4, 0.3 and 0.3 each.

    Mnih et al. 2016, experimental setup: for each actor, of which here every environment counts as one.

    Args:
      seed: what an environment has depends on it and on the environment's number alone.
      first, count: the environments are first ... first + count - 1, of those of all workers.

    Returns:
      [count] float64.
    """
    rng = np.random.default_rng([seed, _DRAWS])
    return rng.choice(_DRAWN, size=first + count, p=_SHARES)[first:]
