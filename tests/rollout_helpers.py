"""Rollouts for tests, whose every step is known."""

import numpy as np

from async_dqn.data.experience import Step


def fill(experience, rewards, terminated, truncated, outputs):
    """Adds T steps [T, N] of environments whose observation is the number of the step; one that cuts leads 100 further.

    Actions tell the environments apart: they are n modulo 2.

    Args:
      outputs: stacked observations [N, 1, 4] -> what the networks say of them.
    """
    num_envs = rewards.shape[1]
    for t, (reward, ended, cut) in enumerate(zip(rewards, terminated, truncated, strict=True)):
        seen = np.full((num_envs, 4), t, np.float32)
        experience.add(
            Step(
                observation=seen,
                stacked=seen[:, None],
                action=np.arange(num_envs, dtype=np.int32) % 2,
                outputs=outputs(seen[:, None]),
                reward=reward,
                terminated=ended,
                truncated=cut,
                next_observation=seen + 100 * cut[:, None] + 1,
            ),
            num_envs,
        )
