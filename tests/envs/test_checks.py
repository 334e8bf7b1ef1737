"""checks.py: environments that do not keep to the interface are named, with a remedy."""

import gymnasium
import numpy as np
import pytest
from environment_helpers import make
from faulty_environments import Plain

from async_dqn.base.errors import RunFailed
from async_dqn.envs.checks import Checked


class OldReset(Plain):
    def reset(self, **options):
        return super().reset(**options)[0]


class OldSeed(Plain):
    def reset(self):
        return super().reset()


class OldStep(Plain):
    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class WrongShape(Plain):
    def observe(self):
        return np.zeros(5, np.float32)


class ArrayReward(Plain):
    def reward(self, action):
        return np.array([1.0])


class ArrayEnd(Plain):
    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, np.array([False]), truncated, info


@pytest.mark.parametrize(
    ("faulty", "words"),
    [
        (
            OldReset,
            r"My-v0: reset\(\) gave an array of shape \(2,\), not .*; since gymnasium 0.26",
        ),
        (OldSeed, r"My-v0: reset\(\) takes no seed; declare reset\(self, \*, seed=None, options=None\)"),
        (
            OldStep,
            r"My-v0: step\(\) gave a tuple of 4, not .*; since gymnasium 0.26",
        ),
        (
            WrongShape,
            r"reset\(\) gave the observation an array of shape \(5,\), but its observation_space has .* \(2,\)",
        ),
        (ArrayReward, r"step\(\) gave the reward an array of shape \(1,\); give a number, such as float\(reward\)"),
        (ArrayEnd, r"step\(\) gave terminated as an array of shape \(1,\); give a boolean"),
    ],
)
def test_what_does_not_keep_to_the_interface_is_named(faulty, words):
    env = Checked(faulty(), "My-v0")
    with pytest.raises(RunFailed, match=words):
        env.reset(seed=0)
        env.step(0)


def test_a_run_checks_its_environments_without_a_reset_more(monkeypatch):
    monkeypatch.setitem(
        gymnasium.registry, "Old-v0", gymnasium.envs.registration.EnvSpec("Old-v0", lambda **options: OldStep())
    )
    env = make("Old-v0", num_envs=2)
    env.reset()
    assert [one.unwrapped.game for one in env._environments.envs] == [1, 1]
    with pytest.raises(RunFailed, match=r"Old-v0: step\(\) gave a tuple of 4"):
        env.step(np.array([0, 0]))
