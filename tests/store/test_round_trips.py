"""A worker's trips, against sequences worked out by hand.

Parameters and updates are small whole numbers, so that sums are exact in float32.
"""

import threading

import numpy as np
import pytest
from fakes import (
    DroppingStore,
    FragileStore,
    GatedStore,
    RecordingStore,
    as_tensor,
    delta_client,
    descent,
    gradient_client,
    heavy_ball,
    make_store,
    minibatch,
)

from async_dqn.base.errors import Outage, RunFailed
from async_dqn.base.schedules import linear
from async_dqn.nn import optimizers
from async_dqn.nn.aligned import aligned_empty
from async_dqn.store.base import Counters

BOTH = pytest.mark.parametrize("make", [gradient_client, delta_client])
OVERLAP = pytest.mark.parametrize("overlap", [False, True])
HUGE = 3e38  # twice as much is no float32


def online(client):
    return client.online.numpy().tolist()


def global_online(store):
    return store.pull().online.tolist()


@pytest.mark.parametrize(
    ("push_period", "pull_period", "trips"),
    [
        (1, 1, [("push", [1, 0], 0.5), ("pull",), ("push", [0, 2], 0.5), ("pull",), ("push", [4, 0], 0.5), ("pull",)]),
        (1, 3, [("push", [1, 0], 0.5), ("push", [0, 2], 0.5), ("push", [4, 0], 0.5), ("pull",)]),
        (3, 1, [("pull",), ("pull",), ("push", [1 + 4, 2], 0.5), ("pull",)]),
        (2, 2, [("push", [1, 2], 0.5), ("pull",), ("push", [4, 0], 0.5)]),
        (2, 3, [("push", [1, 2], 0.5), ("pull",), ("push", [4, 0], 0.5)]),
    ],
)
@pytest.mark.parametrize("overlap", [False, True])
def test_gradients_are_summed_pushed_and_pulled_in_their_periods(push_period, pull_period, trips, overlap):
    store = RecordingStore([0, 0], descent())
    client = gradient_client(store, push_period=push_period, pull_period=pull_period, rate=0.5, overlap=overlap)
    store.trips.clear()
    for gradient in ([1, 0], [0, 2], [4, 0]):
        minibatch(client, *gradient)
    client.finish()
    assert store.trips == trips
    assert global_online(store) == [-0.5 * (1 + 4), -0.5 * 2]


@pytest.mark.parametrize(
    ("pull_period", "seen"),
    [(1, [[-1, 0], [-1, -2], [-5, -2], [-5, -10]]), (2, [[0, 0], [-1, -2], [-1, -2], [-5, -10]])],
)
def test_online_moves_only_when_pulled(pull_period, seen):
    client = gradient_client(make_store([0, 0], optimizer=descent()), pull_period=pull_period)
    found = []
    for gradient in ([1, 0], [0, 2], [4, 0], [0, 8]):
        minibatch(client, *gradient)
        found.append(online(client))
    assert found == seen


def test_finish_pushes_the_gradients_that_wait_for_their_period():
    store = make_store([0, 0], optimizer=descent())
    client = gradient_client(store, push_period=3, pull_period=3)
    for _ in range(5):
        minibatch(client, 1, 10)
    assert global_online(store) == [-3, -30]
    client.finish()
    assert global_online(store) == [-5, -50]
    assert store.pull().counters.updates == 2


def test_staleness_is_what_others_pushed_between_pull_and_push():
    store = make_store([0, 0])
    client = gradient_client(store, pull_period=2)
    other = np.array([100, 0], np.float32)
    minibatch(client, 1, 0)  # nothing since the pull at the start
    store.push(other, 0.0, Counters(updates=1), 0)
    minibatch(client, 1, 0)  # its own first one, and the other's
    store.push(other, 0.0, Counters(updates=1), 0)
    store.push(other, 0.0, Counters(updates=1), 0)
    minibatch(client, 1, 0)  # pulled after the last; two of the other
    assert client.stalenesses == [0, 1 + 1, 2]
    client.finish()
    counters = store.pull().counters
    assert (counters.staleness_sum, counters.staleness_max) == (0 + 2 + 2, 2)
    assert (counters.updates, counters.minibatches) == (3 + 3, 3)


