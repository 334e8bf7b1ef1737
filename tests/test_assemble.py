"""Tests of async_dqn.roles.assemble."""

import pytest

from async_dqn.config import Config, make_config
from async_dqn.errors import UserError
from async_dqn.roles import assemble


def test_shared_exploration_begins_to_fall_after_warm_up():
    config = Config(warmup_steps=1_000, epsilon_steps=2_000, epsilon_final=0.1)
    epsilons = [assemble.make_epsilon(config, worker) for worker in (0, 1)]
    for step, value in [(0, 1.0), (1_000, 1.0), (2_000, 1 - 0.9 / 2), (3_000, 0.1), (9_000, 0.1)]:
        assert [epsilon(step) for epsilon in epsilons] == pytest.approx([value, value])


def test_ape_x_exploration_is_each_worker_s_own():
    config = Config(exploration="ape_x", num_workers=3)
    epsilons = [assemble.make_epsilon(config, worker)(12_345) for worker in range(3)]
    assert epsilons == pytest.approx([0.4**1, 0.4 ** (1 + 7 / 2), 0.4 ** (1 + 7)])


@pytest.mark.parametrize(("env", "network"), [("pong", "mlp"), ("CartPole-v1", "nips"), ("CartPole-v1", "nature")])
def test_a_network_that_does_not_fit_is_named(env, network):
    with pytest.raises(UserError, match=rf"--network={network} does not fit .*; use "):
        assemble.make_problem(Config(env=env, network=network))


def test_auto_chooses_the_network_by_the_observations():
    assert assemble.make_problem(Config(env="pong")).network.name == "nips"
    assert assemble.make_problem(Config(env="CartPole-v1")).network.name == "mlp"


def test_replay_is_counted_for_the_workers_of_this_machine():
    config = make_config("nature", {"num_workers": 4})
    problem = assemble.make_problem(config)
    text = assemble.check_replay_memory(config, problem, 1)
    assert "250,000 transitions" in text
    assert "1.77 GB" in text  # 7.07 GB for a million


def test_workers_draw_seeds_of_their_own_and_a_resumed_run_new_ones():
    config = Config(seed=3)
    seeds = {assemble.make_seeds(config, worker, step)[1] for worker in (0, 1) for step in (0, 500)}
    assert len(seeds) == 4
    assert assemble.make_seeds(config, 1, 0)[1] == assemble.make_seeds(config, 1, 0)[1]


def test_available_memory_is_positive_and_no_more_than_the_machine_has():
    import psutil

    assert 0 < assemble.available_bytes() <= psutil.virtual_memory().total
