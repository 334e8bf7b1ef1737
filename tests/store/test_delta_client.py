"""The client that steps its own copy, against sequences worked out by hand."""

import numpy as np
import pytest
from fakes import (
    DroppingStore,
    GatedStore,
    RecordingStore,
    as_tensor,
    delta_client,
    descent,
    global_online,
    heavy_ball,
    make_module,
    make_store,
    minibatch,
    online,
    push,
)

from async_dqn.base.errors import RunFailed
from async_dqn.nn import optimizers
from async_dqn.nn.aligned import aligned_empty
from async_dqn.store.base import Counters
from async_dqn.store.delta_client import DeltaClient
from async_dqn.store.local import LocalParameterStore

OVERLAP = pytest.mark.parametrize("overlap", [False, True])
HUGE = 3e38  # twice as much is no float32


def test_it_steps_its_own_copy_and_pushes_the_difference():
    store = RecordingStore([10, 20])
    client = delta_client(store, local_steps=3, optimizer=descent())
    store.requests.clear()
    seen = []
    for gradient in ([1, 0], [0, 2], [4, 0], [1, 1]):
        minibatch(client, *gradient)
        seen.append(online(client))
    assert seen == [[10 - 1, 20], [10 - 1, 20 - 2], [10 - 1 - 4, 20 - 2], [10 - 1 - 4 - 1, 20 - 2 - 1]]
    assert store.requests == [("push", [-1 - 4, -2], 1.0), ("pull",)]
    client.finish()
    assert store.requests[2:] == [("push", [-1, -1], 1.0)]
    assert global_online(store) == [10 - 1 - 4 - 1, 20 - 2 - 1]


def test_what_rounding_takes_off_a_delta_is_pushed_with_the_next():
    store = RecordingStore([0, 0])
    client = delta_client(store, wire_dtype="bfloat16")  # 8 significant bits: beyond 256 even numbers only
    minibatch(client, 257, 3)
    assert store.pushes == [[256, 3]]
    assert (online(client), global_online(store)) == ([257, 3], [256, 3])
    minibatch(client, 1, 0)
    assert store.pushes[1:] == [[1 + 1, 0]]
    assert online(client) == global_online(store) == [258, 3]


@pytest.mark.parametrize(("wire_dtype", "is_trained"), [("float32", True), ("bfloat16", False)])
def test_deltas_of_float32_and_of_means_are_not_rounded(wire_dtype, is_trained):
    store = LocalParameterStore([make_module(is_trained=is_trained)], total_steps=1_000)
    store.initialize({"q": np.zeros(2, np.float32)})
    minibatch(delta_client(store, wire_dtype=wire_dtype), 257, 2**24 - 1)
    assert global_online(store) == [257, 2**24 - 1]


@OVERLAP
def test_an_optimizer_leaves_what_came_back_alone_though_the_copy_may_lie_in_its_memory(overlap, monkeypatch):
    store, came_back = make_store(np.zeros(64)), []
    pull = store.pull

    def pull_to_aligned_memory():
        pulled = pull()
        came_back.append(aligned_empty((64,), np.float32))
        came_back[-1][:] = pulled.online["q"]
        return pulled._replace(online={"q": came_back[-1]})

    monkeypatch.setattr(store, "pull", pull_to_aligned_memory)
    client = delta_client(store, local_steps=2, optimizer=descent(), overlap=overlap)
    for _ in range(4):
        minibatch(client, *range(64))
    client.finish()
    monkeypatch.undo()
    assert online(client) == global_online(store) == [-4 * value for value in range(64)]
    for array, steps_taken in zip(came_back, (0, 2, 4), strict=True):  # at the start, after each round trip
        assert array.tolist() == [-steps_taken * value for value in range(64)]


@OVERLAP
@pytest.mark.parametrize(("steps_a", "steps_b"), [(1, 1), (2, 3), (4, 3)])
def test_no_step_of_two_clients_is_lost_or_counted_twice(steps_a, steps_b, overlap):
    store = make_store([1, 2])
    clients = [delta_client(store, local_steps=steps, overlap=overlap) for steps in (steps_a, steps_b)]
    rng = np.random.default_rng(0)
    total = np.array([1, 2])
    for _ in range(40):
        update = rng.integers(-9, 10, 2)
        minibatch(clients[rng.integers(2)], *update)
        total += update
    for client in clients:
        client.finish()
    assert global_online(store) == total.tolist()
    assert store.pull().counters.minibatches == 40


