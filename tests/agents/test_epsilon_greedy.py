"""Exploration by epsilon, of every agent that values actions."""

import numpy as np
import pytest

from async_dqn.agents.table import make_config
from async_dqn.nn.policies import drawn_epsilons
from async_dqn.run import build


def make_agent(worker=0, agent="dqn", **overrides):
    return build.make_agent(make_config(agent, "cartpole", {"env": "CartPole-v1"} | overrides), worker)


def test_acts_greedily_without_exploration_and_at_random_with_nothing_else():
    outputs = {"q_values": np.tile([[0.0, 1.0]], (50, 1))}
    for epsilon, expected in [(0.0, {1}), (1.0, {0, 1})]:
        agent = make_agent(epsilon_start=epsilon, epsilon_final=epsilon)
        actions, again = (agent.act(outputs, np.random.default_rng(0), step=0) for _ in range(2))
        assert set(actions) == expected
        np.testing.assert_array_equal(actions, again)
        assert set(agent.greedy(outputs)) == {1}


def test_ape_x_exploration_is_spread_over_the_environments_of_all_workers():
    agents = [make_agent(worker, exploration="ape_x", num_workers=3, envs_per_worker=2) for worker in range(3)]
    epsilons = np.concatenate([agent.epsilon(12_345) for agent in agents])
    np.testing.assert_allclose(epsilons, [0.4 ** (1 + 7 * i / (6 - 1)) for i in range(6)])
    assert agents[1].schedules(0) == {"epsilon": pytest.approx((epsilons[2] + epsilons[3]) / 2)}


def test_ape_x_explores_in_each_environment_by_its_own_epsilon():
    agent = make_agent(exploration="ape_x", num_workers=1, envs_per_worker=2)
    rng, outputs = np.random.default_rng(0), {"q_values": np.tile([[0.0, 1.0]], (2, 1))}
    actions = np.array([agent.act(outputs, rng, 0) for _ in range(4_000)])
    # Half of the random actions are the other one.
    np.testing.assert_allclose(1 - actions.mean(axis=0), [0.4 / 2, 0.4**8 / 2], atol=0.02)


def test_drawn_exploration_falls_in_each_environment_to_a_value_of_its_own():
    settings = {"exploration": "drawn", "num_workers": 3, "envs_per_worker": 4, "warmup_steps": 1, "epsilon_steps": 100}
    agents = [make_agent(worker, seed=5, **settings) for worker in range(3)]
    last = drawn_epsilons(5, 0, 12)
    assert len(set(last)) > 1
    for step, share in [(0, 0), (51, 0.5), (101, 1), (9_999, 1)]:
        epsilons = np.concatenate([agent.epsilon(step) for agent in agents])
        np.testing.assert_allclose(epsilons, 1 + share * (last - 1))


def test_any_number_of_rows_can_be_played():
    agent = make_agent(exploration="drawn", envs_per_worker=3)
    for rows in (1, 3, 7):
        assert agent.act({"q_values": np.zeros((rows, 2))}, np.random.default_rng(0), 0).shape == (rows,)
