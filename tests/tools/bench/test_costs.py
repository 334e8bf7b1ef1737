"""What parts cost: on CartPole in this process, and against real parameter servers."""

import dataclasses

import psutil
import pytest

from async_dqn.agents import table
from async_dqn.tools.bench import child, costs

SOON = 0.02  # seconds for each measurement
CARTPOLE = {"env": "CartPole-v1", "replay_capacity": 2_000, "num_workers": 1}


@pytest.fixture
def config():
    return table.make_config("dqn", "cartpole", CARTPOLE)


@pytest.mark.parametrize("agent", ["dqn", "ppo"])
@pytest.mark.parametrize(
    ("measure", "what"),
    [
        (costs.environment, {"ms/agent step"}),
        (costs.acting, {"batch of 1, ms", "batch of 8, ms", "batch of 32, ms"}),
        (costs.experience, {"add, µs/agent step", "draw, µs/minibatch"}),
        (costs.minibatch, {"ms/minibatch"}),
    ],
)
def test_each_part_takes_some_time_whatever_the_agent(agent, measure, what):
    config = table.make_config(agent, "cartpole", {"env": "CartPole-v1"})
    found = measure(config, seconds=SOON)
    assert found.keys() == what
    assert all(0 < cost < 10_000 for cost in found.values())


def test_experience_is_full_and_minibatches_call_for_their_steps(config):
    worker = costs._Worker(config)
    replay = worker.actor_learner.experience.ring
    assert (replay.added >= replay.slots_per_env).all()
    replay.check_valid()
    assert worker.learn(0.0)["agent steps"] == pytest.approx(config.train_period, rel=0.5)


def test_a_rate_is_of_minibatches_alone(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = costs.minibatch_rate(config, seconds=SOON, num_processes=1)
    assert found["agent steps/s"] == pytest.approx(found["minibatches/s"] * config.train_period, rel=0.5)


def test_the_median_leaves_the_slow_first_calls_out():
    now = [100.0]
    seconds = iter([50.0] * 5 + [1.0, 9.0, 2.0, 3.0, 2.0] + [2.0] * 100)

    def call():
        now[0] += next(seconds)

    assert costs.median_ms(call, 34.0, lambda: now[0]) == 2_000


@pytest.mark.cluster
def test_round_trips_are_made_to_real_parameter_servers_that_are_gone_then(config):
    before = set(psutil.Process().children(recursive=True))
    config = dataclasses.replace(config, num_workers=3, averages="shared")  # as the program sets them for so many
    (found,) = child.measure("async_dqn.tools.bench.costs:round_trips", config, 1, 1, {"seconds": SOON})
    assert {"pull, ms", "push of a gradient, ms", "a delta and back, ms"} <= found.keys()
    assert all(0 < cost < 10_000 for cost in found.values())
    assert set(psutil.Process().children(recursive=True)) <= before
