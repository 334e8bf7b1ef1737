"""Rollouts for tests, whose every step is known."""

import numpy as np

from async_dqn.data.experience import Step


def fill_with_ends(experience, outputs, length, num_envs):
    """Fills in T steps, with a termination and a truncation among them. Gives rewards, terminated, truncated [T, N]."""
    rewards = np.random.default_rng(0).normal(size=(length, num_envs)).astype(np.float32)
    terminated, truncated = np.zeros((2, length, num_envs), bool)
    terminated[1, 0] = truncated[3, 1] = True
    fill(experience, rewards, terminated, truncated, outputs)
    return rewards, terminated, truncated


def fill(experience, rewards, terminated, truncated, outputs, actions=None, first=0):
    """Adds T steps [T, N] of environments whose observation is the number of the step; one that cuts leads 100 further.

    The second number of the observation is that of the environment. Without `actions` [T, N] they are n modulo 2.

    Args:
      first: the number of the first step.
      outputs: stacked observations [N, 1, 4] -> what the networks say of them.
    """
    num_envs = rewards.shape[1]
    for t, (reward, ended, cut) in enumerate(zip(rewards, terminated, truncated, strict=True)):
        seen = np.full((num_envs, 4), first + t, np.float32)
        seen[:, 1] = np.arange(num_envs)
        following = seen.copy()
        following[:, 0] += 1 + 100 * cut
        experience.add(
            Step(
                observation=seen,
                stacked=seen[:, None],
                action=np.arange(num_envs, dtype=np.int32) % 2 if actions is None else actions[t],
                outputs=outputs(seen[:, None]),
                reward=reward,
                terminated=ended,
                truncated=cut,
                next_observation=following,
            ),
            num_envs,
        )
