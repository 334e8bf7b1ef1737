"""Tests of async_dqn.cluster.ledger: the operations in one process, against a ledger written out in plain Python."""

import dataclasses
import itertools
import threading

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from async_dqn.cluster.ledger import WIDTH, LedgerOperations, SeatState, initial_rows, parse
from async_dqn.store.base import Counters, Stop, advance

WORKERS = 3
BUDGET = 60
PERIOD = 6  # minibatches from one target refresh to the next
OWN, OTHER = 11, 22  # tokens
NOTHING = Counters()
MAXIMA = {"staleness_max", "stopped"}


class Book:
    """A ledger in a graph of its own, with the operations of every worker under two tokens."""

    def __init__(self, max_staleness=0, target="", device="/cpu:0", tokens=(OWN, OTHER)):
        with tf.Graph().as_default() as graph, tf.device(device):
            shape = initial_rows(WORKERS, Counters(), 0, 0, []).shape
            variable = tf.compat.v1.get_variable("ledger_0", shape, tf.int64, trainable=False, use_resource=True)
            operations = LedgerOperations(variable)
            self._ticket, self._computed_on, self._is_start, self._token = (
                tf.compat.v1.placeholder(tf.int64, []) for _ in range(4)
            )
            self._counts = tf.compat.v1.placeholder(tf.int64, [len(Counters._fields)])
            self._rows = tf.compat.v1.placeholder(tf.int64, shape)
            seats = [(worker, token) for worker in range(WORKERS) for token in tokens]
            self._count = {
                (worker, token): operations.count(
                    worker,
                    token,
                    ticket=self._ticket,
                    counts=self._counts,
                    computed_on=self._computed_on,
                    budget=BUDGET,
                    target_period=PERIOD,
                    max_staleness=max_staleness,
                )
                for worker, token in seats
            }
            self._join = {(worker, token): operations.join(worker, token, self._is_start) for worker, token in seats}
            self._leave = {
                (worker, state): operations.leave(worker, self._token, state)
                for worker in range(WORKERS)
                for state in (SeatState.DONE, SeatState.LOST)
            }
            self._set = operations.set(self._rows)
            self._read = variable.read_value()
        graph.finalize()
        self._session = tf.compat.v1.Session(target, graph=graph)

    def set(self, rows):
        self._session.run(self._set, {self._rows: rows})

    def begin(self, counters=NOTHING, generation=1, starts=()):
        self.set(initial_rows(WORKERS, counters, 5, generation, list(starts)))

    def count(self, worker, token, ticket, counts, computed_on=0):
        feed = {self._ticket: ticket, self._counts: counts, self._computed_on: computed_on}
        before, after, granted, _, is_seated, may_apply, _ = self._session.run(self._count[worker, token], feed)
        return Counters(*map(int, before)), Counters(*map(int, after)), int(granted), bool(is_seated), bool(may_apply)

    def join(self, worker, token, is_start=1):
        return parse(self._session.run(self._join[worker, token], {self._is_start: is_start}))

    def leave(self, worker, token, state=SeatState.DONE):
        return parse(self._session.run(self._leave[worker, state], {self._token: token}))

    def read(self):
        return parse(self._session.run(self._read))


@dataclasses.dataclass
class ModelSeat:
    counters: Counters = Counters()
    token: int = 0
    state: SeatState = SeatState.VACANT
    ticket: int = 0
    granted: int = 0
    outstanding: int = 0
    starts: int = 0


class Model:
    """What the ledger should be."""

    def __init__(self, counters, max_staleness):
        self.counters = self.base = counters
        self.max_staleness = max_staleness
        self.seats = [ModelSeat() for _ in range(WORKERS)]

    def count(self, worker, token, ticket, counts, computed_on):
        seat, before = self.seats[worker], self.counters
        if (seat.state, seat.token) != (SeatState.ACTIVE, token):
            return before, before, None, False, False
        if ticket <= seat.ticket:
            return before, before, seat.granted, True, False
        is_fresh = not self.max_staleness or before.updates - computed_on <= self.max_staleness
        if not is_fresh:
            counts = counts._replace(updates=0, dropped=counts.dropped + counts.updates)
        self.counters = advance(before, counts, BUDGET, PERIOD)
        seat.granted = self.counters.claimed_steps - before.claimed_steps
        seat.ticket = ticket
        seat.outstanding += seat.granted - counts.env_steps
        seat.counters = advance(seat.counters, counts._replace(claimed_steps=0), 0)
        seat.counters = seat.counters._replace(
            claimed_steps=seat.counters.claimed_steps + seat.granted,
            target_refreshes=seat.counters.target_refreshes + self.counters.target_refreshes - before.target_refreshes,
        )
        return before, self.counters, seat.granted, True, is_fresh

    def free(self, seat):
        self.counters = self.counters._replace(claimed_steps=self.counters.claimed_steps - seat.outstanding)
        left = seat.counters.claimed_steps - seat.outstanding
        seat.counters = seat.counters._replace(claimed_steps=left)
        seat.outstanding = seat.ticket = seat.granted = 0

    def join(self, worker, token, is_start):
        seat = self.seats[worker]
        self.free(seat)
        seat.starts += is_start if seat.token != token else 0
        seat.token, seat.state = token, SeatState.ACTIVE

    def leave(self, worker, token, state):
        seat = self.seats[worker]
        if (seat.state, seat.token) == (SeatState.ACTIVE, token):
            self.free(seat)
            seat.token, seat.state = 0, state