def test_what_another_client_pushed_arrives_with_the_next_round_trip():
    store = make_store([0, 0])
    client = delta_client(store, local_steps=2)
    push(store, 100, 0)
    minibatch(client, 1, 1)
    assert online(client) == [1, 1]
    minibatch(client, 1, 1)
    assert online(client) == [100 + 2, 2]
    assert client.stalenesses == [1]


def test_local_steps_taken_during_a_round_trip_stay_on_top_of_what_it_brings():
    store = GatedStore([0, 0])
    client = delta_client(store, local_steps=2, overlap=True)
    minibatch(client, 1, 0)
    minibatch(client, 2, 0)
    assert store.arrived.wait(30)  # a delta of 3 is under way
    client.consume([as_tensor(0, 5)], client.rates())
    assert online(client) == [1 + 2, 5]
    push(store, 100, 0)
    store.gate.set()
    client.after_minibatch()  # it may be back or not
    minibatch(client, 0, 7)  # the next push waits until it is
    client.finish()
    assert online(client) == global_online(store) == [100 + 1 + 2, 5 + 7]
    assert client.stalenesses[0] == 1


def test_its_optimizer_s_slots_can_be_saved_and_restored():
    stores = [make_store([0, 0]) for _ in range(2)]
    a = delta_client(stores[0], optimizer=optimizers.adam())
    for _ in range(3):
        minibatch(a, 1, -2)
    stores[1].restore(stores[0].state())
    b = delta_client(stores[1], optimizer=optimizers.adam())
    b.restore_slots(a.slots())
    for client in (a, b):
        minibatch(client, -3, 5)
    assert online(b) == online(a) != [0, 0]
    assert a.slots().keys() == {"q/m", "q/v", "q/beta_powers"}


def test_the_slots_of_another_optimizer_are_refused():
    client = delta_client(make_store(), optimizer=optimizers.adam())
    with pytest.raises(ValueError, match="optimizer"):
        client.restore_slots(delta_client(make_store(), optimizer=optimizers.rmsprop()).slots())


def test_slots_that_were_not_held_by_a_worker_begin_anew():
    """So it is where --resume changes --local_steps, or which modules a worker trains."""
    client, fresh = (delta_client(make_store(), optimizer=optimizers.adam()) for _ in range(2))
    minibatch(client, 1, -2)
    slots = client.slots()
    fresh.restore_slots({})
    fresh.restore_slots({"model/m": np.ones(3)})
    assert not fresh.slots()["q/m"].any()
    fresh.restore_slots(slots | {"model/m": np.ones(3)})
    np.testing.assert_array_equal(fresh.slots()["q/m"], slots["q/m"])


def test_a_client_whose_delta_was_dropped_goes_on_from_what_it_pulled():
    store = DroppingStore([0, 0], 1)
    client = delta_client(store, local_steps=2, max_staleness=1)
    for _ in range(2):
        push(store, 100, 0, computed_on=store.pull().counters.updates)
    minibatch(client, 1, 0)
    minibatch(client, 2, 0)
    assert online(client) == global_online(store) == [200, 0]
    assert client.stalenesses == []
    minibatch(client, 0, 4)
    minibatch(client, 0, 8)
    assert online(client) == global_online(store) == [200, 4 + 8]
    client.finish()
    assert store.pull().counters == Counters(minibatches=4, updates=2 + 1, dropped=1)


def overflow(client):
    """Two finite minibatches whose delta is not finite."""
    minibatch(client, HUGE, 0)
    minibatch(client, HUGE, 0)


@OVERLAP
def test_a_delta_that_is_not_finite_is_not_pushed(overlap):
    store = RecordingStore([1, 2])
    client = delta_client(store, local_steps=2, optimizer=heavy_ball(), overlap=overlap)
    overflow(client)
    client.abandon_round_trip(30.0)
    assert store.pushes == []
    assert online(client) == [1, 2]  # its base
    assert client.slots()["q/sum"].tolist() == [0, 0]
    minibatch(client, 1, 0)
    minibatch(client, 0, 1)
    client.finish()
    assert global_online(store) == [1 + 1 + 1, 2 + 1]
    assert store.pull().counters == Counters(minibatches=4, updates=1, nonfinite=1)
    assert client.stalenesses == [0]


