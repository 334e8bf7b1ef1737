"""What both clients of parameter servers share: overlap, targets, outages.

Parameters and updates are small whole numbers, so that sums are exact in float32.
"""

import threading

import pytest
from fakes import (
    FragileStore,
    GatedStore,
    RecordingStore,
    as_tensor,
    delta_client,
    global_online,
    gradient_client,
    minibatch,
    online,
    push,
)

from async_dqn.base.errors import Outage
from async_dqn.store.base import Counters
from async_dqn.store.round_trip import RoundTripClient

BOTH = pytest.mark.parametrize("make", [gradient_client, delta_client])
OVERLAP = pytest.mark.parametrize("overlap", [False, True])


def target(client):
    return client.target["q"].numpy().tolist()


@BOTH
def test_computation_goes_on_while_a_push_is_under_way(make):
    store = GatedStore([0, 0])
    client = make(store, overlap=True)
    minibatch(client, 1, 0)
    assert store.arrived.wait(30)
    client.consume([as_tensor(0, 2)], client.rates())  # the push is still under way
    assert global_online(store) == [0, 0]
    store.gate.set()
    client.after_minibatch()
    client.finish()
    assert global_online(store) == [1, 2]
    assert client.stalenesses == [0, 1]  # the second was computed before the first came back
    assert store.pull().counters == Counters(minibatches=2, updates=2, staleness_sum=1, staleness_max=1)


@BOTH
def test_the_bytes_of_update_parameters_and_target_are_counted(make):
    client = make(RecordingStore([0, 0], target_period=2))
    minibatch(client, 1, 0)
    minibatch(client, 1, 0)
    client.finish()
    assert client.exchanged_bytes == 2 * (8 + 8) + 8  # two updates, two pulls and a refresh, each of two float32


@BOTH
def test_the_target_is_pulled_once_after_each_refresh_whoever_caused_it(make):
    store = RecordingStore([0, 0], target_period=3)
    client = make(store)
    store.requests.clear()
    minibatch(client, 1, 0)
    assert target(client) == [0, 0]
    push(store, 8, 0, minibatches=2)  # another's
    minibatch(client, 0, 2)
    assert target(client) == [1 + 8, 0]
    minibatch(client, 4, 4)
    assert target(client) == [1 + 8, 0]
    minibatch(client, 16, 0)  # its own sixth
    assert target(client) == [1 + 8 + 4 + 16, 2 + 4]
    assert store.requests.count(("target",)) == 2
    assert client.counters.target_refreshes == 2


def test_a_refresh_before_the_start_is_not_pulled_again():
    store = RecordingStore([0, 0], target_period=2)
    push(store, 0, 0, minibatches=2)
    client = gradient_client(store)
    store.requests.clear()
    minibatch(client, 1, 0)
    assert ("target",) not in store.requests


@OVERLAP
def test_an_error_of_a_round_trip_reaches_the_agent(overlap):
    class BrokenStore(GatedStore):
        def push_pull(self, *arguments):
            raise ConnectionError("gone")

    client = gradient_client(BrokenStore([0, 0]), overlap=overlap)
    with pytest.raises(ConnectionError, match="gone"):
        minibatch(client, 1, 0)
        client.finish()


def break_down(store, client, *update):
    """Minibatches until the client hears that the store is out of reach."""
    store.is_out = True
    with pytest.raises(Outage):
        for _ in range(3):  # beside the computation, an outage is heard of later
            client.count(env_steps=4)
            minibatch(client, *update)
    client.abandon_round_trip(30.0)


PERIODS = [
    pytest.param(gradient_client, id="gradient"),
    pytest.param(delta_client, id="delta-1"),
    pytest.param(lambda store, **options: delta_client(store, local_steps=2, **options), id="delta-2"),
]


