"""The store in memory whose workers make every update together: with real processes, forked, each with a deadline."""

import os
import signal
import threading

import numpy as np
import pytest
from cluster_helpers import wait_until
from fakes import heavy_ball, make_module
from shared_store_helpers import DEADLINE, SIZE, Shared, assert_adds_up, wait

from async_dqn.nn import optimizers
from async_dqn.store import synchronous
from async_dqn.store.base import Counters, Stop, Update, saved_counters
from async_dqn.store.local import LocalParameterStore
from async_dqn.store.shared_memory import MEMBERS, UPDATES
from async_dqn.store.synchronous import SynchronousStore

ONE = Counters(updates=1, minibatches=1)
MODULES = (
    make_module(SIZE, "q", optimizer=optimizers.adam()),
    make_module(SIZE, "V", optimizer=heavy_ball(), has_target=False),
)


class Together(Shared):
    """As `Shared`, of stores that make every update together."""

    kind = SynchronousStore

    def __init__(self, modules=MODULES, **options):
        super().__init__(modules, **options)

    def joined(self, number):
        """The stores of so many workers, all of which have steps."""
        stores = [self.open(worker) for worker in range(number)]
        for store in stores:
            store.join()
            assert store.claim_steps(1, Counters())[0] == 1
        return stores


def gradients(seed, number=3, modules="qV"):
    """{module: [number, SIZE]} of whole numbers, whose sums are exact."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-8, 8, (number, SIZE)).astype(np.float32) for name in modules}


def updates(found, worker, rate=0.25):
    return {name: Update(rows[worker], rate) for name, rows in found.items()}


class Pushing:
    """A push and pull in a thread, which waits for the others."""

    def __init__(self, store, update, computed_on=0, counts=ONE):
        self.found = None
        self._thread = threading.Thread(target=self._run, args=(store, update, counts, computed_on), daemon=True)
        self._thread.start()

    def _run(self, store, *arguments):
        self.found = store.push_pull(*arguments)

    def result(self):
        self._thread.join(DEADLINE)
        assert self.found, "it still waits"
        return self.found


def gradients_in(store):
    """How many are in the open update."""
    rows = store._table.read()
    return np.count_nonzero(rows[MEMBERS:, synchronous._ROUND] > rows[0, UPDATES])


def left(store, update, computed_on=0):
    """A gradient that is in the open update, while its worker waits."""
    before = gradients_in(store)
    pushing = Pushing(store, update, computed_on)
    wait_until(lambda: gradients_in(store) == before + 1, DEADLINE, "the gradient is there")
    assert pushing.found is None
    return pushing


def test_updates_of_many_processes_are_those_of_one_with_the_mean_of_all_gradients():
    shared = Together(target_period=7)
    local = LocalParameterStore(MODULES, 1_000, 7)
    local.initialize({module.name: np.zeros(SIZE, np.float32) for module in MODULES})
    expected = []
    for number in range(40):
        rows = gradients(number)
        mean = {name: Update(rows[name].sum(0) / np.float32(3), 0.25) for name in rows}
        local.push(mean, Counters(updates=1, minibatches=3), 0)
        expected.append((local.pull(), local.pull_target()))

    def work(store, worker):
        for number, (pulled, target) in enumerate(expected):
            before, found = store.push_pull(updates(gradients(number), worker), ONE, number)
            assert before.updates == number
            assert found.counters.updates == number + 1
            for name in "qV":
                np.testing.assert_array_equal(found.online[name], pulled.online[name])
            np.testing.assert_array_equal(store.pull_target()["q"], target["q"])
        store.leave()

    stores = [shared.open(worker) for worker in range(3)]
    for store in stores:
        store.join()  # before any begins, as nobody waits for who has not come
    shared.in_processes(work)
    np.testing.assert_equal(shared.store.state(), local.state())
    assert shared.store.check().counters.target_refreshes == 3 * 40 // 7
    assert_adds_up(shared.store)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_order_in_which_gradients_come_does_not_change_a_bit(order):
    stores, rng = Together().joined(3), np.random.default_rng(0)
    rows = {name: rng.normal(size=(3, SIZE)).astype(np.float32) for name in "qV"}
    waiting = [left(stores[worker], updates(rows, worker)) for worker in order[:-1]]
    found = Pushing(stores[order[-1]], updates(rows, order[-1])).result()[1]
    mean = {name: (one[0] + one[1] + one[2]) / np.float32(3) for name, one in rows.items()}
    alone = LocalParameterStore(MODULES, 1_000)
    alone.initialize({module.name: np.zeros(SIZE, np.float32) for module in MODULES})
    alone.push({name: Update(value, 0.25) for name, value in mean.items()}, ONE, 0)
    for pulled in [found, *(one.result()[1] for one in waiting)]:
        for name in "qV":
            np.testing.assert_array_equal(pulled.online[name], alone.pull().online[name])


def test_the_mean_is_of_those_gradients_that_have_a_part_of_a_module():
    shared = Together((make_module(SIZE, "q"), make_module(SIZE, "V"), make_module(SIZE, "silent")))
    stores, rows = shared.joined(2), gradients(0, 2)
    waiting = left(stores[0], updates(rows, 0))
    found = Pushing(stores[1], updates({"q": rows["q"]}, 1)).result()[1].online
    np.testing.assert_array_equal(found["q"], rows["q"].sum(0) / 2)
    np.testing.assert_array_equal(found["V"], rows["V"][0])  # what it has not pushed it pulls all the same
    np.testing.assert_array_equal(found["silent"], 0)
    np.testing.assert_array_equal(waiting.result()[1].online["V"], rows["V"][0])


def test_the_rate_is_the_mean_of_the_rates():
    module = make_module(SIZE, "q", optimizer=optimizers.rmsprop(decay=0.5))
    found = []
    for rates in ((0.25, 0.75), (0.5, 0.5)):
        stores, rows = Together((module,)).joined(2), gradients(0, 2, "q")
        left(stores[0], updates(rows, 0, rates[0]))
        found.append(Pushing(stores[1], updates(rows, 1, rates[1])).result()[1].online["q"])
    np.testing.assert_array_equal(*found)
    assert np.abs(found[0]).max() > 0


@pytest.mark.parametrize(("max_norm", "factor"), [(0.5, 0.5 / 5), (5.0, 1), (7.0, 1), (0.0, 1)])
def test_the_mean_is_scaled_down_over_all_trained_modules(max_norm, factor):
    modules = (make_module(SIZE, "q"), make_module(SIZE, "V"), make_module(SIZE, "seen")._replace(is_trained=False))
    stores = Together(modules, max_norm=max_norm).joined(2)
    rows = {name: np.zeros((2, SIZE), np.float32) for name in ("q", "V", "seen")}
    rows["q"][:, 0], rows["V"][:, 1], rows["seen"][:, 0] = (10, -4), (0, 8), 100  # means of 3, 4 and 100
    waiting = left(stores[0], updates(rows, 0))
    found = Pushing(stores[1], updates(rows, 1)).result()[1].online
    for online in (found, waiting.result()[1].online):
        np.testing.assert_allclose([online["q"][0], online["V"][1]], [3 * factor, 4 * factor], rtol=1e-6)
        np.testing.assert_array_equal(online["seen"], rows["seen"][0])


@pytest.mark.parametrize("goes", ["leaves", "is lost", "has no steps"])
def test_nobody_waits_for_who_has_gone_but_what_it_left_counts(goes):
    shared = Together((make_module(SIZE, "q"),), total_steps=3)
    stores, rows = shared.joined(3), gradients(0, 3, "q")
    waiting = left(stores[0], updates(rows, 0))
    gone = left(stores[1], updates(rows, 1))
    if goes == "leaves":
        stores[2].leave()
    elif goes == "is lost":
        shared.store.lose(2, 1)
    else:
        assert stores[2].claim_steps(1, Counters(env_steps=1))[0] == 0
    for one in (waiting, gone):
        np.testing.assert_array_equal(one.result()[1].online["q"], rows["q"][:2].sum(0) / 2)
    assert shared.store.check().counters.updates == 1
    assert_adds_up(shared.store)


def test_a_process_that_takes_anothers_place_is_waited_for_once_it_has_steps():
    shared = Together((make_module(SIZE, "q"),))
    stores, rows = shared.joined(2), gradients(0, 2, "q")
    waiting = left(stores[1], updates(rows, 1))  # dies here
    shared.store.lose(1, 1)
    again = shared.open(1)
    again.join()
    Pushing(stores[0], updates(rows, 0)).result()  # and what was left before counts
    np.testing.assert_array_equal(again.pull().online["q"], rows["q"].sum(0) / 2)
    waiting.result()
    Pushing(stores[0], updates(rows, 0), 1).result()
    assert again.claim_steps(1, Counters())[0] == 1
    waiting = left(stores[0], updates(rows, 0), 2)
    assert Pushing(again, updates(rows, 1), 2).result()[1].counters.updates == 3
    assert waiting.result()[1].counters.updates == 3


def test_who_comes_back_in_an_update_that_has_its_gradient_waits_for_it_and_adds_none():
    shared = Together((make_module(SIZE, "q"),))
    stores, rows = shared.joined(2), gradients(0, 2, "q")
    left(stores[1], updates(rows, 1))
    again = shared.open(1)
    again.join()
    second = Pushing(again, updates({"q": rows["q"] * 100}, 1))
    wait_until(lambda: shared.store.check().counters.dropped == 1, DEADLINE, "it was dropped")
    assert second.found is None
    Pushing(stores[0], updates(rows, 0)).result()
    np.testing.assert_array_equal(second.result()[1].online["q"], rows["q"].sum(0) / 2)


def test_backup_workers_are_not_waited_for_and_what_comes_late_is_dropped():
    shared = Together((make_module(SIZE, "q"),), backup_workers=1)
    stores, rows = shared.joined(3), gradients(0, 3, "q")
    waiting = left(stores[0], updates(rows, 0))
    Pushing(stores[2], updates(rows, 2)).result()
    waiting.result()
    before, pulled = stores[1].push_pull(updates(rows, 1), ONE, 0)
    assert (before.updates, pulled.counters.updates, pulled.counters.dropped) == (1, 1, 1)
    np.testing.assert_array_equal(pulled.online["q"], rows["q"][[0, 2]].sum(0) / 2)
    assert pulled.counters.minibatches == 3


@pytest.mark.parametrize("stop", Stop)
def test_who_waits_goes_on_where_the_run_is_interrupted_or_has_failed(stop):
    shared = Together()
    stores = shared.joined(2)
    waiting = left(stores[0], updates(gradients(0), 0))
    stores[1].add_counts(Counters(stopped=stop))
    if stop == Stop.SOLVED:  # then the other makes the update, or leaves
        stores[1].leave()
    assert waiting.result()[1].counters.updates == int(stop == Stop.SOLVED)


def test_who_waits_goes_on_where_it_was_asked_to_end():
    asked = threading.Event()
    shared = Together(should_stop=asked.is_set)
    waiting = left(shared.joined(2)[0], updates(gradients(0), 0))
    asked.set()
    assert waiting.result()[1].counters.updates == 0


def test_gradients_of_the_open_update_are_saved_as_dropped():
    shared = Together()
    stores = shared.joined(3)
    waiting = [left(store, updates(gradients(0), worker)) for worker, store in enumerate(stores[:2])]
    saved, now = saved_counters(shared.store.state()), shared.store.check().counters
    assert (now.dropped, now.minibatches, saved) == (0, 2, now._replace(dropped=2))
    Pushing(stores[2], updates(gradients(0), 2)).result()
    for one in waiting:
        one.result()
    assert saved_counters(shared.store.state()).dropped == 0


@pytest.mark.parametrize(("minibatches", "refreshes"), [(19, 1), (11, 0)])
def test_a_restored_store_goes_on_with_its_counts(minibatches, refreshes):
    shared = Together(target_period=10)
    state = shared.store.state()
    shared.store.restore(state | {"counter/minibatches": np.int64(minibatches), "counter/updates": np.int64(5)})
    (store,) = shared.joined(1)
    assert store.pull().counters.updates == 5
    found = store.push_pull(updates(gradients(0), 0), ONE, 5)[1]
    counted = (found.counters.minibatches, found.counters.updates, found.counters.target_refreshes)
    assert counted == (minibatches + 1, 6, refreshes)
    assert np.array_equal(store.pull_target()["q"], found.online["q"]) == bool(refreshes)


@pytest.mark.parametrize("seed", range(3))
def test_whenever_a_process_is_killed_the_others_go_on_and_counts_are_whole(seed):
    shared, rng = Together(total_steps=10**9, target_period=5), np.random.default_rng(seed)

    def work(store, worker):
        store.join()
        while store.claim_steps(1, Counters(env_steps=1))[0]:
            computed_on = store.pull().counters.updates
            store.push_pull(updates(gradients(computed_on), worker), ONE, computed_on)

    def has_made(number):
        start = shared.store.num_updates
        wait_until(lambda: shared.store.num_updates > start + number, DEADLINE, "updates are made")

    pids = [shared.start(work, worker) for worker in range(3)]
    wait_until(lambda: shared.store.starts(1) == 1, DEADLINE, "it has joined")  # the others do not wait for it
    for start in range(1, 9):
        has_made(int(rng.integers(2, 50)))
        os.kill(pids[1], signal.SIGKILL)
        assert wait(pids[1]) == -signal.SIGKILL
        shared.store.lose(1, start)
        has_made(5)
        assert_adds_up(shared.store)
        pids[1] = shared.start(work, 1)
        wait_until(lambda start=start: shared.store.starts(1) == start + 1, DEADLINE, "it has joined")
    shared.store.add_counts(Counters(stopped=Stop.INTERRUPTED))
    assert [wait(pid) for pid in pids] == [0] * 3
    counters = shared.store.check().counters
    assert counters.target_refreshes > 0
    assert counters.minibatches - 8 <= counters.env_steps + 3
    assert_adds_up(shared.store)
