"""Tests of async_dqn.cluster.ledger: the operations in one process, against a ledger written out in plain Python."""

import dataclasses
import itertools
import threading

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from async_dqn.cluster.ledger import ANYONE, WIDTH, LedgerOperations, initial_rows, ledger_shape, parse
from async_dqn.store.base import Counters, MemberState, Stop, advance

WORKERS = 3
BUDGET = 60
PERIOD = 6  # minibatches from one target refresh to the next
OWN, OTHER = 11, 22  # tokens
NOTHING = Counters()
MAXIMA = {"staleness_max", "stopped"}


class LedgerInGraph:
    """A ledger in a graph of its own, with the operations of every worker under two tokens."""

    def __init__(self, max_staleness=0, target="", device="/cpu:0", tokens=(OWN, OTHER)):
        with tf.Graph().as_default() as graph, tf.device(device):
            shape = ledger_shape(WORKERS)
            variable = tf.compat.v1.get_variable("ledger_0", shape, tf.int64, trainable=False, use_resource=True)
            operations = LedgerOperations(variable)
            self._request, self._computed_on, self._is_start, self._token, self._generation, self._joins, self._hold = (
                tf.compat.v1.placeholder(tf.int64, []) for _ in range(7)
            )
            self._counts = tf.compat.v1.placeholder(tf.int64, [len(Counters._fields)])
            self._rows = tf.compat.v1.placeholder(tf.int64, shape)
            members = [(worker, token) for worker in range(WORKERS) for token in tokens]
            self._count = {
                (worker, token, is_push): operations.count(
                    worker,
                    token,
                    request=self._request,
                    counts=self._counts,
                    computed_on=self._computed_on if is_push else None,
                    budget=BUDGET,
                    target_period=PERIOD,
                    max_staleness=max_staleness,
                )
                for worker, token in members
                for is_push in (False, True)
            }
            self._join = {
                (worker, token): operations.join(
                    worker, token, is_start=self._is_start, generation=self._generation, joins=self._joins
                )
                for worker, token in members
            }
            self._leave = {
                (worker, state): operations.leave(worker, self._token, state)
                for worker in range(WORKERS)
                for state in (MemberState.DONE, MemberState.LOST)
            }
            self._take_hold, self._release = operations.hold(self._hold), operations.release(self._hold)
            self._set = operations.set(self._rows)
            self._read = variable.read_value()
        graph.finalize()
        self._session = tf.compat.v1.Session(target, graph=graph)
        self.generation = 0

    def set(self, rows):
        return self._session.run(self._set, {self._rows: rows})

    def begin(self, counters=NOTHING, starts=(), is_done=True):
        """A restore, or its first half alone."""
        self.generation += 1
        assert self.set(initial_rows(WORKERS, NOTHING, 5, -self.generation, list(starts))) == -self.generation
        if is_done:
            assert self.set(initial_rows(WORKERS, counters, 5, self.generation, list(starts))) == self.generation

    def send(self, worker, token, request, counts, computed_on=None):
        """A push where it was computed on something, else counts alone."""
        feed = {self._request: request, self._counts: counts, self._computed_on: computed_on or 0}
        return self._session.run(self._count[worker, token, computed_on is not None], feed)

    def count(self, worker, token, request, counts, computed_on=None):
        found = self.send(worker, token, request, counts, computed_on)
        before, after = (Counters(*map(int, row)) for row in (found.before, found.after))
        return before, after, int(found.granted), bool(found.is_member), int(found.mark[2]) > 0

    def join(self, worker, token, is_start=1, known=None):
        """`known`: the ledger as it was read before; None: as it is."""
        known = known or self.read()
        feed = {
            self._is_start: is_start,
            self._generation: known.generation,
            self._joins: known.members[worker].joins,
        }
        return parse(self._session.run(self._join[worker, token], feed))

    def leave(self, worker, token, state=MemberState.DONE):
        return parse(self._session.run(self._leave[worker, state], {self._token: token}))

    def hold(self, number):
        return parse(self._session.run(self._take_hold, {self._hold: number}))

    def release(self, number):
        return parse(self._session.run(self._release, {self._hold: number}))

    def read(self):
        return parse(self._session.run(self._read))


