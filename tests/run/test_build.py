"""Tests of async_dqn.run.build."""

import itertools

import numpy as np
import pytest
from fakes import DroppingStore, as_tensor, make_store, minibatch

from async_dqn.base.errors import RunFailed, UserError
from async_dqn.nn import optimizers
from async_dqn.run import build
from async_dqn.settings.config import Config, make_config
from async_dqn.store.base import Counters
from async_dqn.store.client import LocalClient
from async_dqn.store.round_trips import DeltaClient, GradientClient


def test_shared_exploration_begins_to_fall_after_warm_up():
    config = Config(warmup_steps=1_000, epsilon_steps=2_000, epsilon_final=0.1)
    epsilons = [build.make_epsilon(config, worker) for worker in (0, 1)]
    for step, value in [(0, 1.0), (1_000, 1.0), (2_000, 1 - 0.9 / 2), (3_000, 0.1), (9_000, 0.1)]:
        assert [epsilon(step) for epsilon in epsilons] == pytest.approx([value, value])


def test_ape_x_exploration_is_each_worker_s_own():
    config = Config(exploration="ape_x", num_workers=3)
    epsilons = [build.make_epsilon(config, worker)(12_345) for worker in range(3)]
    assert epsilons == pytest.approx([0.4**1, 0.4 ** (1 + 7 / 2), 0.4 ** (1 + 7)])


@pytest.mark.parametrize(("env", "network"), [("pong", "mlp"), ("CartPole-v1", "nips"), ("CartPole-v1", "nature")])
def test_a_network_that_does_not_fit_is_named(env, network):
    with pytest.raises(UserError, match=rf"--network={network} does not fit .*; use "):
        build.make_problem(Config(env=env, network=network))


def test_auto_chooses_the_network_by_the_observations():
    assert build.make_problem(Config(env="pong")).network.name == "nips"
    assert build.make_problem(Config(env="CartPole-v1")).network.name == "mlp"


def test_workers_draw_seeds_of_their_own_and_a_resumed_run_new_ones():
    config = Config(seed=3)
    seeds = {build.make_seeds(config, worker, step)[1] for worker in (0, 1) for step in (0, 500)}
    assert len(seeds) == 4
    assert build.make_seeds(config, 1, 0)[1] == build.make_seeds(config, 1, 0)[1]


@pytest.mark.parametrize(
    ("local_steps", "kind", "at_the_store"), [(0, GradientClient, "centered_rmsprop"), (4, DeltaClient, "add")]
)
def test_local_steps_decide_where_the_optimizer_is(local_steps, kind, at_the_store):
    config = Config(optimizer="centered_rmsprop", local_steps=local_steps)
    assert type(build.make_client(config, make_store())) is kind
    assert build.make_store_optimizer(config).name == at_the_store


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "centered_rmsprop"])
def test_workers_averages_forget_together_as_fast_as_one_optimizer_s(optimizer):
    config = Config(optimizer=optimizer, num_workers=2, local_steps=4, averages="shared")
    clients = [build.make_client(config, make_store([0])) for _ in range(config.num_workers)]
    alone = build.make_local_client(config, store := make_store([0], optimizer=build.make_optimizer(config)))
    for _ in range(5):  # all see the same gradient, one after the other
        for client in clients:
            client.consume(as_tensor(2), as_tensor(1)[0])
            alone.consume(as_tensor(2), as_tensor(1)[0])
    averages = {"m", "v", "ms", "mg"} & clients[0].slots().keys()
    assert averages
    for client, name in itertools.product(clients, averages):
        assert client.slots()[name] == pytest.approx(store.state()[f"slot/{name}"], rel=1e-4), name


