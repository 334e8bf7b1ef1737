"""What all clients of a store share, and the client of a store in the same process.

Parameters and updates are small whole numbers, so that sums are exact in float32.
"""

import numpy as np
import pytest
from fakes import (
    FragileStore,
    delta_client,
    descent,
    gradient_client,
    local_client,
    make_store,
    minibatch,
)

from async_dqn.base.errors import Outage, RunError, RunFailed
from async_dqn.base.schedules import linear
from async_dqn.nn import optimizers
from async_dqn.store.base import Counters, EpisodeReport
from async_dqn.store.client import LocalClient

EVERY_CLIENT = pytest.mark.parametrize("make", [local_client, gradient_client, delta_client])


def online(client):
    return client.online.numpy().tolist()


def global_online(store):
    return store.pull().online.tolist()


@EVERY_CLIENT
def test_start_takes_both_networks_and_the_counters(make):
    store = make_store([1, 2])
    store.push(np.array([10, 10], np.float32), 0.0, Counters(env_steps=7, updates=1), 0)
    client = make(store)
    assert online(client) == [1 + 10, 2 + 10]
    assert client.target.numpy().tolist() == [1, 2]
    assert client.counters == Counters(env_steps=7, updates=1)
    assert client.env_steps == 7
    client.finish()


@EVERY_CLIENT
def test_claims_come_out_of_the_global_budget_and_report_what_was_counted(make):
    store = make_store(total_steps=20)
    a, b = make(store), make(store)
    assert (a.claim_steps(16), b.claim_steps(16), a.claim_steps(16)) == (16, 20 - 16, 0)
    a.count(env_steps=16, episodes=1)
    b.count(env_steps=4)
    assert (a.env_steps, b.env_steps) == (16, 4)
    a.claim_steps(1)
    b.claim_steps(1)
    assert b.env_steps == 16 + 4
    assert store.pull().counters == Counters(claimed_steps=20, env_steps=20, episodes=1)


@EVERY_CLIENT
def test_it_is_over_once_all_workers_together_have_taken_the_budget(make):
    store = make_store(total_steps=20)
    client = make(store)
    assert client.claim_steps(12) == 12
    store.claim_steps(8, Counters())
    client.count(env_steps=12)
    assert client.claim_steps(16) == 0
    assert not client.is_over  # another one holds the rest
    store.add_counts(Counters(env_steps=8))
    assert not client.is_over  # not heard of yet
    assert client.claim_steps(16) == 0
    assert client.is_over


@EVERY_CLIENT
@pytest.mark.parametrize("stopped", [1, 2, 3])
def test_it_is_over_once_the_run_was_stopped(make, stopped):
    store = make_store(total_steps=20)
    client = make(store)
    store.add_counts(Counters(stopped=stopped))
    assert client.claim_steps(16) == 0
    assert client.is_over
    assert client.counters.stopped == stopped


@EVERY_CLIENT
def test_unused_steps_are_given_back_at_the_end(make):
    store = make_store(total_steps=20)
    client = make(store)
    assert client.claim_steps(20) == 20
    client.count(claimed_steps=-5)
    client.finish()
    assert store.claim_steps(20, Counters())[0] == 5


@EVERY_CLIENT
def test_episodes_reach_the_store(make):
    store = make_store()
    game = EpisodeReport(1, 21.0, 800, 5_000, 0.5)
    make(store).report_episodes([game])
    assert store.take_episodes() == [game]


@EVERY_CLIENT
def test_rejected_minibatches_are_counted_and_change_nothing(make):
    store = make_store([1, 2])
    client = make(store, max_nonfinite=4)
    for _ in range(3):
        client.reject_minibatch()
    client.finish()
    assert store.pull().counters == Counters(minibatches=3, nonfinite=3)
    assert client.own_minibatches == 3
    assert client.stalenesses == []
    assert global_online(store) == [1, 2]


@EVERY_CLIENT
@pytest.mark.parametrize("allowed", [1, 3])
def test_one_rejected_minibatch_too_many_in_a_row_ends_the_run(make, allowed):
    client = make(make_store(), max_nonfinite=allowed)
    for _ in range(allowed - 1):
        client.reject_minibatch()
    with pytest.raises(RunFailed, match=f"^{allowed} minibatches in a row gave a loss, gradient or update that is not"):
        client.reject_minibatch()
    assert issubclass(RunFailed, RunError)