@dataclasses.dataclass
class ModelMember:
    counters: Counters = Counters()
    token: int = 0
    state: MemberState = MemberState.EXPECTED
    requests: dict = dataclasses.field(default_factory=lambda: {False: 0, True: 0})  # by whether they are pushes
    granted: int = 0
    push: tuple = (Counters(), False)  # counters before the last one, and whether it is to be applied
    outstanding: int = 0
    starts: int = 0


class Model:
    """What the ledger should be."""

    def __init__(self, counters, max_staleness):
        self.counters = self.base = counters
        self.max_staleness = max_staleness
        self.members = [ModelMember() for _ in range(WORKERS)]

    def count(self, worker, token, request, counts, computed_on):
        member, before, is_push = self.members[worker], self.counters, computed_on is not None
        if (member.state, member.token) != (MemberState.ACTIVE, token):
            return None, before, None, False, False
        if request <= member.requests[is_push]:
            is_last = request == member.requests[is_push]
            if is_push:
                return member.push[0], before, None, True, is_last and member.push[1]
            return before, before, member.granted, True, False
        is_fresh = not (is_push and self.max_staleness) or before.updates - computed_on <= self.max_staleness
        if not is_fresh:
            counts = counts._replace(updates=0, dropped=counts.dropped + counts.updates)
        self.counters = advance(before, counts, BUDGET, PERIOD)
        granted = self.counters.claimed_steps - before.claimed_steps
        if is_push:
            member.push = before, is_fresh
        else:
            member.granted = granted
        member.requests[is_push] = request
        member.outstanding += granted - counts.env_steps
        member.counters = advance(member.counters, counts._replace(claimed_steps=0), 0)
        refreshes = self.counters.target_refreshes - before.target_refreshes
        member.counters = member.counters._replace(
            claimed_steps=member.counters.claimed_steps + granted,
            target_refreshes=member.counters.target_refreshes + refreshes,
        )
        return before, self.counters, None if is_push else granted, True, is_push and is_fresh

    def free(self, member):
        self.counters = self.counters._replace(claimed_steps=self.counters.claimed_steps - member.outstanding)
        left = member.counters.claimed_steps - member.outstanding
        member.counters = member.counters._replace(claimed_steps=left)
        member.outstanding = member.granted = 0
        member.requests, member.push = {False: 0, True: 0}, (member.push[0], False)

    def join(self, worker, token, is_start):
        member = self.members[worker]
        self.free(member)
        member.starts += is_start if member.token != token else 0
        member.token, member.state = token, MemberState.ACTIVE

    def leave(self, worker, token, state):
        member = self.members[worker]
        if (member.state, member.token) == (MemberState.ACTIVE, token):
            self.free(member)
            member.token, member.state = 0, state


def check_sums(ledger):
    """Row 0 is row 1 and all members; what is claimed and not taken is what the members have outstanding."""
    for name in set(Counters._fields) - MAXIMA:
        own = sum(getattr(member.counters, name) for member in ledger.members)
        assert getattr(ledger.counters, name) == getattr(ledger.base, name) + own, name
    for name in MAXIMA:
        values = [getattr(ledger.base, name), *(getattr(member.counters, name) for member in ledger.members)]
        assert getattr(ledger.counters, name) == max(values), name
    ahead = ledger.counters.claimed_steps - ledger.counters.env_steps
    assert ahead - (ledger.base.claimed_steps - ledger.base.env_steps) == sum(s.outstanding for s in ledger.members)
    for member in ledger.members:
        assert member.state is MemberState.ACTIVE or (member.token, member.outstanding) == (0, 0)


def check_equal(ledger, model):
    check_sums(ledger)
    assert (ledger.counters, ledger.base) == (model.counters, model.base)
    for member, expected in zip(ledger.members, model.members, strict=True):
        assert member[:5] == (expected.counters, expected.token, expected.state, expected.outstanding, expected.starts)


@pytest.fixture(scope="module")
def tables():
    return {max_staleness: LedgerInGraph(max_staleness) for max_staleness in (0, 2)}


@pytest.fixture
def table(tables):
    tables[0].begin()
    return tables[0]