def check_sums(ledger):
    """Row 0 is row 1 and all seats; what is claimed and not taken is what the seats have outstanding."""
    for name in set(Counters._fields) - MAXIMA:
        own = sum(getattr(seat.counters, name) for seat in ledger.seats)
        assert getattr(ledger.counters, name) == getattr(ledger.base, name) + own, name
    for name in MAXIMA:
        values = [getattr(ledger.base, name), *(getattr(seat.counters, name) for seat in ledger.seats)]
        assert getattr(ledger.counters, name) == max(values), name
    ahead = ledger.counters.claimed_steps - ledger.counters.env_steps
    assert ahead - (ledger.base.claimed_steps - ledger.base.env_steps) == sum(s.outstanding for s in ledger.seats)
    for seat in ledger.seats:
        assert seat.state is SeatState.ACTIVE or (seat.token, seat.outstanding) == (0, 0)


def check_equal(ledger, model):
    check_sums(ledger)
    assert (ledger.counters, ledger.base) == (model.counters, model.base)
    for seat, expected in zip(ledger.seats, model.seats, strict=True):
        assert seat == (expected.counters, expected.token, expected.state, expected.outstanding, expected.starts)


@pytest.fixture(scope="module")
def books():
    return {max_staleness: Book(max_staleness) for max_staleness in (0, 2)}


@pytest.fixture
def book(books):
    books[0].begin()
    return books[0]


WHO = st.tuples(st.integers(0, WORKERS - 1), st.sampled_from([OWN, OWN, OWN, OTHER]))
COUNTING = st.fixed_dictionaries(
    {
        "ticket": st.integers(-1, 2),  # 1: the next one; a ticket of before comes again
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
    st.tuples(st.just("leave"), WHO, st.sampled_from([SeatState.DONE, SeatState.LOST])),
)


def counts_of(seat, numbers):
    """Counts that a worker with this seat may send: it takes and gives back no more than it holds."""
    taken = int(seat.outstanding * numbers["take"])
    given_back = int((seat.outstanding - taken) * numbers["give_back"])
    return Counters(
        claimed_steps=-given_back if given_back else numbers["claim"],
        env_steps=taken,
        minibatches=numbers["minibatches"],
        updates=int(numbers["update"]),
        staleness_sum=numbers["staleness"],
        staleness_max=numbers["staleness"],
        episodes=taken // 7,
        stopped=numbers["stopped"],
    )


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([0, 2]), st.integers(0, BUDGET + 5), st.lists(COMMAND, max_size=30))
@example(0, 0, [("leave", (0, OWN), SeatState.LOST), ("join", (0, OWN), 1), ("join", (0, OTHER), 1)])
def test_the_ledger_is_what_it_would_be_in_plain_python(books, max_staleness, start, commands):
    book, model = books[max_staleness], Model(Counters(claimed_steps=start, env_steps=start, updates=3), max_staleness)
    book.begin(model.counters)
    for worker in range(WORKERS):
        book.join(worker, OWN)
        model.join(worker, OWN, 1)
    for name, (worker, token), argument in commands:
        if name == "join":
            book.join(worker, token, argument)
            model.join(worker, token, argument)
        elif name == "leave":
            book.leave(worker, token, argument)
            model.leave(worker, token, argument)
        else:
            ticket = model.seats[worker].ticket + argument["ticket"]
            counts = counts_of(model.seats[worker], argument)
            computed_on = model.counters.updates - argument["late"]
            found = book.count(worker, token, ticket, counts, computed_on)
            expected = model.count(worker, token, ticket, counts, computed_on)
            if expected[2] is None:  # of a refusal, the grant says nothing
                found = (*found[:2], None, *found[3:])
            assert found == expected
        check_equal(book.read(), model)
        assert model.counters.claimed_steps <= max(start, BUDGET)