@pytest.mark.parametrize(
    ("averages", "num_workers", "power"),
    [("own", 4, 1), ("shared", 2, 2), ("shared", 4, 4), ("auto", 1, 1), ("auto", 2, 1), ("auto", 3, 3), ("auto", 4, 4)],
)
def test_averages_are_shared_where_asked_and_by_more_than_two(averages, num_workers, power):
    config = Config(averages=averages, num_workers=num_workers, local_steps=4)
    slots = build.make_client(config, make_store([0])).slots()
    assert slots["beta_powers"] == pytest.approx([0.9**power, 0.999**power])  # as they begin


def test_the_optimizer_on_the_parameter_servers_is_one_for_all_workers():
    slots = build.make_store_optimizer(Config(num_workers=4, local_steps=0)).initial_slots(1)
    assert slots["beta_powers"] == pytest.approx([0.9, 0.999])


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("local_steps", [0, 2])
def test_a_worker_s_client_has_the_limits_of_the_settings(overlap, local_steps):
    config = Config(overlap=overlap, max_nonfinite=2, max_staleness=1, local_steps=local_steps, learning_rate=1.0)
    store = DroppingStore([0, 0], max_staleness=1)
    client = build.make_client(config, store)
    client.start()
    for _ in range(2):
        store.push(np.ones(2, np.float32), 0.0, Counters(updates=1), store.pull().counters.updates)
    for _ in range(local_steps or 1):
        minibatch(client, 1, 0)
    client.reject_minibatch()
    with pytest.raises(RunFailed):
        client.reject_minibatch()
    client.finish()
    assert client.stalenesses == []
    assert (client.counters.updates, client.counters.dropped, client.counters.nonfinite) == (2, 1, 2)


def test_the_baseline_s_client_works_on_the_store_itself():
    store = make_store(optimizer=optimizers.add())
    client = build.make_local_client(Config(max_nonfinite=1, local_steps=4), store)
    assert type(client) is LocalClient
    client.consume(as_tensor(1, 2), as_tensor(1)[0])
    assert store.pull().online.tolist() == [1, 2]
    with pytest.raises(RunFailed):
        client.reject_minibatch()


def test_a_worker_has_its_share_of_replay():
    config = make_config("cartpole", {"env": "CartPole-v1", "num_workers": 3, "envs_per_worker": 4})
    replay = build.make_replay(config, build.make_problem(config))
    assert (replay.num_envs, replay.slots_per_env) == (4, 30_000 // 3 // 4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_types_to_compute_and_to_travel_in_reach_network_and_client(dtype):
    config = Config(env="CartPole-v1", local_steps=2, compute_dtype=dtype, wire_dtype=dtype)
    problem, exact = (build.make_problem(one) for one in (config, Config(env="CartPole-v1")))
    store = make_store(build.initial_parameters(config, problem))
    client = build.make_client(config, store)
    client.start()
    assert client._take_delta()[0].dtype == dtype
    observation = np.full((1, 1, 4), 0.3, np.float32)
    found, expected = (
        one.network.apply(one.layout.unflatten(client.online), observation)["q_values"] for one in (problem, exact)
    )
    assert (found.numpy() == expected.numpy()).all() == (dtype == "float32")


@pytest.mark.parametrize(
    ("steps", "rates"),
    [
        (400, {0: 1e-3, 100: 8e-4, 200: 6e-4, 400: 2e-4, 401: 2e-4, 1000: 2e-4}),
        (0, {0: 1e-3, 250: 8e-4, 500: 6e-4, 1000: 2e-4}),  # over the whole run
    ],
)
def test_the_learning_rate_falls_in_a_straight_line(steps, rates):
    settings = {"learning_rate": 1e-3, "final_learning_rate": 2e-4, "learning_rate_steps": steps, "total_steps": 1000}
    schedule = build.make_learning_rate(Config(**settings))
    assert {step: schedule(step) for step in rates} == pytest.approx(rates)


def test_the_learning_rate_is_constant_where_no_final_one_is_given():
    schedule = build.make_learning_rate(Config(learning_rate=1e-3, learning_rate_steps=10))
    assert {schedule(step) for step in (0, 5, 10, 1000)} == {1e-3}