def test_staleness_of_summed_gradients_counts_from_the_pull_of_the_first():
    store = make_store([0, 0])
    client = gradient_client(store, push_period=2, pull_period=1)
    store.push(np.ones(2, np.float32), 0.0, Counters(updates=1), 0)
    minibatch(client, 1, 0)  # computed on the pull at the start; pulls again, but does not push
    minibatch(client, 1, 0)
    assert client.stalenesses == [1]


def test_delta_client_steps_its_own_copy_and_pushes_the_difference():
    store = RecordingStore([10, 20], optimizers.add())
    client = delta_client(store, local_steps=3, optimizer=descent())
    store.trips.clear()
    seen = []
    for gradient in ([1, 0], [0, 2], [4, 0], [1, 1]):
        minibatch(client, *gradient)
        seen.append(online(client))
    assert seen == [[10 - 1, 20], [10 - 1, 20 - 2], [10 - 1 - 4, 20 - 2], [10 - 1 - 4 - 1, 20 - 2 - 1]]
    assert store.trips == [("push", [-1 - 4, -2], 1.0), ("pull",)]
    client.finish()
    assert store.trips[2:] == [("push", [-1, -1], 1.0)]
    assert global_online(store) == [10 - 1 - 4 - 1, 20 - 2 - 1]


def test_what_rounding_takes_off_a_delta_is_pushed_with_the_next():
    store = RecordingStore([0, 0], optimizers.add())
    client = delta_client(store, wire_dtype="bfloat16")  # 8 significant bits: beyond 256 even numbers only
    store.trips.clear()
    minibatch(client, 257, 3)
    assert store.trips[0] == ("push", [256, 3], 1.0)
    assert (online(client), global_online(store)) == ([257, 3], [256, 3])
    minibatch(client, 1, 0)
    assert ("push", [1 + 1, 0], 1.0) in store.trips
    assert online(client) == global_online(store) == [258, 3]


def test_deltas_of_float32_are_not_rounded():
    store = RecordingStore([0, 0], optimizers.add())
    minibatch(delta_client(store), 257, 2**24 - 1)
    assert global_online(store) == [257, 2**24 - 1]


@OVERLAP
def test_an_optimizer_leaves_what_came_back_alone_though_the_copy_may_lie_in_its_memory(overlap, monkeypatch):
    store, came_back = make_store(np.zeros(64)), []
    pull = store.pull

    def pull_to_aligned_memory():
        pulled = pull()
        came_back.append(aligned_empty((64,), np.float32))
        came_back[-1][:] = pulled.online
        return pulled._replace(online=came_back[-1])

    monkeypatch.setattr(store, "pull", pull_to_aligned_memory)
    client = delta_client(store, local_steps=2, optimizer=descent(), overlap=overlap)
    for _ in range(4):
        minibatch(client, *range(64))
    client.finish()
    assert online(client) == global_online(store) == [-4 * value for value in range(64)]
    for array, steps_taken in zip(came_back[:3], (0, 2, 4), strict=True):  # at the start, after each trip
        assert array.tolist() == [-steps_taken * value for value in range(64)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("steps_a", "steps_b"), [(1, 1), (2, 3), (4, 3)])
def test_no_step_of_two_delta_clients_is_lost_or_counted_twice(steps_a, steps_b, overlap):
    store = make_store([1, 2])
    a = delta_client(store, local_steps=steps_a, overlap=overlap)
    b = delta_client(store, local_steps=steps_b, overlap=overlap)
    rng = np.random.default_rng(0)
    total = np.array([1, 2])
    for _ in range(40):
        client = a if rng.random() < 0.5 else b
        update = rng.integers(-9, 10, 2)
        minibatch(client, *update)
        total += update
    a.finish()
    b.finish()
    assert global_online(store) == total.tolist()
    assert store.pull().counters.minibatches == 40


def test_what_another_client_pushed_arrives_with_the_next_trip():
    store = make_store([0, 0])
    client = delta_client(store, local_steps=2)
    store.push(np.array([100, 0], np.float32), 0.0, Counters(updates=1), 0)
    minibatch(client, 1, 1)
    assert online(client) == [1, 1]
    minibatch(client, 1, 1)
    assert online(client) == [100 + 2, 2]
    assert client.stalenesses == [1]


