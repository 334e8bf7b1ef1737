"""The ledger on ps 0: the global counters, and a seat for every worker. Every change of it is atomic.

It is one int64 variable [2 + W, WIDTH]. Row 0 holds the counters of the run and who it is; row 1 the counters as they
stood when the ledger was last set; row 2 + w the seat of worker w: its own counts since then, the token of the process
that sits there, and the receipt for its last ticket. So at any time row 0 is row 1 plus all seats.

A process takes its seat with a random token, and whatever it sends later is refused once the seat is another's: a
worker that stood still while the run went on cannot write into it. Steps that a worker claimed and has not taken go
back into the budget in the moment in which it leaves, is replaced or is lost.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.store.base import Counters

_C = len(Counters._fields)
_CLAIMED, _STEPS, _MINIBATCHES, _UPDATES, _DROPPED, _REFRESHES, _STOPPED = map(
    Counters._fields.index,
    ("claimed_steps", "env_steps", "minibatches", "updates", "dropped", "target_refreshes", "stopped"),
)
_MAXIMA = tuple(map(Counters._fields.index, ("staleness_max", "stopped")))
_RUN_ID, _GENERATION, _SETTINGS_ID = _C, _C + 1, _C + 2
_TOKEN, _STATE, _TICKET, _GRANTED, _OUTSTANDING, _STARTS, _UPDATES_BEFORE, _REFRESHED = range(_C, _C + 8)
WIDTH = _C + 8
_SEATS = 2  # the row of worker 0


class SeatState(IntEnum):
    """Where a worker stands."""

    VACANT = 0  # it has not come yet
    ACTIVE = 1
    DONE = 2
    LOST = 3  # its lease ran out


class Seat(NamedTuple):
    """One worker, as the ledger has it."""

    counters: Counters
    token: int
    state: SeatState
    outstanding: int  # steps claimed and not yet taken
    starts: int  # processes that have sat here


class Ledger(NamedTuple):
    """The whole ledger at one moment.

    `generation` is another one after every restore, 0 while one is under way; `settings_id` that of the chief.
    """

    counters: Counters
    base: Counters
    run_id: int
    generation: int
    settings_id: int
    seats: list[Seat]


def parse(rows: np.ndarray) -> Ledger:
    """Reads [2 + W, WIDTH]."""
    table = [[int(cell) for cell in row] for row in rows]
    seats = [
        Seat(Counters(*row[:_C]), row[_TOKEN], SeatState(row[_STATE]), row[_OUTSTANDING], row[_STARTS])
        for row in table[_SEATS:]
    ]
    world, base = table[0], table[1]
    run_id, generation, settings_id = (world[column] for column in (_RUN_ID, _GENERATION, _SETTINGS_ID))
    return Ledger(Counters(*world[:_C]), Counters(*base[:_C]), run_id, generation, settings_id, seats)


def initial_rows(
    num_workers: int, counters: Counters, run_id: int, generation: int, starts: list[int], settings_id: int = 0
) -> np.ndarray:
    """[2 + W, WIDTH] with all seats vacant, to go on from `counters`; `starts` of each worker so far."""
    rows = np.zeros((_SEATS + num_workers, WIDTH), np.int64)
    rows[:2, :_C] = counters
    rows[0, [_RUN_ID, _GENERATION, _SETTINGS_ID]] = run_id, generation, settings_id
    rows[_SEATS : _SEATS + len(starts), _STARTS] = starts[:num_workers]
    return rows


class Counted(NamedTuple):
    """What `LedgerOperations.count` gives: tensors."""

    before: tf.Tensor  # [C] the counters of the run
    after: tf.Tensor  # [C]
    granted: tf.Tensor  # steps, scalar
    updates_before: tf.Tensor  # updates of the run when the ticket was first seen, scalar
    is_seated: tf.Tensor  # whether the sender still holds its seat, scalar bool
    may_apply: tf.Tensor  # whether an update sent along is new, and fresh enough to be applied, scalar bool
    refreshes: tf.Tensor  # whether a target refresh is due by these counts, scalar bool


class LedgerOperations:
    """The operations on the ledger, in the graph that is current at construction. All run on ps 0."""

    def __init__(self, ledger: tf.Variable):
        self.variable = ledger
        with tf.device(ledger.device):
            self._critical = tf.CriticalSection(name="ledger_lock", shared_name="ledger_lock")

    def count(
        self,
        worker: int,
        token: int,
        *,
        ticket: tf.Tensor,
        counts: tf.Tensor,
        computed_on: tf.Tensor,
        budget: int,
        target_period: int,
        max_staleness: int,
    ) -> Counted:
        """Graph form of `store.base.advance` for one worker; counted once however often a ticket is sent.

        A ticket that was seen changes nothing and is told the same again. An update (`counts` with updates of 1)
        that was computed on parameters more than `max_staleness` updates old is dropped, and counted as such.
        """

        def body() -> tuple[tf.Tensor, ...]:
            rows = self.variable.read_value()
            world, seat = rows[0], rows[_SEATS + worker]
            before = world[:_C]
            is_seated = _is_seated(seat, token)
            is_new = is_seated & (ticket > seat[_TICKET])
            is_fresh = tf.constant(True)
            if max_staleness:
                is_fresh = before[_UPDATES] - computed_on <= max_staleness
            asked = tf.unstack(tf.where(is_new, counts, tf.zeros_like(counts)))
            num_updates = asked[_UPDATES]
            asked[_UPDATES] = tf.where(is_fresh, num_updates, 0)
            asked[_DROPPED] += num_updates - asked[_UPDATES]
            ceiling = tf.where(before[_STOPPED] > 0, before[_CLAIMED], tf.maximum(before[_CLAIMED], budget))
            claimed = tf.minimum(before[_CLAIMED] + asked[_CLAIMED], ceiling)
            asked[_CLAIMED] = claimed - before[_CLAIMED]
            asked[_REFRESHES] = tf.zeros([], tf.int64)
            if target_period:
                minibatches = before[_MINIBATCHES] + asked[_MINIBATCHES]
                is_due = minibatches // target_period > before[_MINIBATCHES] // target_period
                asked[_REFRESHES] = tf.cast(is_due, tf.int64)
            after, own = _added(before, asked), _added(seat[:_C], asked)
            receipt = tf.stack(
                [
                    seat[_TOKEN],
                    seat[_STATE],
                    tf.where(is_new, ticket, seat[_TICKET]),
                    tf.where(is_new, asked[_CLAIMED], seat[_GRANTED]),
                    seat[_OUTSTANDING] + asked[_CLAIMED] - asked[_STEPS],
                    seat[_STARTS],
                    tf.where(is_new, before[_UPDATES], seat[_UPDATES_BEFORE]),
                    tf.where(is_new, asked[_REFRESHES], seat[_REFRESHED]),
                ]
            )
            rows = _replaced(rows, worker, tf.concat([after, world[_C:]], 0), tf.concat([own, receipt], 0))
            with tf.control_dependencies([before, self.variable.assign(rows, read_value=False)]):
                return (
                    tf.identity(before),
                    tf.identity(after),
                    tf.identity(receipt[_GRANTED - _C]),
                    tf.identity(receipt[_UPDATES_BEFORE - _C]),
                    tf.identity(is_seated),
                    is_new & is_fresh,
                    is_seated & (receipt[_REFRESHED - _C] > 0),
                )

        return Counted(*self._execute(body))

    def join(self, worker: int, token: int, is_start: tf.Tensor) -> tf.Tensor:
        """Takes the seat, whoever holds it; gives the ledger after. Nothing happens while a restore is under way.

        Args:
          is_start: 1 for a process that has not had the seat before, however often it sends this; else 0.
        """

        def seat(old: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
            taken = tf.constant([token, SeatState.ACTIVE, 0, 0, 0], tf.int64)
            starts = old[_STARTS] + tf.where(tf.equal(old[_TOKEN], token), tf.zeros_like(is_start), is_start)
            joined = tf.concat([old[:_C], taken, [starts, 0, 0]], 0)
            return tf.where(rows[0][_GENERATION] > 0, joined, old)

        return self._reseat(worker, seat)

    def leave(self, worker: int, token: int | tf.Tensor, state: SeatState) -> tf.Tensor:
        """Ends the sitting of the process with this token, if it is still there; gives the ledger after."""

        def seat(old: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
            del rows
            gone = tf.concat([old[:_C], tf.constant([0, state, 0, 0, 0], tf.int64), old[_STARTS:]], 0)
            return tf.where(_is_seated(old, token), gone, old)

        return self._reseat(worker, seat)

    def set(self, rows: tf.Tensor) -> tf.Operation:
        """Replaces everything."""
        return self._execute(lambda: _after(self.variable.assign(rows, read_value=False)))

    def _reseat(self, worker: int, seat: Any) -> tf.Tensor:
        """Changes one seat; what it had claimed and not taken goes back where the seat is no longer the same."""

        def body() -> tf.Tensor:
            rows = self.variable.read_value()
            old = rows[_SEATS + worker]
            new = seat(old, rows)
            freed = old[_OUTSTANDING] - new[_OUTSTANDING]
            claimed = tf.one_hot(_CLAIMED, WIDTH, dtype=tf.int64)
            rows = _replaced(rows, worker, rows[0] - freed * claimed, new - freed * claimed)
            with tf.control_dependencies([self.variable.assign(rows, read_value=False)]):
                return tf.identity(rows)

        return self._execute(body)

    def _execute(self, body: Any) -> Any:
        with tf.device(self.variable.device):
            return self._critical.execute(body)


def _is_seated(seat: tf.Tensor, token: int | tf.Tensor) -> tf.Tensor:
    # Not `==`, which compares objects in a plain graph.
    return tf.equal(seat[_STATE], int(SeatState.ACTIVE)) & tf.equal(seat[_TOKEN], token)


def _added(counters: tf.Tensor, asked: list[tf.Tensor]) -> tf.Tensor:
    columns = [old + new for old, new in zip(tf.unstack(counters), asked, strict=True)]
    for index in _MAXIMA:
        columns[index] = tf.maximum(counters[index], asked[index])
    return tf.stack(columns)


def _replaced(rows: tf.Tensor, worker: int, world: tf.Tensor, seat: tf.Tensor) -> tf.Tensor:
    return tf.tensor_scatter_nd_update(rows, [[0], [_SEATS + worker]], [world, seat])


def _after(operation: tf.Operation) -> tf.Tensor:
    with tf.control_dependencies([operation]):
        return tf.constant(True)
