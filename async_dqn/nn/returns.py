"""Returns and advantages of rollouts, in NumPy. T is the length of the rollout, N the number of environments.

All functions raise ValueError where the arrays are not [T, N], all of one shape.
"""

from typing import NamedTuple

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
    """
    _check(reward=reward, value=value, next_value=next_value, terminated=terminated, truncated=truncated)
    delta = reward + discount * np.where(terminated, 0, next_value) - value  # [T, N]
    decay = np.where(terminated | truncated, 0, discount * trace)  # [T, N]
    advantage = np.empty(reward.shape, np.float32)
    later = np.zeros(reward.shape[1])  # [N], the advantage one step later
    for t in reversed(range(len(advantage))):
        later = delta[t] + decay[t] * later
        advantage[t] = later
    return advantage, (advantage + value).astype(np.float32, copy=False)


def lambda_returns(
    reward: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    discount: float,
    trace: float,
) -> np.ndarray:
    """Lambda-returns: averages of the n-step returns of all n up to the end of the episode or of the rollout.

    R_t = r_t + discount * ((1 - trace) * next_value_t + trace * R_(t+1)), Sutton & Barto 2018, equation 12.18. With the
    value of the best action as `next_value` they are those of Peng's Q(lambda), as in Gallici et al. 2024.

    Args:
      reward, next_value, terminated, truncated, discount: as in `generalized_advantages`.
      trace: lambda. 0 gives one-step returns, 1 the rewards until the end and the value there.

    Returns:
      [T, N] float32 returns. None looks past the end of an episode or of the rollout.
    """
    _check(reward=reward, next_value=next_value, terminated=terminated, truncated=truncated)
    bootstrap = np.where(terminated, 0, next_value)  # [T, N]
    return_ = np.empty(reward.shape, np.float32)
    later = bootstrap[-1]  # [N], what follows a step that is not the last one of its episode
    for t in reversed(range(len(reward))):
        mixed = (1 - trace) * bootstrap[t] + trace * later
        later = return_[t] = reward[t] + discount * np.where(terminated[t] | truncated[t], bootstrap[t], mixed)
    return return_


class Segments(NamedTuple):
    """The rest of the episode or of the rollout from each step on, whichever is shorter."""

    reward: np.ndarray  # [T, N] float32, the discounted sum of its rewards
    discount: np.ndarray  # [T, N] float32, of the value where it ends; 0 where that is a termination
    last: np.ndarray  # [T, N] int64, the number of its last step, from 0


def segments(reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, discount: float) -> Segments:
    """What n-step returns consist of, the value at their end aside (Mnih et al. 2016, algorithm S2).

    The return of a step is `reward + discount * value`, with the value of what step `last` led to. The first step of a
    rollout has T steps of reward, the last one has one.

    Args:
      reward: [T, N] float32.
      terminated, truncated: [T, N] bool: the episode ended with this step. Terminated, no value follows.
      discount: gamma.
    """
    _check(reward=reward, terminated=terminated, truncated=truncated)
    found = Segments(*(np.empty(reward.shape, dtype) for dtype in (np.float32, np.float32, np.int64)))
    later = Segments(np.zeros(reward.shape[1]), np.ones(reward.shape[1]), np.full(reward.shape[1], len(reward) - 1))
    for t in reversed(range(len(reward))):
        is_last = terminated[t] | truncated[t]
        later = Segments(
            reward[t] + discount * np.where(is_last, 0, later.reward),
            discount * np.where(terminated[t], 0, np.where(is_last, 1, later.discount)),
            np.where(is_last, t, later.last),
        )
        for array, values in zip(found, later, strict=True):
            array[t] = values
    return found


def vtrace(
    log_ratio: np.ndarray,
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    discount: float,
    trace: float,
) -> tuple[np.ndarray, np.ndarray]:
    """V-trace: returns of one policy from the steps of another (Espeholt et al. 2018, equation 1 and section 4.2).

    Importance weights are clipped at 1, both in the errors (rho) and in the traces (c). Where the two policies are the
    same and `trace` is 1, returns and advantages are those of n steps.

    Args:
      log_ratio: [T, N] float32, log pi(a|s) - log mu(a|s): of the policy that learns, less that which acted.
      reward, value, next_value, terminated, truncated, discount: as in `generalized_advantages`, values of the policy
        that learns.
      trace: lambda, a factor of c.

    Returns:
      [T, N] float32 advantages for the policy gradient, rho included, and [T, N] float32 returns for the value.
    """
    _check(
        log_ratio=log_ratio,
        reward=reward,
        value=value,
        next_value=next_value,
        terminated=terminated,
        truncated=truncated,
    )
    rho = np.exp(np.minimum(log_ratio, 0))  # [T, N]
    bootstrap = np.where(terminated, 0, next_value)  # [T, N]
    delta = rho * (reward + discount * bootstrap - value)  # [T, N]
    goes_on = ~(terminated | truncated)  # [T, N]
    returns, advantage = np.empty(reward.shape, np.float32), np.empty(reward.shape, np.float32)
    later = np.zeros(reward.shape[1])  # [N], v - V one step later
    for t in reversed(range(len(returns))):
        later = np.where(goes_on[t], later, 0)
        advantage[t] = rho[t] * (reward[t] + discount * (bootstrap[t] + later) - value[t])
        later = delta[t] + discount * trace * rho[t] * later
        returns[t] = value[t] + later
    return advantage, returns


def _check(**arrays: np.ndarray) -> None:
    shapes = [np.shape(array) for array in arrays.values()]
    if len(shapes[0]) != 2 or len(set(shapes)) > 1:
        raise ValueError(f"{', '.join(arrays)} are {shapes}, not all the same [T, N]")
