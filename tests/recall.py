"""An environment that takes memory: `--env=recall:Recall-v0` with this folder on PYTHONPATH."""

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 5  # steps of an episode


class Recall(gymnasium.Env):
    """The first observation alone shows which action is right; the last one asks for it. Its reward is 1, or else -1.

    Without a memory the mean return is 0, whatever the policy.
    """

    action_space, observation_space = spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)

    def _seen(self, cue=0):
        return np.array([cue, self._t == LENGTH - 1], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t, self._right = 0, int(self.np_random.integers(2))
        return self._seen(2 * self._right - 1), {}

    def step(self, action):
        reward = (1.0 if action == self._right else -1.0) if self._t == LENGTH - 1 else 0.0
        self._t += 1
        return self._seen(), reward, self._t == LENGTH, False, {}


gymnasium.register("Recall-v0", Recall)