def test_rows_and_ledger_are_two_forms_of_the_same():
    counters = Counters(*range(1, 1 + len(Counters._fields)))
    rows = initial_rows(3, counters, run_id=7, generation=9, starts=[2, 0, 5], settings_id=8)
    assert (rows.shape, rows.dtype) == ((2 + 3, WIDTH), np.int64)
    ledger = parse(rows)
    assert (ledger.counters, ledger.base) == (counters, counters)
    assert (ledger.run_id, ledger.generation, ledger.settings_id) == (7, 9, 8)
    assert [seat.starts for seat in ledger.seats] == [2, 0, 5]
    assert all(seat[:4] == (Counters(), 0, SeatState.VACANT, 0) for seat in ledger.seats)


@pytest.mark.parametrize("starts", [[], [1], [1, 2, 3, 4]], ids=len)
def test_starts_of_another_number_of_workers_are_no_fault(starts):
    assert [seat.starts for seat in parse(initial_rows(3, Counters(), 1, 1, starts)).seats] == (starts + [0] * 3)[:3]


def test_joining_makes_the_seat_the_newest_process_s_and_frees_what_the_one_before_had_claimed(book):
    book.join(0, OWN)
    assert book.count(0, OWN, 1, Counters(claimed_steps=50))[2] == 50
    book.count(0, OWN, 2, Counters(env_steps=20))
    ledger = book.join(0, OTHER)
    assert ledger.seats[0] == (Counters(claimed_steps=20, env_steps=20), OTHER, SeatState.ACTIVE, 0, 2)
    assert ledger.counters == Counters(claimed_steps=20, env_steps=20)
    assert book.count(0, OWN, 3, Counters(env_steps=10, stopped=1))[1:4:2] == (ledger.counters, False)
    assert book.count(0, OTHER, 1, Counters(claimed_steps=50))[2] == BUDGET - 20
    check_sums(book.read())


def test_a_process_that_joins_again_frees_its_claims_and_draws_tickets_anew(book):
    book.join(0, OWN)
    book.count(0, OWN, 9, Counters(claimed_steps=50))
    assert book.join(0, OWN, is_start=0).seats[0] == (Counters(), OWN, SeatState.ACTIVE, 0, 1)
    assert book.count(0, OWN, 1, Counters(claimed_steps=50))[2] == 50


@pytest.mark.parametrize("state", [SeatState.DONE, SeatState.LOST])
def test_leaving_frees_the_seat_and_its_claims_for_the_token_that_sits_there_only(book, state):
    book.join(1, OWN)
    book.count(1, OWN, 1, Counters(claimed_steps=50))
    seated = book.read()
    for token in (OTHER, 0):
        assert book.leave(1, token, state) == seated
    ledger = book.leave(1, OWN, state)
    assert ledger.seats[1] == (Counters(), 0, state, 0, 1)
    assert ledger.counters.claimed_steps == 0
    assert book.leave(1, OWN, SeatState.DONE) == ledger  # it has left already
    assert not book.count(1, OWN, 2, Counters(claimed_steps=50))[3]
    assert not book.count(1, 11, 2, Counters(claimed_steps=50))[3]
    assert book.read() == ledger


def test_a_vacant_seat_is_nobody_s(book):
    before = book.read()
    assert not book.count(0, OWN, 1, Counters(claimed_steps=5))[3]
    assert book.leave(0, 0, SeatState.LOST) == before
    assert book.read() == before


@pytest.mark.parametrize("generation", [0, 3])
def test_nobody_can_join_while_a_restore_is_under_way(book, generation):
    book.begin(generation=generation)
    ledger = book.join(0, OWN)
    assert ledger.seats[0].state is (SeatState.ACTIVE if generation else SeatState.VACANT)
    assert ledger.seats[0].starts == (1 if generation else 0)
    assert book.count(0, OWN, 1, Counters(claimed_steps=5))[3] is bool(generation)


def test_a_new_generation_knows_no_process_of_the_one_before(book):
    book.join(0, OWN)
    book.count(0, OWN, 1, Counters(claimed_steps=30, minibatches=4))
    book.begin(Counters(env_steps=10, claimed_steps=10), generation=2, starts=[1, 0, 0])
    assert book.count(0, OWN, 2, Counters(env_steps=30))[1:4:2] == (Counters(env_steps=10, claimed_steps=10), False)
    assert book.join(0, OWN, is_start=0).seats[0].starts == 1
    check_sums(book.read())


def test_a_ticket_that_comes_again_is_told_the_same_grant_and_counts_nothing(book):
    book.join(0, OWN)
    book.join(1, OWN)
    assert book.count(0, OWN, 1, Counters(claimed_steps=25))[2:] == (25, True, True)
    book.count(1, OWN, 1, Counters(claimed_steps=100))
    before = book.read()
    assert book.count(0, OWN, 1, Counters(claimed_steps=25))[2:] == (25, True, False)
    assert book.count(0, OWN, 0, Counters(claimed_steps=25, updates=1))[3:] == (True, False)
    assert book.read() == before
    assert book.count(0, OWN, 2, Counters(claimed_steps=25))[2:] == (0, True, True)


