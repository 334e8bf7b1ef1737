"""Tests of async_dqn.cluster.quorum, in the ledger of one process."""

import numpy as np
import pytest
import tensorflow as tf

from async_dqn.cluster.ledger import LedgerOperations, initial_rows, ledger_shape, parse
from async_dqn.cluster.quorum import Quorum
from async_dqn.store.base import Counters, MemberState

WORKERS = 3
BUDGET = 60
PERIOD = 6  # minibatches from one target refresh to the next
ORDER = 2**40  # of the first push of a process that joined first is this and 1

UPDATE = Counters(updates=1)


class Table:
    """A ledger under a quorum, and shards that are always up to date unless told otherwise."""

    def __init__(self, quorum):
        with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
            shape = ledger_shape(WORKERS)
            variable = tf.compat.v1.get_variable("ledger_0", shape, tf.int64, trainable=False, use_resource=True)
            operations = LedgerOperations(variable)
            self._request, self._computed_on, self._zero, self._joins, self._generation, self._hold = (
                tf.compat.v1.placeholder(tf.int64, []) for _ in range(6)
            )
            self._counts = tf.compat.v1.placeholder(tf.int64, [len(Counters._fields)])
            self._deposits = tf.compat.v1.placeholder(tf.int64, [None, 2])
            self._rows = tf.compat.v1.placeholder(tf.int64, shape)
            common = {"request": self._request, "counts": self._counts, "budget": BUDGET, "max_staleness": 0}
            self._push = [
                operations.count(
                    worker,
                    worker + 1,
                    computed_on=self._computed_on,
                    target_period=PERIOD,
                    quorum=quorum,
                    deposits=self._deposits,
                    **common,
                )
                for worker in range(WORKERS)
            ]
            self._count = [
                operations.count(worker, worker + 1, computed_on=None, target_period=0, **common)
                for worker in range(WORKERS)
            ]
            self._join = [
                operations.join(worker, worker + 1, is_start=self._zero, generation=self._generation, joins=self._joins)
                for worker in range(WORKERS)
            ]
            self._leave = [operations.leave(worker, worker + 1, MemberState.LOST) for worker in range(WORKERS)]
            self._take_hold = operations.hold(self._hold)
            self._set = operations.set(self._rows)
            self._read = variable.read_value()
        graph.finalize()
        self._session = tf.compat.v1.Session(graph=graph)
        self._num_generations = 0

    def begin(self, *workers, counters=Counters()):  # noqa: B008
        """Set anew; these workers join."""
        self._num_generations += 1
        rows = initial_rows(WORKERS, counters, 5, self._num_generations, [])
        self._session.run(self._set, {self._rows: rows})
        self._requests = np.zeros((2, WORKERS), np.int64)
        for worker in workers:
            self.join(worker)

    def join(self, worker):
        ledger = self.read()
        feed = {
            self._zero: 0,
            self._generation: ledger.generation,
            self._joins: ledger.members[worker].joins,
        }
        self._requests[:, worker] = 0
        self._session.run(self._join[worker], feed)

    def leave(self, worker):
        self._session.run(self._leave[worker])

    def hold(self, number):
        self._session.run(self._take_hold, {self._hold: number})

    def push(self, worker, computed_on, counts=UPDATE, *, again=False, shards=None):
        """Gives what the ledger says.

        Args:
          shards: [K, 2]; None: each has applied the last version, and the gradient is there.
        """
        self._requests[1, worker] += not again
        updates = self.read().counters.updates
        feed = {
            self._request: self._requests[1, worker],
            self._counts: counts,
            self._computed_on: computed_on,
            self._deposits: [[updates, 1]] * 2 if shards is None else shards,
        }
        return self._session.run(self._push[worker], feed)

    def look(self, worker):
        """As a worker that waits: counts nothing."""
        updates = self.read().counters.updates
        feed = {
            self._request: 0,
            self._counts: Counters(),
            self._computed_on: 0,
            self._deposits: [[updates, 0]] * 2,
        }
        return self._session.run(self._push[worker], feed)

    def claim(self, worker, steps):
        self._requests[0, worker] += 1
        feed = {self._request: self._requests[0, worker], self._counts: Counters(claimed_steps=steps)}
        return int(self._session.run(self._count[worker], feed).granted)

    def read(self):
        return parse(self._session.run(self._read))

    @property
    def counters(self):
        """(updates, gradients in the open version, dropped); that they add up is checked."""
        ledger = self.read()
        for name in ("updates", "dropped", "minibatches", "target_refreshes"):
            own = sum(getattr(member.counters, name) for member in ledger.members)
            assert getattr(ledger.counters, name) == getattr(ledger.base, name) + own
        return ledger.counters.updates, ledger.gradients, ledger.counters.dropped