def test_what_others_did_arrives_although_the_delta_was_not_finite():
    store = make_store([1, 2])
    client = delta_client(store, local_steps=2, optimizer=heavy_ball())
    push(store, 100, 0)
    overflow(client)
    assert online(client) == global_online(store) == [1 + 100, 2]


@OVERLAP
def test_too_many_deltas_in_a_row_that_are_not_finite_end_the_run(overlap):
    store = make_store([0, 0])
    client = delta_client(store, local_steps=2, optimizer=heavy_ball(), max_nonfinite=3, overlap=overlap)
    for _ in range(2):  # a finite delta ends the row
        overflow(client)
        overflow(client)
        minibatch(client, 1, 0)
        minibatch(client, 0, 0)
    overflow(client)
    overflow(client)
    with pytest.raises(RunFailed, match="^3 updates "):  # though each minibatch was finite
        overflow(client)
    assert np.isfinite(global_online(store)).all()
    assert np.isfinite(online(client)).all()


def test_rows_of_minibatches_and_of_deltas_that_are_not_finite_are_counted_apart():
    store = make_store([0, 0])
    client = delta_client(store, local_steps=2, optimizer=heavy_ball(), max_nonfinite=3)
    for _ in range(2):
        client.reject_minibatch()
        client.reject_minibatch()
        overflow(client)  # its finite minibatches end the row of minibatches, its delta begins one of deltas
    assert store.pull().counters.nonfinite == 2 * (2 + 1)
    with pytest.raises(RunFailed, match="^3 updates "):
        overflow(client)


def test_a_copy_that_overflowed_between_two_pushes_goes_back_to_its_base():
    # Once the copy is not finite, no loss on it is, and rejected minibatches bring no push nearer.
    client = delta_client(make_store([1, 2]), local_steps=4, optimizer=heavy_ball())
    overflow(client)
    assert not np.isfinite(online(client)).all()
    client.reject_minibatch()
    assert online(client) == [1, 2]
    assert client.slots()["q/sum"].tolist() == [0, 0]  # its optimizer had overflowed too
    for _ in range(3):
        minibatch(client, 1, 0)
    assert client.counters.updates == 0  # the four minibatches of a push are counted anew
    minibatch(client, 1, 0)
    assert client.counters.updates == 1


@OVERLAP
@pytest.mark.parametrize("wire_dtype", ["float32", "bfloat16"])
def test_it_pushes_what_it_trains_and_pulls_all_whenever_asked_to(overlap, wire_dtype):
    values, model = make_module(2, "q"), make_module(1, "model", has_target=False)
    store = LocalParameterStore([values, model], total_steps=1_000)
    store.initialize({"q": np.zeros(2, np.float32), "model": np.zeros(1, np.float32)})
    clients = [
        DeltaClient(
            store,
            trained=[one._replace(optimizer=descent())],
            trains_model=one is model,
            local_steps=3,
            wire_dtype=wire_dtype,
            overlap=overlap,
            max_nonfinite=3,
            max_staleness=0,
        )
        for one in (values, model)
    ]
    for client in clients:
        client.start()
    for _ in range(4):  # a push of three, and one minibatch that `pull` finds
        minibatch(clients[0], -1, -2)
    for _ in range(2):
        minibatch(clients[1], -8)
    for client in (*clients, clients[0]):
        client.pull()
        assert client.online["q"].numpy().tolist() == [4, 8]
    assert clients[0].online["model"].numpy().tolist() == clients[1].online["model"].numpy().tolist() == [16]
    minibatch(clients[1], -1)
    clients[1].finish()
    clients[0].finish()
    counters = store.pull().counters
    assert store.pull().online["model"].tolist() == [17] and store.pull().online["q"].tolist() == [4, 8]
    assert (counters.minibatches, counters.updates, counters.model_updates) == (4 + 3, 2 + 2, 2)
