"""A player of environments whose spaces are not those that agents see."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from async_dqn.agents.table import make_config
from async_dqn.envs import registry
from async_dqn.nn.module import initial_parameters
from async_dqn.nn.policies import NEVER
from async_dqn.run import build
from async_dqn.run.trained import Trained
from async_dqn.tools.player import Player


class Mixed(gymnasium.Env):
    """Shows a picture beside a number and a text, and takes two choices, one of which is always forbidden."""

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (8, 8), np.uint8), number=spaces.Discrete(3), text=spaces.Text(5)
    )
    action_space = spaces.MultiDiscrete([2, 3], start=[5, 0])

    def _seen(self):
        mask = np.ones(6, bool)
        mask[self.np_random.integers(6)] = False
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample(), {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        observation, self._info = self._seen()
        return observation, self._info

    def step(self, action):
        assert self.action_space.contains(action)
        was_allowed = self._info["action_mask"][np.ravel_multi_index(action - self.action_space.start, (2, 3))]
        observation, self._info = self._seen()
        return observation, float(was_allowed), False, False, self._info


@pytest.fixture(autouse=True)
def _mixed():
    gymnasium.register("Mixed-v0", Mixed, max_episode_steps=20)
    yield
    del gymnasium.registry["Mixed-v0"]


def make_agent(name, **settings):
    return build.make_agent(make_config(name, "pictures", {"env": "Mixed-v0"} | settings))


def test_it_takes_and_gives_what_the_environments_do():
    agent = make_agent("dqn")
    online = initial_parameters(agent.modules, 3)
    envs = gymnasium.make_vec("Mixed-v0", 3)
    player = Player(agent, Trained(online, 0))
    observations, _ = envs.reset(seed=1)
    for _ in range(3):
        actions = player.act(observations)
        assert player.values(observations).shape == (3, 6)
        observations, *_ = envs.step(actions)

    rows = gymnasium.vector.utils.iterate(envs.observation_space, observations)
    packed = np.stack([agent.spec.packing.pack([], row["image"], np.eye(3)[row["number"]]) for row in rows])
    params = {"q": agent.modules[0].layout.unflatten(online["q"])}
    expected = agent.apply(params, packed[:, None])["q_values"].numpy()
    np.testing.assert_allclose(player.values(observations), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "own"), [("dqn", {}), ("ppo", {}), ("ppo", {"share_torso": False})])
def test_a_mask_is_obeyed_by_whoever_acts(name, own):
    agent = make_agent(name, action_mask=True, **own)
    env, rng = registry.make_vector_env(agent.spec, 4, seed=0), np.random.default_rng(0)
    player = Player(agent, Trained(initial_parameters(agent.modules, 3), 0))
    observation = env.reset()
    for step in range(30):
        outputs = player.outputs(observation)
        choices = agent.act(outputs, rng, step), agent.greedy(outputs)
        random = registry.random_actions(agent.spec, 4, rng, observation)
        result = env.step((*choices, random)[step % 3])
        assert result.reward.tolist() == [1] * 4
        observation = result.observation

    envs = gymnasium.make_vec("Mixed-v0", 2)
    observations, info = envs.reset(seed=5)
    player.reset()
    actions = player.act(observations, info["action_mask"])
    assert envs.step(actions)[1].tolist() == [1, 1]


def test_a_mask_that_the_agent_was_not_trained_with_is_refused():
    agent = make_agent("dqn")
    player = Player(agent, Trained(initial_parameters(agent.modules, 3), 0))
    envs = gymnasium.make_vec("Mixed-v0", 2)
    observations, info = envs.reset(seed=5)
    with pytest.raises(ValueError, match="--action_mask"):
        player.act(observations, info["action_mask"])


def test_actions_that_cannot_be_taken_are_not_valued():
    agent = make_agent("dqn", action_mask=True)
    params = {"q": agent.modules[0].init(np.random.default_rng(0))}
    observation = registry.make_vector_env(agent.spec, 5, seed=0).reset()
    q_values = agent.apply(params, observation[:, None])["q_values"].numpy()
    np.testing.assert_array_equal(q_values == NEVER, observation[:, :6] == 0)


@pytest.mark.parametrize("share_torso", [True, False])
def test_each_row_is_remembered_until_it_is_reset(share_torso):
    agent = build.make_agent(
        make_config("a3c", "cartpole", {"env": "CartPole-v1", "lstm": True, "share_torso": share_torso})
    )
    online = initial_parameters(agent.modules, 3)
    player, rng = Player(agent, Trained(online, 0)), np.random.default_rng(0)
    params = {module.name: module.layout.unflatten(online[module.name]) for module in agent.modules}
    recurrent_state = np.zeros((3, agent.recurrent_size), np.float32)
    for number in range(8):
        seen = rng.normal(size=(3, 4)).astype(np.float32)
        player.reset([])  # none
        if number == 3:
            player.reset([1])
            recurrent_state[1] = 0
        if number == 5:
            player.reset(np.array([True, False, True]))
            recurrent_state[[0, 2]] = 0
        if number == 7:
            player.reset()
            recurrent_state[:] = 0
        expected = {name: one.numpy() for name, one in agent.apply(params, seen[:, None], recurrent_state).items()}
        for _ in range(2):  # to ask for values does not step on
            np.testing.assert_allclose(player.values(seen), expected["value"][:, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(player.act(seen), expected["logits"].argmax(axis=1))
        np.testing.assert_allclose(player.values(seen), expected["value"][:, 0], rtol=1e-5, atol=1e-6)
        recurrent_state = expected["recurrent_state"]
        assert np.abs(recurrent_state).min(axis=1).max() > 0


def test_continuous_actions_come_in_the_bounds_of_the_environment():
    agent = build.make_agent(make_config("ppo", "pendulum", {"env": "Pendulum-v1"}))
    online = initial_parameters(agent.modules, 3)
    params = agent.modules[0].layout.unflatten(online["policy_value"])
    arrays = {name: one.numpy() for name, one in params.items()}
    arrays["mean/b"] = np.float32([7])
    online["policy_value"] = agent.modules[0].layout.flatten(arrays)
    actions = Player(agent, Trained(online, 0)).act(np.zeros((4, 3), np.float32))
    np.testing.assert_array_equal(actions, np.full((4, 1), 2))


def test_it_makes_the_environment_that_it_was_trained_in():
    config = make_config("ppo", "pendulum", {"env": "Pendulum-v1", "frame_skip": 2, "max_episode_steps": 3})
    agent = build.make_agent(config)
    player = Player(agent, Trained(initial_parameters(agent.modules, 3), 0))
    env, alone = player.make_env(), gymnasium.make("Pendulum-v1")
    observation, _ = env.reset(seed=5)
    np.testing.assert_array_equal(observation, alone.reset(seed=5)[0])
    for step in range(3):
        action = player.act(observation[None])[0]
        observation, _, terminated, truncated, _ = env.step(action)
        alone.step(action)
        np.testing.assert_array_equal(observation, alone.step(action)[0])
        assert not terminated and truncated == (step == 2)
    atari = build.make_agent(make_config("dqn", "pong-fast", {"compute_dtype": "float32"}))
    with pytest.raises(ValueError, match="is an Atari game"):
        Player(atari, Trained(initial_parameters(atari.modules, 3), 0)).make_env()
