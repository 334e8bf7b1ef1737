"""A worker's copy of the parameters and its trips, against sequences worked out by hand.

Parameters and updates are small whole numbers, so that sums are exact in float32.
"""

import numpy as np
import pytest
from fakes import GatedStore, RecordingStore, as_tensor, descent, make_store

from async_dqn import optimizers
from async_dqn.parameter_client import DeltaClient, GradientClient
from async_dqn.parameters import Counters, EpisodeReport
from async_dqn.schedules import constant, linear


def gradient_client(store, *, push_period=1, pull_period=1, overlap=False, rate=1.0):
    client = GradientClient(store, constant(rate), push_period=push_period, pull_period=pull_period, overlap=overlap)
    client.start()
    return client


def delta_client(store, *, local_steps, overlap=False, optimizer=None):
    client = DeltaClient(
        store, constant(1.0), optimizer=optimizer or optimizers.add(), local_steps=local_steps, overlap=overlap
    )
    client.start()
    return client


def minibatch(client, *update):
    """One minibatch, whose gradient is `update`."""
    client.consume(as_tensor(*update), as_tensor(client.current_learning_rate())[0])
    client.after_minibatch()


def online(client):
    return client.online.numpy().tolist()


def global_online(store):
    return store.pull().online.tolist()


@pytest.mark.parametrize("make", [gradient_client, lambda store: delta_client(store, local_steps=2)])
def test_start_takes_both_networks_and_the_counters(make):
    store = make_store([1, 2])
    store.push(np.array([10, 10], np.float32), 0.0, Counters(env_steps=7, updates=1))
    client = make(store)
    assert online(client) == [1 + 10, 2 + 10]
    assert client.target.numpy().tolist() == [1, 2]
    assert client.counters == Counters(env_steps=7, updates=1)
    assert client.env_steps == 7
    client.finish()


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
    store.push(other, 0.0, Counters(updates=1))
    minibatch(client, 1, 0)  # its own first one, and the other's
    store.push(other, 0.0, Counters(updates=1))
    store.push(other, 0.0, Counters(updates=1))
    minibatch(client, 1, 0)  # pulled after the last; two of the other
    assert client.stalenesses == [0, 1 + 1, 2]
    client.finish()
    counters = store.pull().counters
    assert (counters.staleness_sum, counters.staleness_max) == (0 + 2 + 2, 2)
    assert (counters.updates, counters.minibatches) == (3 + 3, 3)


def test_staleness_of_summed_gradients_counts_from_the_pull_of_the_first():
    store = make_store([0, 0])
    client = gradient_client(store, push_period=2, pull_period=1)
    store.push(np.ones(2, np.float32), 0.0, Counters(updates=1))
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
    store.push(np.array([100, 0], np.float32), 0.0, Counters(updates=1))
    minibatch(client, 1, 1)
    assert online(client) == [1, 1]
    minibatch(client, 1, 1)
    assert online(client) == [100 + 2, 2]
    assert client.stalenesses == [1]


@pytest.mark.parametrize("make", [gradient_client, lambda store, **kw: delta_client(store, local_steps=1, **kw)])
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
    super(GatedStore, store).push(np.array([100, 0], np.float32), 0.0, Counters(updates=1))
    store.gate.set()
    client.after_minibatch()  # it may be back or not
    minibatch(client, 0, 7)  # the next push waits until it is
    client.finish()
    assert online(client) == global_online(store) == [100 + 1 + 2, 5 + 7]
    assert client.stalenesses[0] == 1


@pytest.mark.parametrize("make", [gradient_client, lambda store, **kw: delta_client(store, local_steps=1, **kw)])
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


def test_claims_come_out_of_the_global_budget_and_report_what_was_counted():
    store = make_store(total_steps=20)
    a, b = gradient_client(store), gradient_client(store)
    assert (a.claim_steps(16), b.claim_steps(16), a.claim_steps(16)) == (16, 20 - 16, 0)
    a.count(env_steps=16, episodes=1)
    b.count(env_steps=4)
    assert (a.env_steps, b.env_steps) == (16, 4)
    a.claim_steps(1)
    b.claim_steps(1)
    assert b.env_steps == 16 + 4
    assert store.pull().counters == Counters(claimed_steps=20, env_steps=20, episodes=1)


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
    client = GradientClient(store, linear(1.0, 0.0, begin=0, steps=100), push_period=1, pull_period=1, overlap=False)
    client.start()
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


def test_episodes_reach_the_store():
    store = make_store()
    game = EpisodeReport(1, 21.0, 800, 5_000, 0.5)
    gradient_client(store).report_episodes([game])
    assert store.take_episodes() == [game]


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


@pytest.mark.parametrize("make", [gradient_client, lambda store: delta_client(store, local_steps=2)])
def test_unused_steps_are_given_back_at_the_end(make):
    store = make_store(total_steps=20)
    client = make(store)
    assert client.claim_steps(20) == 20
    client.count(claimed_steps=-5)
    client.finish()
    assert store.claim_steps(20, Counters())[0] == 5


def test_agent_steps_never_fall():
    client = gradient_client(make_store(), pull_period=2)
    client.count(env_steps=4)
    minibatch(client, 1, 0)
    assert client.env_steps == 4