@EVERY_CLIENT
def test_a_finite_minibatch_starts_the_count_anew(make):
    store = make_store([0, 0])
    client = make(store, max_nonfinite=3)
    for _ in range(4):
        client.reject_minibatch()
        client.reject_minibatch()
        minibatch(client, 1, 0)
    client.reject_minibatch()
    client.reject_minibatch()
    with pytest.raises(RunFailed):
        client.reject_minibatch()
    client.finish()
    counters = store.pull().counters
    assert (counters.minibatches, counters.nonfinite, counters.updates) == (4 * 3 + 3, 4 * 2 + 3, 4)
    assert global_online(store) == [4, 0]


@EVERY_CLIENT
def test_an_outage_reaches_the_caller(make):
    store = FragileStore([0, 0])
    client = make(store)
    store.is_out = True
    for call in (lambda: client.claim_steps(4), lambda: minibatch(client, 1, 0), client.finish):
        with pytest.raises(Outage, match="ps 0 has ended"):
            call()


@EVERY_CLIENT
def test_learning_rate_follows_the_agent_steps_of_all_workers(make):
    store = make_store(optimizer=descent())
    client = make(store)
    client._learning_rate = linear(1.0, 0.0, begin=0, steps=100)
    assert client.current_learning_rate() == 1.0
    store.add_counts(Counters(env_steps=30))  # another worker's
    client.claim_steps(1)
    client.count(env_steps=20)
    assert client.current_learning_rate() == pytest.approx(1 - (30 + 20) / 100)


def test_the_local_client_computes_on_the_store_itself():
    store = make_store([0, 0], optimizer=descent())
    client = local_client(store, rate=0.5)
    assert client.online is store.online
    assert client.target is store.target
    for gradient, expected in [([4, 0], [-2, 0]), ([0, 8], [-2, -4]), ([2, 2], [-3, -5])]:
        minibatch(client, *gradient)
        assert online(client) == global_online(store) == expected
    assert client.stalenesses == [0, 0, 0]
    assert client.counters == store.pull().counters == Counters(minibatches=3, updates=3)
    assert client.clock.seconds()["waiting"] == 0
    assert client.slots() == {}


def test_the_local_client_shows_a_refreshed_target_at_once():
    store = make_store([0, 0])
    client = local_client(store)
    minibatch(client, 1, 2)
    assert client.target.numpy().tolist() == [0, 0]
    store.refresh_target()
    assert client.target.numpy().tolist() == [1, 2]
    minibatch(client, 4, 4)
    assert client.target.numpy().tolist() == [1, 2]
    assert client.counters.target_refreshes == 1


@pytest.mark.parametrize("optimizer", [optimizers.adam(), optimizers.rmsprop(), descent()], ids=lambda o: o.name)
def test_the_local_client_gives_the_numbers_of_a_travelling_one(optimizer):
    stores = [make_store([1, 2, 3], optimizer=optimizer) for _ in range(2)]
    clients = [
        LocalClient(stores[0], linear(0.5, 0.1, begin=0, steps=20), max_nonfinite=3),
        gradient_client(stores[1]),
    ]
    clients[1]._learning_rate = clients[0]._learning_rate
    clients[0].start()
    rng = np.random.default_rng(0)
    for number in range(12):
        gradient = rng.normal(size=3)
        for store, client in zip(stores, clients, strict=True):
            client.count(env_steps=2)
            client.claim_steps(2)
            if number % 5 == 3:
                client.reject_minibatch()
            else:
                minibatch(client, *gradient)
            if number == 6:
                store.refresh_target()
        assert online(clients[0]) == online(clients[1])
    for client in clients:
        client.finish()
    expected, found = (store.state() for store in stores)
    assert expected.keys() == found.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert clients[0].stalenesses == clients[1].stalenesses == [0] * 10
    assert clients[0].counters == clients[1].counters == stores[0].pull().counters
    assert clients[0].own_minibatches == clients[1].own_minibatches == 12
