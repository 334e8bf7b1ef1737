"""Environments that count, and how tests make and play environments."""

import contextlib
import itertools
from dataclasses import replace

import gymnasium
import numpy as np

from async_dqn.envs import registry


class Counting(gymnasium.Env):
    """Observes how many steps the episode has, in one buffer that it reuses; ends by itself as it is told."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1, 2), np.float64)

    def __init__(self, terminates_at=0, truncates_at=0, actions=gymnasium.spaces.Discrete(2)):  # noqa: B008
        self.action_space = actions
        self._ends = terminates_at, truncates_at
        self._buffer = np.zeros((1, 2))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._buffer[:] = 0
        return self._buffer, {}

    def step(self, action):
        self._buffer += 1
        count = int(self._buffer[0, 0])
        return self._buffer, 10.0 + np.sum(action), count == self._ends[0], count == self._ends[1], {}


class Whimsical(Counting):
    """Observes what no seed determines."""

    _whims = itertools.count()

    def step(self, action):
        observation, *others = super().step(action)
        return observation + next(self._whims), *others


@contextlib.contextmanager
def counting_environments():
    """Registers `EndlessCounter-v0` and the like with gymnasium."""

    def register(name, max_episode_steps=None, **kwargs):
        gymnasium.register(f"{name}Counter-v0", lambda **_: Counting(**kwargs), max_episode_steps=max_episode_steps)

    register("Endless")
    register("Limited", max_episode_steps=3)
    register("Terminating", terminates_at=3)
    register("Truncating", truncates_at=3)
    register("Both", terminates_at=3, truncates_at=3)
    register("Continuous", actions=gymnasium.spaces.Box(-1, 1, (1,)))
    register("Vast", actions=gymnasium.spaces.MultiBinary(11))
    register("Shifted", actions=gymnasium.spaces.Discrete(2, start=1))
    gymnasium.register("WhimsicalCounter-v0", lambda **_: Whimsical(terminates_at=3))
    yield
    for id in [id for id in gymnasium.registry if id.endswith("Counter-v0")]:
        del gymnasium.registry[id]


def make(id, num_envs=1, protocol="classic", seed=1, max_episode_steps=None, **kwargs):
    spec = registry.resolve(id, protocol)
    spec = replace(spec, max_episode_steps=max_episode_steps or spec.max_episode_steps)
    return registry.make_vector_env(spec, num_envs, seed, **kwargs)


def play(env, actions):
    """First observation and the step results of `actions` [T, N]."""
    return env.reset(), [env.step(a) for a in actions]
