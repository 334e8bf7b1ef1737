"""Tests of async_dqn.tools.show.screen: it shows the games that the agent plays."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from async_dqn.base.errors import UserError
from async_dqn.envs import registry
from async_dqn.settings.environment import EnvironmentOptions
from async_dqn.tools.show.screen import make_screen


def test_it_goes_through_the_same_games_as_the_agent():
    spec = registry.resolve("pong", "classic")
    env, screen = registry.make_vector_env(spec, 1, seed=3), make_screen(spec, seed=3)
    observation, picture = env.reset()[0], screen.reset()
    actions = np.random.default_rng(0)
    seen_after_end = 0
    for _ in range(1_300):  # a game in which nothing is hit takes some 800 steps
        action = int(actions.integers(6))
        result = env.step(np.array([action]))
        observation = result.observation[0]
        *ended, picture = screen.step(action)
        assert len(ended) == len(result.episodes)
        seen_after_end += bool(seen_after_end or result.episodes)
        if seen_after_end in (0, 1, 50):
            assert _difference(picture, observation) < 2
    assert picture.shape == (210, 160, 3)
    assert seen_after_end > 50
    other = env.step(np.array([2])).observation[0]
    env.close()
    screen.close()
    assert not np.array_equal(other, observation)


def _difference(picture, observation):
    """The agent's frame is the picture in grey, smaller: its rows and columns are 2.5 and 1.9 of the picture's."""
    grey = picture @ np.array([0.299, 0.587, 0.114])
    small = np.asarray(Image.fromarray(grey.astype(np.uint8)).resize((84, 84), Image.Resampling.BOX), np.float32)
    return np.abs(small - observation).mean()


def test_it_draws_gymnasium_environments_at_their_own_speed():
    spec = registry.resolve("CartPole-v1", "none")
    screen = make_screen(spec, seed=3)
    first = screen.reset()
    later = [screen.step(1) for _ in range(8)][-1][-1]
    screen.close()
    assert first.shape == later.shape == (400, 600, 3)
    assert first.dtype == np.uint8
    assert not np.array_equal(first, later)
    assert screen.frames_per_second == 50


def test_it_begins_a_new_game_where_the_agent_s_is_cut_off():
    spec = replace(registry.resolve("CartPole-v1", "none"), max_episode_steps=3)
    env, screen = registry.make_vector_env(spec, 1, seed=3), make_screen(spec, seed=3)
    env.reset(), screen.reset()
    ends = 0
    for _ in range(7):
        result, pictures = env.step(np.array([1])), screen.step(1)
        np.testing.assert_array_equal(screen.observation, result.observation[0])
        assert len(pictures) == 1 + len(result.episodes)  # where it ended, and where the next one begins
        if result.episodes:
            ends += 1
            assert not np.array_equal(*pictures)
    screen.close()
    assert ends == 2


def test_where_each_action_is_taken_several_times_pictures_are_fewer():
    screen = make_screen(registry.resolve("CartPole-v1", "none", EnvironmentOptions(frame_skip=4)), seed=3)
    screen.close()
    assert screen.frames_per_second == 12


def cannot(self):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("render", "words"), [(lambda self: None, "it renders no rgb_array"), (cannot, "NotImplementedError")]
)
def test_an_environment_that_draws_nothing_is_named(monkeypatch, render, words):
    spec = registry.resolve("CartPole-v1", "none")
    monkeypatch.setattr("gymnasium.envs.classic_control.CartPoleEnv.render", render)
    screen = make_screen(spec, seed=3)
    with pytest.raises(UserError, match=f"cannot be drawn: {words}$"):
        screen.reset()
    screen.close()
