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


class FloatsForBytes(Plain):
    observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)


class FloatsInside(Plain):
    observation_space = gymnasium.spaces.Dict(own=gymnasium.spaces.Box(0, 9, (2,), np.int64))

    def observe(self):
        return {"own": np.array([0.2, 0.7])}


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
        (FloatsForBytes, r"gave an observation of float32, but its observation_space is of uint8; make them agree"),
        (FloatsInside, r"reset\(\) gave own of float64, but its observation_space is of int64; make them agree"),
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


class WideInts(Plain):
    """Numbers of another integer type than it says."""

    observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)

    def observe(self):
        return np.array([self.game, self.t], np.int64)


def test_integers_of_another_type_are_seen_as_what_the_space_says(monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("Wide-v0", lambda **options: WideInts())
    monkeypatch.setitem(gymnasium.registry, "Wide-v0", spec)
    env = make("Wide-v0", num_envs=2)
    env.reset()
    np.testing.assert_array_equal(env.step(np.array([0, 0])).observation, [[1, 1], [1, 1]])