@BOTH
def test_computation_goes_on_while_a_push_is_under_way(make):
    store = GatedStore([0, 0])
    client = make(store, overlap=True)
    minibatch(client, 1, 0)
    assert store.arrived.wait(30)
    client.consume(as_tensor(0, 2), as_tensor(1)[0])  # the push still stands at the gate
    assert global_online(store) == [0, 0]
    store.gate.set()
    client.after_minibatch()
    client.finish()
    assert global_online(store) == [1, 2]
    assert client.stalenesses == [0, 1]  # the second was computed before the first came back
    assert store.pull().counters == Counters(minibatches=2, updates=2, staleness_sum=1, staleness_max=1)


def test_local_steps_taken_during_a_trip_stay_on_top_of_what_it_brings():
    store = GatedStore([0, 0])
    client = delta_client(store, local_steps=2, overlap=True)
    minibatch(client, 1, 0)
    minibatch(client, 2, 0)
    assert store.arrived.wait(30)  # a delta of 3 stands at the gate
    client.consume(as_tensor(0, 5), as_tensor(1)[0])
    assert online(client) == [1 + 2, 5]
    super(GatedStore, store).push(np.array([100, 0], np.float32), 0.0, Counters(updates=1), 0)
    store.gate.set()
    client.after_minibatch()  # it may be back or not
    minibatch(client, 0, 7)  # the next push waits until it is
    client.finish()
    assert online(client) == global_online(store) == [100 + 1 + 2, 5 + 7]
    assert client.stalenesses[0] == 1


@BOTH
def test_target_is_fetched_once_after_each_refresh(make):
    store = RecordingStore([0, 0], optimizers.add())
    client = make(store)
    store.trips.clear()
    minibatch(client, 1, 0)
    assert client.target.numpy().tolist() == [0, 0]
    store.refresh_target()
    minibatch(client, 0, 2)
    assert client.target.numpy().tolist() == [1, 0]
    minibatch(client, 4, 4)
    assert client.target.numpy().tolist() == [1, 0]
    assert store.trips.count(("target",)) == 1
    client.finish()


def test_a_refresh_before_the_start_is_not_fetched_again():
    store = RecordingStore([0, 0], optimizers.add())
    store.refresh_target()
    client = gradient_client(store)
    store.trips.clear()
    minibatch(client, 1, 0)
    assert ("target",) not in store.trips


def test_counts_are_reported_once_by_push_or_at_the_end():
    store = make_store()
    client = gradient_client(store, push_period=2, pull_period=2)
    client.count(env_steps=5)
    minibatch(client, 1, 0)
    assert store.pull().counters == Counters()
    client.count(env_steps=6)
    minibatch(client, 1, 0)
    assert store.pull().counters == Counters(env_steps=5 + 6, minibatches=2, updates=1)
    client.count(env_steps=7)
    client.finish()
    assert store.pull().counters == Counters(env_steps=5 + 6 + 7, minibatches=2, updates=1)
    assert client.own_minibatches == 2


def test_learning_rate_follows_the_agent_steps_of_all_workers():
    store = RecordingStore([0, 0], descent())
    client = gradient_client(store)
    client._learning_rate = linear(1.0, 0.0, begin=0, steps=100)
    store.add_counts(Counters(env_steps=30))  # another worker's
    minibatch(client, 1, 0)
    client.count(env_steps=20)
    minibatch(client, 1, 0)
    rates = [trip[2] for trip in store.trips if trip[0] == "push"]
    assert rates == pytest.approx([1.0, 1 - (30 + 20) / 100])


def test_delta_client_keeps_its_optimizer_slots_over_a_restore():
    store_a, store_b = make_store([0, 0]), make_store([0, 0])
    a = delta_client(store_a, local_steps=1, optimizer=optimizers.adam())
    for _ in range(3):
        minibatch(a, 1, -2)
    store_b.restore(store_a.state())
    b = delta_client(store_b, local_steps=1, optimizer=optimizers.adam())
    b.restore_slots(a.slots())
    for client in (a, b):
        minibatch(client, -3, 5)
    assert online(b) == online(a) != [0, 0]
    assert a.slots().keys() == {"m", "v", "beta_powers"}


