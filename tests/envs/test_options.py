"""settings/environment.py: how an environment is made, from flags to what agents see of it."""

import gymnasium
import numpy as np
import pytest
from environment_helpers import counting_environments
from gymnasium import spaces

from async_dqn.base.errors import UserError
from async_dqn.envs import registry
from async_dqn.envs.wrappers import Repeated, Resized
from async_dqn.settings.environment import EnvironmentOptions


class Pictures(gymnasium.Env):
    """Shows `size` x `size` pictures of noise in three colours."""

    action_space = spaces.Discrete(2)

    def __init__(self, size=16):
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        return self._seen(), 1.0, False, False, {}

    def _seen(self):
        return self.np_random.integers(0, 256, self.observation_space.shape).astype(np.uint8)


@pytest.fixture(autouse=True, scope="module")
def _environments():
    gymnasium.register("Pictures-v0", Pictures, max_episode_steps=10)
    with counting_environments():
        yield
    del gymnasium.registry["Pictures-v0"]


def half_the_reward(env):
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward / 2)


class NoWrapper(gymnasium.Env):
    """Holds an environment without being one of gymnasium's wrappers."""

    def __init__(self, env):
        self._env = env
        self.action_space, self.observation_space = env.action_space, env.observation_space
        self.reset, self.step = env.reset, env.step


def no_environment(env):
    return "nothing"


def resolve(id="Pictures-v0", **options):
    return registry.resolve(id, "classic", EnvironmentOptions(**options))


def test_without_options_all_is_as_gymnasium_makes_it():
    assert resolve().observation_shape == (16, 16, 3)
    assert EnvironmentOptions().texts() == []
    assert EnvironmentOptions.from_dict({"frame_skip": 4, "seed": 3}) == EnvironmentOptions(frame_skip=4)


def test_arguments_reach_the_environment():
    assert resolve(env_args='{"size": 20}').observation_shape == (20, 20, 3)


def test_what_is_seen_of_pictures_is_what_was_asked_for():
    spec = resolve(grayscale=True, frame_size=8, frame_stack=4, frame_skip=2)
    assert (spec.observation_shape, spec.stack, spec.frame_skip, spec.max_episode_steps) == ((8, 8), 4, 2, 5)
    env = registry.make_vector_env(spec, 2, seed=0)
    assert env.reset().shape == (2, 8, 8)
    result = env.step(np.array([0, 1]))
    assert result.reward.tolist() == [2, 2]
    frame = gymnasium.wrappers.GrayscaleObservation(Pictures()).reset(seed=0)[0]
    expected = frame.reshape(8, 2, 8, 2).mean(axis=(1, 3))
    np.testing.assert_allclose(registry.make_vector_env(spec, 1, seed=0).reset()[0], expected, atol=1)


def test_colours_are_resized_one_by_one():
    seen = Resized(Pictures(), 4).reset(seed=3)[0]
    expected = Pictures().reset(seed=3)[0].reshape(4, 4, 4, 4, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(seen, expected, atol=1)


def test_a_repeated_action_ends_with_the_episode():
    env = Repeated(gymnasium.make("TerminatingCounter-v0"), 2)  # which ends with its third step
    env.reset()
    assert env.step(0)[1:4] == (20.0, False, False)
    assert env.step(0)[1:4] == (10.0, True, False)


def test_a_wrapper_of_the_users_own():
    spec = resolve("EndlessCounter-v0", wrapper=f"{__name__}:half_the_reward")
    env = registry.make_vector_env(spec, 1, seed=0)
    env.reset()
    assert env.step(np.array([0])).reward.tolist() == [5]


def test_an_environment_that_is_no_wrapper_has_the_limit_of_what_it_holds():
    spec = resolve(wrapper=f"{__name__}:NoWrapper")
    assert (spec.id, spec.max_episode_steps, spec.observation_shape) == ("Pictures-v0", 10, (16, 16, 3))


def test_a_state_of_other_options_is_refused():
    env, other = (registry.make_vector_env(resolve(frame_skip=skip), 1, seed=0) for skip in (1, 2))
    env.reset()
    with pytest.raises(ValueError, match="--frame_skip=1"):
        other.restore(env.state())


@pytest.mark.parametrize(
    ("id", "options", "words"),
    [
        ("Pictures-v0", {"env_args": "size"}, ["--env_args=size", "JSON"]),
        ("Pictures-v0", {"env_args": "[1]"}, ["--env_args=[1]", "object"]),
        ("Pictures-v0", {"env_args": '{"sise": 8}'}, ["--env=Pictures-v0", "TypeError", "sise"]),
        ("Pictures-v0", {"env_args": '{"max_episode_steps": 8}'}, ["--env_args=", "--max_episode_steps"]),
        ("Pictures-v0", {"wrapper": "nothing"}, ["--wrapper=nothing", "MODULE:FUNCTION"]),
        ("Pictures-v0", {"wrapper": "no_module:f"}, ["--wrapper=no_module:f", "no_module"]),
        ("Pictures-v0", {"wrapper": f"{__name__}:nothing"}, ["--wrapper=", "nothing"]),
        ("Pictures-v0", {"wrapper": f"{__name__}:no_environment"}, ["--wrapper=", "gives a str"]),
        ("CartPole-v1", {"grayscale": True}, ["--grayscale", "3 channels"]),
        ("CartPole-v1", {"frame_size": 84}, ["--frame_size=84", "no pictures"]),
        ("pong", {"frame_skip": 2}, ["--frame_skip=2", "Atari", "--protocol"]),
    ],
)
def test_what_does_not_fit_is_named(id, options, words):
    with pytest.raises(UserError) as caught:
        resolve(id, **options)
    assert [word for word in words if word not in str(caught.value)] == [], caught.value