@pytest.mark.parametrize(("late", "is_applied"), [(0, True), (1, True), (2, True), (3, False), (9, False)])
def test_updates_that_are_too_stale_are_dropped_and_counted(books, late, is_applied):
    books[2].begin(Counters(updates=20))
    books[2].join(0, OWN)
    counts = Counters(updates=1, minibatches=4, env_steps=0)
    before, after, _, is_seated, may_apply = books[2].count(0, OWN, 1, counts, computed_on=20 - late)
    assert (before.updates, is_seated, may_apply) == (20, True, is_applied)
    assert after == Counters(updates=20 + is_applied, dropped=1 - is_applied, minibatches=4)
    check_sums(books[2].read())


def test_counts_without_an_update_are_never_too_stale(books):
    books[2].begin(Counters(updates=20))
    books[2].join(0, OWN)
    assert books[2].count(0, OWN, 1, Counters(claimed_steps=5, minibatches=1))[1:3] == (
        Counters(updates=20, claimed_steps=5, minibatches=1),
        5,
    )


def test_the_budget_is_met_exactly_although_a_worker_is_lost_with_claims(book):
    for worker in range(WORKERS):
        book.join(worker, OWN)
    tickets = [0] * WORKERS

    def count(worker, **counts):
        tickets[worker] += 1
        return book.count(worker, OWN, tickets[worker], Counters(**counts))[2]

    assert [count(worker, claimed_steps=25) for worker in range(WORKERS)] == [25, 25, BUDGET - 2 * 25]
    count(0, env_steps=8)
    assert count(1, claimed_steps=25) == 0
    book.leave(0, OWN, SeatState.LOST)
    assert count(1, claimed_steps=10) == 10
    assert count(2, claimed_steps=25) == 25 - 8 - 10
    count(1, env_steps=25 + 10)
    count(2, env_steps=BUDGET - 2 * 25 + 25 - 8 - 10)
    assert not book.count(0, OWN, 9, Counters(env_steps=17))[3]  # it thaws, and reports what it took meanwhile
    assert book.read().counters == Counters(claimed_steps=BUDGET, env_steps=BUDGET)


def test_what_is_freed_after_a_stop_is_not_granted_again(book):
    book.join(0, OWN)
    book.join(1, OWN)
    book.count(0, OWN, 1, Counters(claimed_steps=50))
    book.count(1, OWN, 1, Counters(stopped=Stop.INTERRUPTED))
    assert book.leave(0, OWN).counters.claimed_steps == 0
    assert book.count(1, OWN, 2, Counters(claimed_steps=5))[2] == 0
    assert book.count(1, OWN, 3, Counters(stopped=Stop.SOLVED))[1].stopped == Stop.INTERRUPTED


def test_many_sessions_at_once_change_it_one_after_another():
    """Each worker and the ps have graphs and sessions of their own; they share the variable and its lock by name."""
    server = tf.distribute.Server.create_local_server()
    device = "/job:localhost/task:0/cpu:0"
    chief = Book(target=server.target, device=device)
    chief.begin(Counters(updates=7))
    sessions = [Book(target=server.target, device=device, tokens=(100 + worker,)) for worker in range(WORKERS)]
    barrier = threading.Barrier(WORKERS + 1)
    granted = [[] for _ in range(WORKERS)]
    before = [[] for _ in range(WORKERS)]
    refused = []

    def work(worker):
        session, token = sessions[worker], 100 + worker
        session.join(worker, token)
        barrier.wait(60)
        for ticket in itertools.count(1, 2):
            _, after, steps, is_seated, _ = session.count(worker, token, ticket, Counters(claimed_steps=worker + 1))
            if not is_seated:
                refused.append(worker)
                return
            if worker < 2 and after.env_steps == BUDGET:
                return
            granted[worker].append(steps)
            counted = session.count(worker, token, ticket + 1, Counters(env_steps=steps, updates=1))
            if counted[3]:
                before[worker].append(counted[0].updates)

    def evict():
        barrier.wait(60)
        while chief.read().seats[2].counters.updates < 3:
            pass
        chief.leave(2, 102, SeatState.LOST)

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
    assert [seat.counters.env_steps for seat in ledger.seats[:2]] == [sum(steps) for steps in granted[:2]]
    assert ledger.seats[2].counters.env_steps in (sum(granted[2]), sum(granted[2][:-1]))
    places = sorted(sum(before, []))
    assert places == list(range(7, 7 + len(places)))  # each update has a place of its own
    assert ledger.counters.updates == 7 + len(places)