WHO = st.tuples(st.integers(0, WORKERS - 1), st.sampled_from([OWN, OWN, OWN, OTHER]))
COUNTING = st.fixed_dictionaries(
    {
        "request": st.integers(-1, 2),  # 1: the next one; a request of before comes again
        "claim": st.integers(0, 25),
        "give_back": st.floats(0, 1),  # of what is outstanding
        "take": st.floats(0, 1),
        "update": st.booleans(),
        "late": st.integers(0, 5),
        "staleness": st.integers(0, 9),
        "minibatches": st.integers(0, 4),
        "stopped": st.sampled_from([0] * 12 + [int(stop) for stop in Stop]),
    }
)
COMMAND = st.one_of(
    st.tuples(st.just("count"), WHO, COUNTING),
    st.tuples(st.just("count"), WHO, COUNTING),
    st.tuples(st.just("join"), WHO, st.integers(0, 1)),
    st.tuples(st.just("leave"), WHO, st.sampled_from([MemberState.DONE, MemberState.LOST])),
)


def counts_of(member, numbers):
    """Counts that a worker with this member may send: it takes and gives back no more than it holds."""
    taken = int(member.outstanding * numbers["take"])
    given_back = int((member.outstanding - taken) * numbers["give_back"])
    return Counters(
        claimed_steps=-given_back if given_back or numbers["update"] else numbers["claim"],
        env_steps=taken,
        minibatches=numbers["minibatches"],
        updates=int(numbers["update"]),
        staleness_sum=numbers["staleness"],
        staleness_max=numbers["staleness"],
        bad_values=taken // 7,
        stopped=numbers["stopped"],
    )


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([0, 2]), st.integers(0, BUDGET + 5), st.lists(COMMAND, max_size=30))
@example(0, 0, [("leave", (0, OWN), MemberState.LOST), ("join", (0, OWN), 1), ("join", (0, OTHER), 1)])
def test_the_ledger_is_what_it_would_be_in_plain_python(tables, max_staleness, start, commands):
    table, model = (
        tables[max_staleness],
        Model(Counters(claimed_steps=start, env_steps=start, updates=3), max_staleness),
    )
    table.begin(model.counters)
    for worker in range(WORKERS):
        table.join(worker, OWN)
        model.join(worker, OWN, 1)
    for name, (worker, token), argument in commands:
        if name == "join":
            table.join(worker, token, argument)
            model.join(worker, token, argument)
        elif name == "leave":
            table.leave(worker, token, argument)
            model.leave(worker, token, argument)
        else:
            is_push = argument["update"]
            request = model.members[worker].requests[is_push] + argument["request"]
            counts = counts_of(model.members[worker], argument)
            computed_on = model.counters.updates - argument["late"] if is_push else None
            found = table.count(worker, token, request, counts, computed_on)
            expected = model.count(worker, token, request, counts, computed_on)
            for one, other in zip(found, expected, strict=True):
                assert other is None or one == other  # None: it says nothing
        check_equal(table.read(), model)
        assert model.counters.claimed_steps <= max(start, BUDGET)


def test_rows_and_ledger_are_two_forms_of_the_same():
    counters = Counters(*range(1, 1 + len(Counters._fields)))
    rows = initial_rows(3, counters, run_id=7, generation=9, starts=[2, 0, 5], settings_id=8)
    assert (rows.shape, rows.dtype) == ((2 + 3, WIDTH), np.int64)
    ledger = parse(rows)
    assert (ledger.counters, ledger.base) == (counters, counters)
    assert (ledger.run_id, ledger.generation, ledger.settings_id) == (7, 9, 8)
    assert [member.starts for member in ledger.members] == [2, 0, 5]
    assert all(member[:4] == (Counters(), 0, MemberState.EXPECTED, 0) for member in ledger.members)


@pytest.mark.parametrize("starts", [[], [1], [1, 2, 3, 4]], ids=len)
def test_starts_of_another_number_of_workers_are_no_fault(starts):
    assert [member.starts for member in parse(initial_rows(3, Counters(), 1, 1, starts)).members] == (starts + [0] * 3)[
        :3
    ]


