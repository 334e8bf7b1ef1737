"""The layout of the flat vector, the arithmetic of the counters, and the store in this process."""

import math
import threading

import numpy as np
import pytest
import tensorflow as tf
from fakes import descent, make_store
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.nn import optimizers
from async_dqn.nn.layout import Layout
from async_dqn.store.base import Counters, EpisodeReport, Standing, Stop, WorkerStatus, advance
from async_dqn.store.local import LocalParameterStore

SHAPES = st.dictionaries(
    st.text("abc/", min_size=1, max_size=4),
    st.lists(st.integers(1, 4), max_size=4).map(tuple),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)
@given(SHAPES, st.integers(0, 2**32 - 1))
def test_layout_round_trip(shapes, seed):
    layout = Layout(shapes)
    rng = np.random.default_rng(seed)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    flat = layout.flatten(arrays)
    # Each array takes whole rows of 16 floats.
    assert (
        flat.shape == (layout.num_parameters,) == (sum(-(-math.prod(shape) // 16) * 16 for shape in shapes.values()),)
    )
    assert flat.dtype == np.float32
    back = layout.unflatten(flat)
    assert list(back) == list(shapes)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
    np.testing.assert_array_equal(layout.flatten({name: x.numpy() for name, x in back.items()}), flat)


def test_arrays_lie_in_the_order_of_the_layout_each_from_a_boundary_on():
    layout = Layout({"w": (2, 2), "b": (), "c": (20,), "a": (1,)})
    flat = layout.flatten({"a": np.array([6]), "b": np.array(5), "w": np.array([[1, 2], [3, 4]]), "c": np.full(20, 7)})
    np.testing.assert_array_equal(flat, [1, 2, 3, 4] + 12 * [0] + [5] + 15 * [0] + 20 * [7] + 12 * [0] + [6] + 15 * [0])


def test_the_zeros_between_arrays_have_no_gradient():
    layout = Layout({"w": (3,), "b": (17,)})
    flat = tf.Variable(np.arange(48, dtype=np.float32))
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(array**2) for array in layout.unflatten(flat).values()])
    expected = np.zeros(48)
    expected[:3], expected[16:33] = 2 * np.arange(3), 2 * np.arange(16, 33)
    np.testing.assert_array_equal(tape.gradient(loss, flat), expected)


@pytest.mark.parametrize(
    "arrays",
    [{"w": np.zeros(3)}, {"w": np.zeros((2, 1))}, {"v": np.zeros(2)}, {}, {"w": np.zeros(2), "v": np.zeros(2)}],
    ids=["size", "rank", "name", "missing", "too many"],
)
def test_flatten_refuses_what_does_not_fit(arrays):
    with pytest.raises(ValueError, match=r"do not fit the layout \{'w': \(2,\)\}"):
        Layout({"w": (2,)}).flatten(arrays)


def test_advance_adds_everything_but_the_maxima():
    before = Counters(*range(10, 10 + len(Counters._fields)))._replace(claimed_steps=10, staleness_max=4, stopped=0)
    counts = Counters(*range(1, 1 + len(Counters._fields)))._replace(claimed_steps=16, staleness_max=2, stopped=0)
    after = advance(before, counts, 100)
    sums = {name: getattr(before, name) + getattr(counts, name) for name in Counters._fields}
    assert after == Counters(**sums | {"staleness_max": max(4, 2), "stopped": 0})
    assert after.claimed_steps == 10 + 16
    assert advance(after, Counters(staleness_max=9), 100).staleness_max == 9


@pytest.mark.parametrize(("first", "second"), [(Stop.SOLVED, Stop.INTERRUPTED), (Stop.INTERRUPTED, Stop.FAILED)])
def test_of_several_reasons_to_stop_the_gravest_counts(first, second):
    for one, other in ((first, second), (second, first)):
        stopped = advance(advance(Counters(), Counters(stopped=one), 100), Counters(stopped=other), 100).stopped
        assert stopped == second > first > 0


@pytest.mark.parametrize(
    ("claimed", "wanted", "stopped", "expected"),
    [
        (90, 16, 0, 100),
        (100, 16, 0, 100),
        (120, 16, 0, 120),
        (90, 5, 0, 90 + 5),
        (90, 5, 1, 90),
        (90, -5, 0, 90 - 5),
        (90, -5, 1, 90 - 5),
    ],
    ids=["the rest", "spent", "overspent already", "all", "stopped", "given back", "given back when stopped"],
)
def test_advance_keeps_within_a_budget_of_100(claimed, wanted, stopped, expected):
    before = Counters(claimed_steps=claimed, stopped=stopped)
    assert advance(before, Counters(claimed_steps=wanted), 100).claimed_steps == expected


def test_steps_are_not_granted_by_the_call_that_comes_after_a_stop():
    stopped = advance(Counters(claimed_steps=4), Counters(stopped=1), 100)
    assert advance(stopped, Counters(claimed_steps=8), 100).claimed_steps == 4


@given(st.integers(1, 200), st.lists(st.integers(0, 60), max_size=20))
def test_claims_never_exceed_the_budget_and_spend_it(budget, wanted):
    counters = Counters()
    for steps in wanted:
        before, counters = counters, advance(counters, Counters(claimed_steps=steps), budget)
        assert 0 <= counters.claimed_steps - before.claimed_steps <= steps
    assert counters.claimed_steps == min(budget, sum(wanted))


def test_initialize_sets_online_and_target_and_starts_counting_again():
    store = make_store([1, 2], optimizer=optimizers.adam())
    store.push(np.ones(2, np.float32), 0.1, Counters(updates=1), 0)
    store.refresh_target()
    store.initialize(np.array([3, 4], np.float32))
    np.testing.assert_array_equal(store.pull().online, [3, 4])
    np.testing.assert_array_equal(store.pull_target(), [3, 4])
    assert store.pull().counters == Counters()
    np.testing.assert_array_equal(store.state()["slot/m"], [0, 0])


def test_pushes_add_up_and_tell_the_counters_before_each():
    store = make_store([1, 2])
    first = store.push(np.array([1, 0], np.float32), 0.5, Counters(updates=1, env_steps=4), 0)
    second = store.push(np.array([0, 10], np.float32), 0.5, Counters(updates=1, env_steps=6), 0)
    assert (first, second) == (Counters(), Counters(updates=1, env_steps=4))
    online, counters = store.pull()
    np.testing.assert_array_equal(online, [1 + 1, 2 + 10])
    assert counters == Counters(updates=1 + 1, env_steps=4 + 6)


def test_a_push_pull_is_a_push_and_then_a_pull():
    store = make_store([1, 2])
    store.push(np.array([1, 0], np.float32), 0.5, Counters(updates=1, env_steps=4), 0)
    before, pulled = store.push_pull(np.array([0, 10], np.float32), 0.5, Counters(updates=1, env_steps=6), 0)
    assert (before, pulled.counters) == (Counters(updates=1, env_steps=4), Counters(updates=2, env_steps=10))
    np.testing.assert_array_equal(pulled.online, [1 + 1, 2 + 10])


def test_push_steps_with_the_optimizer_and_the_learning_rate():
    store = make_store([1, 2], optimizer=descent())
    store.push(np.array([4, -8], np.float32), 0.25, Counters(updates=1), 0)
    np.testing.assert_array_equal(store.pull().online, [1 - 0.25 * 4, 2 + 0.25 * 8])


def test_what_was_pulled_does_not_change_with_later_pushes():
    store = make_store([1, 2])
    pulled, target, state = store.pull().online, store.pull_target(), store.state()
    store.push(np.ones(2, np.float32), 0.0, Counters(), 0)
    store.refresh_target()
    for array in (pulled, target, state["online"], state["target"]):
        np.testing.assert_array_equal(array, [1, 2])


def test_target_follows_online_only_when_refreshed():
    store = make_store([1, 2])
    store.push(np.ones(2, np.float32), 0.0, Counters(), 0)
    np.testing.assert_array_equal(store.pull_target(), [1, 2])
    store.refresh_target()
    np.testing.assert_array_equal(store.pull_target(), [1 + 1, 2 + 1])
    assert store.pull().counters.target_refreshes == 1


def test_claims_end_exactly_with_the_budget():
    store = make_store(total_steps=20)
    grants = [store.claim_steps(8, Counters(minibatches=1)) for _ in range(4)]
    assert [granted for granted, _ in grants] == [8, 8, 20 - 2 * 8, 0]
    assert [counters.claimed_steps for _, counters in grants] == [8, 16, 20, 20]
    assert grants[-1][1].minibatches == 4


def test_a_store_says_what_it_holds():
    store = make_store([1, 2, 3], total_steps=20)
    assert (store.num_parameters, store.total_steps) == (3, 20)
    store.claim_steps(8, Counters(env_steps=5))
    counters = Counters(claimed_steps=8, env_steps=5)
    assert store.check() == Standing(counters, [WorkerStatus("active", 1, counters)])


def test_a_store_in_this_process_drops_nothing_however_stale():
    store = make_store([1, 2])
    for number in range(50):
        before = store.push(np.ones(2, np.float32), 0.0, Counters(updates=1), computed_on=0)
        assert before.updates == number
    np.testing.assert_array_equal(store.pull().online, [1 + 50, 2 + 50])
    assert store.pull().counters == Counters(updates=50)


def test_a_stopped_run_grants_nothing():
    store = make_store(total_steps=20)
    store.claim_steps(8, Counters())
    store.add_counts(Counters(stopped=1))
    assert store.claim_steps(8, Counters())[0] == 0


def test_steps_given_back_by_a_push_are_granted_again():
    store = make_store(total_steps=20)
    assert store.claim_steps(20, Counters())[0] == 20
    store.push(np.zeros(2, np.float32), 0.0, Counters(claimed_steps=-5), 0)
    assert store.claim_steps(20, Counters())[0] == 5


@pytest.mark.parametrize(("given_back", "wanted", "granted"), [(5, 0, 0), (5, 3, 3), (5, 10, 5), (0, 10, 0)])
def test_steps_given_back_by_a_claim_can_be_claimed_in_the_same_breath(given_back, wanted, granted):
    store = make_store(total_steps=20)
    store.claim_steps(20, Counters())
    now, counters = store.claim_steps(wanted, Counters(claimed_steps=-given_back))
    assert (now, counters.claimed_steps) == (granted, 20 - given_back + granted)


def test_a_stopped_run_takes_steps_back_and_grants_none():
    store = make_store(total_steps=20)
    store.claim_steps(20, Counters())
    store.add_counts(Counters(stopped=1))
    assert store.claim_steps(4, Counters(claimed_steps=-6))[0] == 0


def test_claims_and_pushes_of_many_threads_are_exact():
    num_threads, budget = 8, 1_003
    store = make_store([0, 0], total_steps=budget)
    barrier = threading.Barrier(num_threads)
    granted = [0] * num_threads
    befores: list[list[int]] = [[] for _ in range(num_threads)]

    def work(index):
        barrier.wait(30)
        while now := store.claim_steps(7, Counters())[0]:
            granted[index] += now
            before = store.push(np.array([now, 1], np.float32), 0.0, Counters(updates=1, env_steps=now), 0)
            befores[index].append(before.updates)

    threads = [threading.Thread(target=work, args=[index]) for index in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    num_pushes = -(-budget // 7)
    assert sum(granted) == budget
    assert sorted(sum(befores, [])) == list(range(num_pushes))  # each push has a place of its own
    np.testing.assert_array_equal(store.pull().online, [budget, num_pushes])
    assert store.pull().counters == Counters(claimed_steps=budget, env_steps=budget, updates=num_pushes)


OPTIMIZERS = [
    optimizers.add(),
    optimizers.adam(),
    optimizers.rmsprop(centered=True),
    optimizers.rmsprop(centered=False),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_a_restored_store_goes_on_as_the_saved_one_would_have(optimizer):
    saved, restored = (make_store([1, 2, 3], optimizer=optimizer) for _ in range(2))
    gradients = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for gradient in gradients[:3]:
        saved.push(gradient, 0.1, Counters(updates=1, env_steps=4), 0)
    saved.refresh_target()
    saved.push(gradients[3], 0.1, Counters(updates=1), 0)
    restored.restore(saved.state())
    for store in (saved, restored):
        store.push(gradients[4], 0.1, Counters(updates=1), 0)
    expected, found = saved.state(), restored.state()
    assert expected.keys() == found.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
    assert restored.pull().counters == Counters(updates=5, env_steps=12, target_refreshes=1)


@pytest.mark.parametrize("missing", ["online", "target", "counters", "slot/m", "slot/beta_powers"])
def test_restore_names_what_a_state_lacks(missing):
    store = make_store(optimizer=optimizers.adam())
    state = {name: array for name, array in store.state().items() if name != missing}
    with pytest.raises(ValueError, match=rf"are not those of this network and optimizer, .*'{missing}'"):
        store.restore(state)


@pytest.mark.parametrize(
    "other",
    [
        LocalParameterStore(3, optimizers.adam(), 10),
        LocalParameterStore(2, optimizers.add(), 10),
        LocalParameterStore(2, optimizers.rmsprop(), 10),
    ],
    ids=["another size", "without slots", "another optimizer"],
)
def test_restore_refuses_the_state_of_another_network_or_optimizer_and_changes_nothing(other):
    store = make_store([1, 2], optimizer=optimizers.adam())
    with pytest.raises(ValueError, match=r"saved arrays .*'online': \(\d,\).* are not those of this network"):
        store.restore(other.state())
    np.testing.assert_array_equal(store.pull().online, [1, 2])


def test_reported_episodes_are_taken_once_and_in_order():
    store = make_store()
    games = [EpisodeReport(worker, -21.0 + worker, 800, 1_000 * worker, 0.5) for worker in range(3)]
    store.report_episodes(games[:2])
    store.report_episodes([])
    store.report_episodes(games[2:])
    assert store.take_episodes() == games
    assert store.take_episodes() == []
