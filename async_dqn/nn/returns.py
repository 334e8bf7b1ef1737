"""Returns and advantages of rollouts, in NumPy. T is the length of the rollout, N the number of environments."""

import numpy as np


def generalized_advantages(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    discount: float,
    trace: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Generalised advantage estimates, and the returns that they imply (Schulman et al. 2016, equation 16).

    Args:
      reward: [T, N] float32, of each step.
      value: [T, N] float32, V of the state before the step.
      next_value: [T, N] float32, V of the state that the step led to within the same episode. For a truncated step it
        is that of the episode's last observation. For a terminated step it is not used.
      terminated: [T, N] bool: the episode ended with this step, and the value after it is 0.
      truncated: [T, N] bool: the episode was cut off after this step.
      discount: gamma.
      trace: lambda. 0 gives one-step errors, 1 the discounted rewards of the rest of the rollout.

    Returns:
      [T, N] float32 advantages, and [T, N] float32 returns: advantage + value. Neither looks past the end of an episode
      or of the rollout.

    Raises:
      ValueError: the arrays are not [T, N], all of one shape.
    """
    shapes = [np.shape(array) for array in (reward, value, next_value, terminated, truncated)]
    if len(shapes[0]) != 2 or len(set(shapes)) > 1:
        raise ValueError(f"reward, value, next_value, terminated, truncated are {shapes}, not all the same [T, N]")
    delta = reward + discount * np.where(terminated, 0, next_value) - value  # [T, N]
    decay = np.where(terminated | truncated, 0, discount * trace)  # [T, N]
    advantage = np.empty(shapes[0], np.float32)
    later = np.zeros(shapes[0][1])  # [N], the advantage one step later
    for t in reversed(range(len(advantage))):
        later = delta[t] + decay[t] * later
        advantage[t] = later
    return advantage, (advantage + value).astype(np.float32, copy=False)