def test_the_newest_process_is_the_member_and_joining_frees_what_the_one_before_had_claimed(table):
    table.join(0, OWN)
    assert table.count(0, OWN, 1, Counters(claimed_steps=50))[2] == 50
    table.count(0, OWN, 2, Counters(env_steps=20))
    ledger = table.join(0, OTHER)
    assert ledger.members[0][:5] == (Counters(claimed_steps=20, env_steps=20), OTHER, MemberState.ACTIVE, 0, 2)
    assert ledger.counters == Counters(claimed_steps=20, env_steps=20)
    assert table.count(0, OWN, 3, Counters(env_steps=10, stopped=1))[1:4:2] == (ledger.counters, False)
    assert table.count(0, OTHER, 1, Counters(claimed_steps=50))[2] == BUDGET - 20
    check_sums(table.read())


def test_a_process_that_joins_again_frees_its_claims_and_numbers_requests_anew(table):
    table.join(0, OWN)
    table.count(0, OWN, 9, Counters(claimed_steps=50))
    assert table.join(0, OWN, is_start=0).members[0][:5] == (Counters(), OWN, MemberState.ACTIVE, 0, 1)
    assert table.count(0, OWN, 1, Counters(claimed_steps=50))[2] == 50


@pytest.mark.parametrize("state", [MemberState.DONE, MemberState.LOST])
def test_only_the_member_s_token_ends_its_membership_and_its_claims_go_back(table, state):
    table.join(1, OWN)
    table.count(1, OWN, 1, Counters(claimed_steps=50))
    joined = table.read()
    for token in (OTHER, 0):
        assert table.leave(1, token, state) == joined
    ledger = table.leave(1, OWN, state)
    assert ledger.members[1][:5] == (Counters(), 0, state, 0, 1)
    assert ledger.counters.claimed_steps == 0
    assert table.leave(1, OWN, MemberState.DONE) == ledger  # it has left already
    assert not table.count(1, OWN, 2, Counters(claimed_steps=50))[3]
    assert not table.count(1, 11, 2, Counters(claimed_steps=50))[3]
    assert table.read() == ledger


def test_nobody_is_a_worker_that_has_not_come(table):
    before = table.read()
    assert not table.count(0, OWN, 1, Counters(claimed_steps=5))[3]
    assert table.leave(0, 0, MemberState.LOST) == before
    assert table.read() == before


@pytest.mark.parametrize("is_done", [False, True])
def test_nobody_can_join_while_a_restore_is_under_way(table, is_done):
    table.begin(is_done=is_done)
    ledger = table.join(0, OWN)
    assert ledger.members[0].state is (MemberState.ACTIVE if is_done else MemberState.EXPECTED)
    assert ledger.members[0].starts == int(is_done)
    assert table.count(0, OWN, 1, Counters(claimed_steps=5))[3] is is_done


def test_a_restore_that_is_sent_again_or_arrives_late_does_nothing(table):
    for begun in (-table.generation, table.generation, 1 - table.generation, table.generation - 1):
        table.join(0, OWN)
        before = table.read()
        assert table.set(initial_rows(WORKERS, Counters(updates=99), 5, begun, [])) == table.generation
        assert table.read() == before


def test_a_join_that_arrives_late_does_nothing(table):
    known = table.read()
    table.join(0, OWN, known=known)
    table.count(0, OWN, 1, Counters(claimed_steps=5))
    joined = table.read()
    assert table.join(0, OWN, known=known) == joined  # its own, sent again: what it claimed stays claimed
    assert table.join(0, OTHER, known=known) == joined
    table.begin()
    assert table.join(0, OWN, known=joined) == table.read()


def test_a_new_generation_knows_no_process_of_the_one_before(table):
    table.join(0, OWN)
    table.count(0, OWN, 1, Counters(claimed_steps=30, minibatches=4))
    table.begin(Counters(env_steps=10, claimed_steps=10), starts=[1, 0, 0])
    assert table.count(0, OWN, 2, Counters(env_steps=30))[1:4:2] == (Counters(env_steps=10, claimed_steps=10), False)
    assert table.join(0, OWN, is_start=0).members[0].starts == 1
    check_sums(table.read())


def test_a_request_that_comes_again_is_told_the_same_grant_and_counts_nothing(table):
    table.join(0, OWN)
    table.join(1, OWN)
    assert table.count(0, OWN, 1, Counters(claimed_steps=25))[2:4] == (25, True)
    table.count(1, OWN, 1, Counters(claimed_steps=100))
    before = table.read()
    assert table.count(0, OWN, 1, Counters(claimed_steps=25))[2:4] == (25, True)
    assert table.read() == before
    assert table.count(0, OWN, 2, Counters(claimed_steps=25))[2:4] == (0, True)