@pytest.fixture(scope="module")
def tables():
    return {}


@pytest.fixture
def table(tables):
    """Gives the table of a quorum, which these workers have joined."""

    def make(quorum, *workers):
        if quorum not in tables:
            tables[quorum] = Table(quorum)
        tables[quorum].begin(*workers)
        return tables[quorum]

    return make


def test_a_version_is_complete_with_a_gradient_of_each_worker(table):
    sync = table(Quorum(), 0, 1, 2)
    for version in range(3):
        for number, worker in enumerate((1, 2, 0), start=1):
            found = sync.push(worker, version)
            assert found.mark[2] == version + (number == 3)
            assert found.mark[3] == version + 1
            assert sync.counters == (version, number, 0) if number < 3 else (version + 1, 0, 0)
        np.testing.assert_array_equal(found.mark[4:], np.full(WORKERS, ORDER) + version + 1)


def test_a_gradient_of_an_older_version_is_dropped_and_counted(table):
    sync = table(Quorum(backup_workers=1), 0, 1, 2)
    sync.push(0, 0)
    assert sync.push(1, 0).mark[2] == 1  # does not wait for worker 2
    late = sync.push(2, 0)
    assert (late.mark[2:].tolist(), sync.counters) == ([1, 0, ORDER + 1, ORDER + 1, 0], (1, 0, 1))
    assert sync.push(2, 1).mark[3] == 2
    assert sync.push(0, 1).mark[2] == 2
    sync.push(1, 1)
    assert sync.counters == (2, 0, 2)


def test_a_second_gradient_of_one_worker_does_not_enter(table):
    sync = table(Quorum(), 0, 1)
    for _ in range(2):
        sync.push(0, 0)
    assert sync.counters == (0, 1, 1)
    assert sync.push(1, 0).mark[4] == ORDER + 1  # the first


def test_the_quorum_follows_the_members(table):
    sync = table(Quorum(), 0, 1)
    sync.push(0, 0)
    sync.join(2)  # before the version is complete
    sync.push(1, 0)
    assert sync.counters == (0, 2, 0)
    sync.leave(2)
    assert sync.counters == (0, 2, 0)
    assert sync.look(1).mark[2] == 1  # who waits completes it
    sync.push(1, 1)
    sync.leave(1)
    assert sync.look(0).mark[2] == 1  # its own gradient is not there yet
    assert sync.push(0, 1).mark[2] == 2  # and that of the lost one counts
    assert sync.counters == (2, 0, 0)
    assert sync.push(0, 2).mark[2] == 3  # alone
    sync.join(1)
    assert sync.push(0, 3).mark[2] == 4  # the one that was started again has no work yet
    sync.claim(1, 5)
    assert sync.push(0, 4).mark[2] == 4
    assert sync.push(1, 4).mark[2] == 5


def test_nobody_waits_for_a_worker_without_steps(table):
    sync = table(Quorum(), 0, 1)
    assert sync.claim(0, BUDGET) == BUDGET
    assert sync.claim(1, 5) == 0
    for version in range(3):
        assert sync.push(0, version).mark[2] == version + 1
    sync.leave(0)
    assert sync.claim(1, 5) == 5
    assert sync.push(1, 3).mark[2] == 4


def test_who_is_no_member_completes_nothing(table):
    sync = table(Quorum(), 0, 1)
    sync.push(0, 0)
    sync.leave(1)
    assert not sync.look(1).is_member
    assert sync.counters == (0, 1, 0)