@pytest.mark.parametrize("make", PERIODS)
@OVERLAP
def test_after_an_outage_without_loss_everything_is_counted_once(make, overlap):
    store = FragileStore([0, 0])
    client = make(store, overlap=overlap)
    for _ in range(5):
        client.count(env_steps=4)
        minibatch(client, 1, 0)
    client.claim_steps(0)
    break_down(store, client, 0, 1_000)
    store.settle()
    push(store, 100, 0)  # another worker went on
    client.restart(rolled_back=False)
    # Nothing is left of the steps that were not pushed.
    assert online(client) == global_online(store)
    before = global_online(store)
    taken = client.own_minibatches * 4
    for _ in range(6):
        client.count(env_steps=4)
        minibatch(client, 10, 0)
    client.finish()
    assert global_online(store) == [before[0] + 6 * 10, 0]  # the update that was out of reach is gone
    counters = store.pull().counters
    assert counters.minibatches == client.own_minibatches
    assert counters.env_steps == taken + 6 * 4
    assert client.counters == counters


@pytest.mark.parametrize("make", PERIODS)
@OVERLAP
def test_after_an_outage_with_a_restore_nothing_of_before_is_counted(make, overlap):
    store = FragileStore([0, 0], total_steps=100, target_period=50)
    push(store, 1, 2, env_steps=8, claimed_steps=8)
    saved = store.state()
    push(store, 4, 8, env_steps=40, claimed_steps=40, minibatches=50)
    client = make(store, overlap=overlap)
    assert client.claim_steps(20) == 20
    for _ in range(3):
        client.count(env_steps=4)
        minibatch(client, 1, 0)
    break_down(store, client, 0, 1_000)
    client.count(claimed_steps=-4)  # what the loop gives back
    store.roll_back(saved)
    client.restart(rolled_back=True)
    assert online(client) == [1, 2]
    assert target(client) == [0, 0]
    assert client.counters == Counters(updates=1, env_steps=8, claimed_steps=8)
    assert client.env_steps == 8
    for _ in range(6):
        minibatch(client, 10, 0)
    client.finish()
    counters = store.pull().counters
    assert (counters.env_steps, counters.claimed_steps, counters.minibatches) == (8, 8, 6)
    assert global_online(store) == [1 + 6 * 10, 2]
    assert online(client)[1] == 2


@OVERLAP
def test_the_target_is_pulled_anew_after_a_restart(overlap):
    store = FragileStore([0, 0], target_period=100)
    client = gradient_client(store, overlap=overlap)
    break_down(store, client, 0, 1_000)
    store.settle()
    push(store, 7, 7, minibatches=100)
    client.restart(rolled_back=False)
    assert target(client) == [7, 7]


@BOTH
def test_abandoning_a_round_trip_waits_until_it_has_come_to_its_end(make):
    store = GatedStore([0, 0])
    client = make(store, overlap=True)
    client.abandon_round_trip(0.0)  # there may be none
    minibatch(client, 1, 0)
    assert store.arrived.wait(30)
    client.abandon_round_trip(0.01)  # no longer than its deadline
    returned = threading.Event()

    def abandon():
        client.abandon_round_trip(30.0)
        returned.set()

    threading.Thread(target=abandon, daemon=True).start()
    assert not returned.wait(0.2)  # the push is still under way
    store.gate.set()
    assert returned.wait(30)
    assert store.pull().counters.updates == 1
    client.restart(rolled_back=False)
    assert online(client) == [1, 0]


def make_acting(**options):
    store = RecordingStore([1, 2], **options)
    client = RoundTripClient(store, overlap=False, max_nonfinite=10, max_staleness=0)
    client.start()
    return store, client


def test_an_acting_worker_s_copy_stays_as_it_is_until_it_pulls():
    store, client = make_acting()
    assert online(client) == [1, 2] and client.version == 0
    push(store, 5, 5)
    assert online(client) == [1, 2] and client.version == 0
    client.pull()
    assert online(client) == global_online(store) == [6, 7] and client.version == 1


def test_an_acting_worker_s_pull_reports_what_is_counted_and_pushes_nothing():
    store, client = make_acting()
    client.count(env_steps=3)
    assert client.env_steps == 3
    client.pull()
    client.finish()
    assert client.counters.env_steps == client.env_steps == store.pull().counters.env_steps == 3
    assert (store.pull().counters.updates, store.pushes) == (0, [])
    assert client.stalenesses == [] and client.slots() == {}


def test_an_acting_worker_hears_of_a_new_target():
    store, client = make_acting(target_period=2)
    push(store, 1, 1, minibatches=2)
    client.pull()
    assert target(client) == [2, 3]