def test_a_push_that_comes_again_gets_the_same_answer_until_the_next_one(table):
    table.join(0, OWN)
    table.join(1, OWN)
    first = table.send(0, OWN, 1, Counters(updates=1, minibatches=2), computed_on=0)
    table.send(1, OWN, 1, Counters(updates=1, minibatches=3), computed_on=0)
    again = table.send(0, OWN, 1, Counters(updates=1, minibatches=2), computed_on=0)
    assert (again.before.tolist(), again.mark[2]) == (first.before.tolist(), first.mark[2])
    assert first.mark[2] > 0
    second = table.send(0, OWN, 2, Counters(updates=1), computed_on=1)
    assert second.mark[2] > first.mark[2]
    assert table.send(0, OWN, 1, Counters(updates=1, minibatches=2), computed_on=0).mark[2] == 0  # it was given up
    assert table.read().counters == Counters(updates=3, minibatches=5)
    table.join(0, OTHER)
    third = table.send(0, OTHER, 1, Counters(updates=1), computed_on=3)
    assert third.mark[2] > second.mark[2]  # of another process, which counts from 1 again


def test_counts_and_pushes_are_numbered_apart(table):
    table.join(0, OWN)
    table.count(0, OWN, 7, Counters(updates=1), computed_on=0)
    assert table.count(0, OWN, 1, Counters(claimed_steps=5))[2] == 5
    assert table.count(0, OWN, 8, Counters(updates=1), computed_on=0)[4]
    assert table.read().counters == Counters(updates=2, claimed_steps=5)


def test_while_a_hold_is_on_no_update_and_no_minibatch_is_counted(table):
    table.join(1, OWN)
    table.count(1, OWN, 1, Counters(updates=1), computed_on=0)
    assert table.hold(77).hold == 77
    before = table.read()
    for computed_on in (None, 0):
        found = table.send(1, OWN, 2, Counters(minibatches=1), computed_on)
        assert (found.hold, found.mark[2]) == (77, 0)
    assert table.read() == before
    assert table.send(1, OWN, 1, Counters(updates=1), 0).mark[2] > 0  # admitted before the hold, and sent again
    assert table.count(1, OWN, 2, Counters(claimed_steps=4))[2] == 4  # claims go on
    assert table.release(76).hold == 77
    assert table.read().hold == 77  # another hold is nobody's to end
    assert table.release(77).hold == 77
    assert table.release(77).hold == 0
    found = table.send(1, OWN, 2, Counters(minibatches=1), 0)
    assert (found.hold, found.mark[2] > 0) == (0, True)


@pytest.mark.parametrize("end", ["join", "leave", "evict", "restore"])
def test_a_hold_ends_with_the_chief_that_took_it(table, end):
    table.join(0, OWN)
    table.join(1, OWN)
    table.hold(77)
    table.leave(1, OWN)
    table.join(1, OTHER)
    table.leave(0, OTHER)
    assert table.read().hold == 77
    if end == "join":
        table.join(0, OTHER)
    elif end == "restore":
        table.begin()
    else:
        table.leave(0, OWN, MemberState.DONE if end == "leave" else MemberState.LOST)
    assert table.read().hold == 0


def test_whoever_is_the_member_can_be_evicted(table):
    table.join(1, OWN)
    assert table.leave(1, ANYONE, MemberState.LOST).members[1].state == MemberState.LOST
    assert table.leave(2, ANYONE, MemberState.LOST).members[2].state == MemberState.EXPECTED  # nobody has joined


@pytest.mark.parametrize(("late", "is_applied"), [(0, True), (1, True), (2, True), (3, False), (9, False)])
def test_updates_that_are_too_stale_are_dropped_and_counted(tables, late, is_applied):
    tables[2].begin(Counters(updates=20))
    tables[2].join(0, OWN)
    counts = Counters(updates=1, minibatches=4, env_steps=0)
    before, after, _, is_member, may_apply = tables[2].count(0, OWN, 1, counts, 20 - late)
    assert (before.updates, is_member, may_apply) == (20, True, is_applied)
    assert after == Counters(updates=20 + is_applied, dropped=1 - is_applied, minibatches=4)
    check_sums(tables[2].read())