def test_more_backup_workers_than_others_are_left_never_complete_an_empty_version(table):
    sync = table(Quorum(backup_workers=2), 0, 1)
    for _ in range(2):
        assert sync.look(0).mark[2] == 0
    assert sync.push(1, 0).mark[2] == 1
    assert sync.look(0).mark[2] == 1


def test_so_many_gradients_make_an_update_whatever_they_were_computed_on(table):
    accumulate = table(Quorum(accumulate=3), 0, 1, 2)
    pushes = [(0, 0), (0, 0), (1, 0), (2, 0), (2, 1), (0, 0), (1, 1)]
    updates = [accumulate.push(*push).mark[2] for push in pushes]
    assert updates == [0, 0, 1, 1, 1, 2, 2]
    assert accumulate.counters == (2, 1, 0)
    accumulate.leave(0)
    accumulate.leave(2)
    assert accumulate.look(1).mark[2] == 2


@pytest.mark.parametrize("quorum", [Quorum(), Quorum(accumulate=2)])
def test_a_gradient_that_comes_again_is_in_once(table, quorum):
    ledger = table(quorum, 0, 1)
    first = ledger.push(0, 0)
    again = ledger.push(0, 0, again=True)
    assert ledger.counters == (0, 1, 0)
    np.testing.assert_array_equal(again.mark, first.mark)
    last = ledger.push(1, 0)
    np.testing.assert_array_equal(ledger.push(1, 0, again=True).mark, last.mark)
    np.testing.assert_array_equal(ledger.push(0, 0, again=True).before, first.before)
    assert ledger.counters == (1, 0, 0)


@pytest.mark.parametrize("quorum", [Quorum(), Quorum(accumulate=1)])
def test_a_gradient_that_is_not_on_every_shard_is_dropped(table, quorum):
    ledger = table(quorum, 0)
    ledger.push(0, 0, shards=[[0, 1], [0, 0]])
    assert ledger.counters == (0, 0, 1)


def test_while_a_shard_is_behind_nothing_enters(table):
    accumulate = table(Quorum(accumulate=1), 0, 1)
    accumulate.push(0, 0)
    assert accumulate.push(1, 0, shards=[[1, 1], [0, 1]]).hold != 0
    assert accumulate.counters == (1, 0, 0)
    assert accumulate.push(1, 0, again=True).hold == 0
    assert accumulate.counters == (2, 0, 0)


def test_while_a_hold_is_on_nothing_enters_and_no_version_is_completed(table):
    sync = table(Quorum(), 0, 1)
    sync.push(0, 0)
    sync.hold(77)
    assert sync.push(1, 0).hold == 77
    sync.leave(1)
    assert sync.look(0).mark[2] == 0
    sync.hold(0)
    assert sync.look(0).mark[2] == 1
    assert sync.counters == (1, 0, 0)


def test_targets_are_refreshed_with_the_version_that_passes_a_multiple_of_the_period(table):
    sync = table(Quorum(), 0, 1)
    counts = UPDATE._replace(minibatches=1)
    refreshes = []
    for version in range(7):
        found = [sync.push(worker, version, counts._replace(minibatches=1 + worker)) for worker in range(2)]
        refreshes.append([int(one.mark[1]) for one in found])
    minibatches = 3 * np.arange(1, 8)
    assert [after for _, after in refreshes] == (minibatches // PERIOD).tolist()
    assert [before for before, _ in refreshes] == [0, *(minibatches // PERIOD)[:-1]]


def test_after_a_restore_the_open_version_is_empty(table):
    sync = table(Quorum(), 0, 1)
    sync.push(0, 0)
    sync.begin(0, 1, counters=Counters(updates=9, minibatches=PERIOD - 1, target_refreshes=4))
    assert sync.counters == (9, 0, 0)
    sync.push(1, 9)
    found = sync.push(0, 9, UPDATE._replace(minibatches=1))
    assert found.mark[1:4].tolist() == [5, 10, 10]