def test_gradient_client_has_no_slots():
    assert gradient_client(make_store()).slots() == {}


@pytest.mark.parametrize("overlap", [False, True])
def test_an_error_of_a_trip_reaches_the_agent(overlap):
    class BrokenStore(GatedStore):
        def push(self, *arguments):
            raise ConnectionError("gone")

    client = gradient_client(BrokenStore([0, 0]), overlap=overlap)
    with pytest.raises(ConnectionError, match="gone"):
        minibatch(client, 1, 0)
        client.finish()


def test_trips_that_only_pull_lose_no_counts():
    store = make_store()
    client = gradient_client(store, push_period=2, pull_period=1)
    for _ in range(2):
        client.count(env_steps=4)
        minibatch(client, 1, 0)
    client.finish()
    assert store.pull().counters == Counters(env_steps=2 * 4, minibatches=2, updates=1)


def test_agent_steps_never_fall():
    client = gradient_client(make_store(), pull_period=2)
    client.count(env_steps=4)
    minibatch(client, 1, 0)
    assert client.env_steps == 4


@pytest.mark.parametrize(("max_staleness", "dropped"), [(0, 0), (1, 1), (2, 0)])
@OVERLAP
def test_a_dropped_update_is_no_update_of_the_client(max_staleness, dropped, overlap):
    store = DroppingStore([0, 0], max_staleness or 1_000)
    client = gradient_client(store, pull_period=2, overlap=overlap, max_staleness=max_staleness)
    minibatch(client, 1, 0)
    client._finish_trip()
    store.push(np.array([100, 0], np.float32), 0.0, Counters(updates=1), 1)
    minibatch(client, 0, 1)  # its own first update and the other's came in since its pull: a staleness of 2
    client._finish_trip()
    assert client.stalenesses == [0, 2][: 2 - dropped]
    assert (client.counters.updates, client.counters.dropped) == (3 - dropped, dropped)
    minibatch(client, 0, 10)
    client.finish()
    expected = Counters(
        minibatches=3,
        updates=4 - dropped,
        dropped=dropped,
        staleness_sum=2 - 2 * dropped,
        staleness_max=2 - 2 * dropped,
    )
    assert client.counters == store.pull().counters == expected
    assert global_online(store) == [1 + 100, (1 - dropped) + 10]


def test_a_client_whose_delta_was_dropped_goes_on_from_what_it_pulled():
    store = DroppingStore([0, 0], 1)
    client = delta_client(store, local_steps=2, max_staleness=1)
    for _ in range(2):
        store.push(np.array([100, 0], np.float32), 0.0, Counters(updates=1), store.pull().counters.updates)
    minibatch(client, 1, 0)
    minibatch(client, 2, 0)
    assert online(client) == global_online(store) == [200, 0]
    assert client.stalenesses == []
    minibatch(client, 0, 4)
    minibatch(client, 0, 8)
    assert online(client) == global_online(store) == [200, 4 + 8]
    client.finish()
    assert store.pull().counters == Counters(minibatches=4, updates=2 + 1, dropped=1)


def break_down(store, client, *update):
    """Minibatches until the client hears that the store is out of reach."""
    store.is_out = True
    with pytest.raises(Outage):
        for _ in range(3):  # beside the computation, an outage is heard of later
            client.count(env_steps=4)
            minibatch(client, *update)
    client.abandon_trip(30.0)