def test_counts_without_an_update_are_never_too_stale(tables):
    tables[2].begin(Counters(updates=20))
    tables[2].join(0, OWN)
    assert tables[2].count(0, OWN, 1, Counters(claimed_steps=5, minibatches=1))[1:3] == (
        Counters(updates=20, claimed_steps=5, minibatches=1),
        5,
    )


def test_the_budget_is_met_exactly_although_a_worker_is_lost_with_claims(table):
    for worker in range(WORKERS):
        table.join(worker, OWN)
    requests = [0] * WORKERS

    def count(worker, **counts):
        requests[worker] += 1
        return table.count(worker, OWN, requests[worker], Counters(**counts))[2]

    assert [count(worker, claimed_steps=25) for worker in range(WORKERS)] == [25, 25, BUDGET - 2 * 25]
    count(0, env_steps=8)
    assert count(1, claimed_steps=25) == 0
    table.leave(0, OWN, MemberState.LOST)
    assert count(1, claimed_steps=10) == 10
    assert count(2, claimed_steps=25) == 25 - 8 - 10
    count(1, env_steps=25 + 10)
    count(2, env_steps=BUDGET - 2 * 25 + 25 - 8 - 10)
    assert not table.count(0, OWN, 9, Counters(env_steps=17))[3]  # it thaws, and reports what it took meanwhile
    assert table.read().counters == Counters(claimed_steps=BUDGET, env_steps=BUDGET)


def test_what_is_freed_after_a_stop_is_not_granted_again(table):
    table.join(0, OWN)
    table.join(1, OWN)
    table.count(0, OWN, 1, Counters(claimed_steps=50))
    table.count(1, OWN, 1, Counters(stopped=Stop.INTERRUPTED))
    assert table.leave(0, OWN).counters.claimed_steps == 0
    assert table.count(1, OWN, 2, Counters(claimed_steps=5))[2] == 0
    assert table.count(1, OWN, 3, Counters(stopped=Stop.SOLVED))[1].stopped == Stop.INTERRUPTED


def test_many_sessions_at_once_change_it_one_after_another():
    """Each worker and the ps have graphs and sessions of their own; they share the variable and its lock by name."""
    server = tf.distribute.Server.create_local_server()
    device = "/job:localhost/task:0/cpu:0"
    chief = LedgerInGraph(target=server.target, device=device)
    chief.begin(Counters(updates=7))
    sessions = [LedgerInGraph(target=server.target, device=device, tokens=(100 + worker,)) for worker in range(WORKERS)]
    barrier = threading.Barrier(WORKERS + 1)
    granted = [[] for _ in range(WORKERS)]
    before = [[] for _ in range(WORKERS)]
    refused = []

    def work(worker):
        session, token = sessions[worker], 100 + worker
        session.join(worker, token)
        barrier.wait(60)
        for request in itertools.count(1, 2):
            _, after, steps, is_member, _ = session.count(worker, token, request, Counters(claimed_steps=worker + 1))
            if not is_member:
                refused.append(worker)
                return
            if worker < 2 and after.env_steps == BUDGET:
                return
            granted[worker].append(steps)
            counted = session.count(worker, token, (request + 1) // 2, Counters(env_steps=steps, updates=1), 0)
            if counted[3]:
                before[worker].append(counted[0].updates)

    def evict():
        barrier.wait(60)
        while chief.read().members[2].counters.updates < 3:
            pass
        chief.leave(2, 102, MemberState.LOST)

    threads = [threading.Thread(target=work, args=[worker], daemon=True) for worker in range(WORKERS)]
    threads.append(threading.Thread(target=evict, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    ledger = chief.read()
    check_sums(ledger)
    assert refused == [2]
    assert ledger.counters.claimed_steps == ledger.counters.env_steps == BUDGET
    assert [member.counters.env_steps for member in ledger.members[:2]] == [sum(steps) for steps in granted[:2]]
    assert ledger.members[2].counters.env_steps in (sum(granted[2]), sum(granted[2][:-1]))
    places = sorted(sum(before, []))
    assert places == list(range(7, 7 + len(places)))  # each update has a place of its own
    assert ledger.counters.updates == 7 + len(places)
