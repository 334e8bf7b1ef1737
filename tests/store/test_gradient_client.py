"""The client that pushes gradients, against sequences worked out by hand."""

import pytest
from fakes import (
    DroppingStore,
    RecordingStore,
    descent,
    global_online,
    gradient_client,
    make_store,
    minibatch,
    online,
    push,
)

from async_dqn.base.schedules import linear
from async_dqn.store.base import Counters


@pytest.mark.parametrize("overlap", [False, True])
def test_every_minibatch_is_pushed_and_pulled(overlap):
    store = RecordingStore([0, 0], optimizer=descent(), rate=0.5)
    client = gradient_client(store, overlap=overlap)
    store.requests.clear()
    for gradient in ([1, 0], [0, 2], [4, 0]):
        minibatch(client, *gradient)
    client.finish()
    gradients = [("push", [1, 0], 0.5), ("push", [0, 2], 0.5), ("push", [4, 0], 0.5)]
    assert store.requests == [request for one in gradients for request in (one, ("pull",))]
    assert online(client) == global_online(store) == [-0.5 * (1 + 4), -0.5 * 2]
    assert client.slots() == {}


def test_staleness_is_what_others_pushed_between_pull_and_push():
    store = make_store([0, 0])
    client = gradient_client(store)
    for others in (0, 1, 2):
        for _ in range(others):
            push(store, 100, 0)
        minibatch(client, 1, 0)
    assert client.stalenesses == [0, 1, 2]
    client.finish()
    assert store.pull().counters == Counters(minibatches=3, updates=3 + 3, staleness_sum=0 + 1 + 2, staleness_max=2)
    assert online(client) == [3 * 1 + 3 * 100, 0]


def test_rates_go_with_the_pushes():
    store = RecordingStore([0, 0], optimizer=descent())
    store.modules[0] = store.modules[0]._replace(rate=linear(1.0, 0.0, begin=0, steps=100))
    client = gradient_client(store)
    store.add_counts(Counters(env_steps=30))  # another worker's
    minibatch(client, 1, 0)
    client.count(env_steps=20)
    minibatch(client, 1, 0)
    rates = [request[2] for request in store.requests if request[0] == "push"]
    assert rates == pytest.approx([1.0, 1 - (30 + 20) / 100])


def test_counts_are_reported_once_by_push_or_at_the_end():
    store = make_store()
    client = gradient_client(store)
    for steps, reported in [(5, 5), (6, 5 + 6)]:
        client.count(env_steps=steps)
        minibatch(client, 1, 0)
        assert store.pull().counters.env_steps == reported == client.env_steps
    client.count(env_steps=7)
    client.finish()
    assert store.pull().counters == Counters(env_steps=5 + 6 + 7, minibatches=2, updates=2)


@pytest.mark.parametrize(
    ("overlap", "max_staleness", "stalenesses", "applied"),
    [
        (False, 0, [2, 0], 1 + 10),
        (False, 1, [0], 10),
        (False, 2, [2, 0], 1 + 10),
        # Beside the computation, the second is computed before the first is back, on the pull at the start.
        (True, 0, [2, 2 + 1], 1 + 10),
        (True, 1, [], 0),
        (True, 2, [2], 1),
    ],
)
def test_a_dropped_update_is_no_update_of_the_client(overlap, max_staleness, stalenesses, applied):
    store = DroppingStore([0, 0], max_staleness or 1_000)
    client = gradient_client(store, overlap=overlap, max_staleness=max_staleness)
    for _ in range(2):
        push(store, 100, 0, computed_on=store.pull().counters.updates)
    minibatch(client, 0, 1)  # two updates came in since its pull
    client.abandon_round_trip(30.0)  # waits until it is back
    minibatch(client, 0, 10)
    client.finish()
    assert client.stalenesses == stalenesses
    assert client.counters == Counters(
        minibatches=2,
        updates=2 + len(stalenesses),
        dropped=2 - len(stalenesses),
        staleness_sum=sum(stalenesses),
        staleness_max=max(stalenesses, default=0),
    )
    assert client.counters == store.pull().counters
    assert global_online(store) == [2 * 100, applied]


def test_where_the_store_drops_all_that_is_stale_no_update_of_the_client_ever_was():
    store = DroppingStore([0, 0], 0)
    client = gradient_client(store, drops_stale=True)
    push(store, 100, 0)
    for gradient in (1, 10):
        minibatch(client, 0, gradient)
    client.finish()
    assert client.stalenesses == [0]
    assert client.counters == Counters(minibatches=2, updates=2, dropped=1) == store.pull().counters
    assert global_online(store) == online(client) == [100, 10]