PERIODS = [
    pytest.param(lambda store, **kw: gradient_client(store, **kw), id="gradient"),
    pytest.param(lambda store, **kw: gradient_client(store, push_period=3, pull_period=2, **kw), id="gradient-3-2"),
    pytest.param(lambda store, **kw: delta_client(store, local_steps=1, **kw), id="delta-1"),
    pytest.param(lambda store, **kw: delta_client(store, local_steps=2, **kw), id="delta-2"),
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
    store.push(np.array([100, 0], np.float32), 0.0, Counters(updates=1), 0)  # another worker went on
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
    store = FragileStore([0, 0], total_steps=100)
    store.push(np.array([1, 2], np.float32), 0.0, Counters(updates=1, env_steps=8, claimed_steps=8), 0)
    saved = store.state()
    store.push(np.array([4, 8], np.float32), 0.0, Counters(updates=1, env_steps=40, claimed_steps=40), 0)
    store.refresh_target()
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
    assert client.target.numpy().tolist() == [0, 0]
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
def test_the_target_is_fetched_anew_after_a_restart(overlap):
    store = FragileStore([0, 0])
    client = gradient_client(store, overlap=overlap)
    break_down(store, client, 0, 1_000)
    store.settle()
    store.push(np.array([7, 7], np.float32), 0.0, Counters(updates=1), 0)
    store.refresh_target()
    client.restart(rolled_back=False)
    assert client.target.numpy().tolist() == [7, 7]


@BOTH
def test_abandoning_a_trip_waits_until_it_has_come_to_its_end(make):
    store = GatedStore([0, 0])
    client = make(store, overlap=True)
    minibatch(client, 1, 0)
    assert store.arrived.wait(30)
    client.abandon_trip(0.01)  # no longer than its deadline
    returned = threading.Event()

    def abandon():
        client.abandon_trip(30.0)
        returned.set()

    threading.Thread(target=abandon, daemon=True).start()
    assert not returned.wait(0.2)  # the trip still stands at the gate
    store.gate.set()
    assert returned.wait(30)
    assert store.pull().counters.updates == 1
    client.restart(rolled_back=False)
    assert online(client) == [1, 0]


@BOTH
def test_there_may_be_no_trip_to_abandon(make):
    client = make(make_store())
    client.abandon_trip(0.0)
    minibatch(client, 1, 0)
    client.abandon_trip(0.0)


@OVERLAP
def test_a_delta_that_is_not_finite_is_not_pushed(overlap):
    store = RecordingStore([1, 2], optimizers.add())
    client = delta_client(store, local_steps=2, optimizer=heavy_ball(), overlap=overlap)
    minibatch(client, HUGE, 0)
    minibatch(client, HUGE, 0)
    client._finish_trip()
    assert [trip for trip in store.trips if trip[0] == "push"] == []
    assert online(client) == [1, 2]  # its base
    assert client.slots()["sum"].tolist() == [0, 0]
    minibatch(client, 1, 0)
    minibatch(client, 0, 1)
    client.finish()
    assert global_online(store) == [1 + 1 + 1, 2 + 1]
    assert store.pull().counters == Counters(minibatches=4, updates=1, nonfinite=1)
    assert client.stalenesses == [0]


def test_what_others_did_arrives_although_the_delta_was_not_finite():
    store = make_store([1, 2])
    client = delta_client(store, local_steps=2, optimizer=heavy_ball())
    store.push(np.array([100, 0], np.float32), 0.0, Counters(updates=1), 0)
    minibatch(client, HUGE, 0)
    minibatch(client, HUGE, 0)
    assert online(client) == global_online(store) == [1 + 100, 2]


@OVERLAP
def test_too_many_deltas_in_a_row_that_are_not_finite_end_the_run(overlap):
    store = make_store([0, 0])
    client = delta_client(store, local_steps=2, optimizer=heavy_ball(), max_nonfinite=3, overlap=overlap)

    def overflow():
        minibatch(client, HUGE, 0)
        minibatch(client, HUGE, 0)

    for _ in range(2):
        overflow()
        overflow()
        minibatch(client, 1, 0)
        minibatch(client, 0, 0)
    overflow()
    overflow()
    with pytest.raises(RunFailed, match="^3 minibatches in a row"):
        overflow()
    assert np.isfinite(global_online(store)).all()
    assert np.isfinite(online(client)).all()


def test_a_copy_that_overflowed_between_two_pushes_finds_back_to_its_base():
    # Once the copy is not finite, every loss on it is not finite either, and rejected minibatches bring no push nearer.
    store = make_store([1, 2])
    client = delta_client(store, local_steps=4, optimizer=heavy_ball(), max_nonfinite=10)
    minibatch(client, HUGE, 0)
    minibatch(client, HUGE, 0)
    assert not np.isfinite(online(client)).all()
    for _ in range(8):
        if not np.isfinite(online(client)).all():
            client.reject_minibatch()
    assert online(client) == [1, 2]
