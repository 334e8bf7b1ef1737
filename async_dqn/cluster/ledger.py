"""The ledger on ps 0: the global counters, and a row for every worker. Every change of it is atomic.

It is one int64 variable [2 + W, WIDTH]. Row 0, the run's, holds the counters of the run and who it is. Row 1 holds the
counters as they were when the ledger was last set. Row 2 + w is the member row of worker w: its own counts since then,
the token of the process that is the member, and the answers to its last requests. So at any time row 0 is row 1 plus
all member rows.

A process joins with a random token. What it sends later is refused once another process has joined as the same worker:
a worker that stood still while the run went on cannot write into it. Steps that a worker claimed and has not taken go
back into the budget at the moment in which it leaves, is replaced or is lost.

A worker numbers its requests in two sequences: counts alone, and pushes. Within one the requests must arrive in order.

Under a quorum (see `quorum`) a push is a gradient of the open version, the one after the `updates` there are. The
request with which that is complete counts the update, whether it is a push or comes from a worker that waits.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.cluster.quorum import Quorum
from async_dqn.store.base import Counters, MemberState

_C = len(Counters._fields)
_CLAIMED, _STEPS, _MINIBATCHES, _UPDATES, _DROPPED, _REFRESHES, _STOPPED = map(
    Counters._fields.index,
    ("claimed_steps", "env_steps", "minibatches", "updates", "dropped", "target_refreshes", "stopped"),
)
_MAXIMA = tuple(map(Counters._fields.index, ("staleness_max", "stopped")))
_RUN_ID, _GENERATION, _SETTINGS_ID, _HOLD = range(_C, _C + 4)
_GRADIENTS = _C + 4  # in the open version
_LAST_MINIBATCHES = _C + 5  # at the last version
_TOKEN, _STATE, _JOINS, _STARTS, _OUTSTANDING, _COUNT, _GRANTED, _PUSH, _IS_ADMITTED = range(_C, _C + 9)
_IS_AWAITED = _C + 9  # whether a version waits for its gradient
_ADMITTED = _C + 10
_VERSION = _C + 11  # that its last gradient is in
_BEFORE = _C + 12  # the counters before the last push, C columns
WIDTH = _BEFORE + _C
_MEMBERS = 2  # the row of worker 0
_MAX_REQUESTS = 2**40  # of one process
ANYONE = -1  # in place of a token, where whoever is the member is meant
_BEHIND = -1  # in place of a hold: a shard has not applied the last version yet


class Member(NamedTuple):
    """One worker, as the ledger has it."""

    counters: Counters
    token: int
    state: MemberState
    outstanding: int  # steps claimed and not yet taken
    starts: int  # processes that have been this worker
    joins: int  # how often one of them has joined
    admitted: int  # the order of its last push that was to be applied


class Ledger(NamedTuple):
    """The whole ledger at one moment.

    `generation` grows with every restore, and is negative while one is under way; `settings_id` is that of the chief.
    """

    counters: Counters
    base: Counters
    run_id: int
    generation: int
    settings_id: int
    hold: int  # not 0: whose request it is that no update may be admitted now
    gradients: int  # in the open version
    members: list[Member]


def parse(rows: np.ndarray) -> Ledger:
    """Reads [2 + W, WIDTH]."""
    table = rows.tolist()
    members = [
        Member(
            Counters(*row[:_C]),
            row[_TOKEN],
            MemberState(row[_STATE]),
            row[_OUTSTANDING],
            row[_STARTS],
            row[_JOINS],
            row[_ADMITTED],
        )
        for row in table[_MEMBERS:]
    ]
    run, base = table[0], table[1]
    run_id, generation, settings_id, hold, gradients = run[_RUN_ID : _GRADIENTS + 1]
    return Ledger(Counters(*run[:_C]), Counters(*base[:_C]), run_id, generation, settings_id, hold, gradients, members)


class Membership(NamedTuple):
    """Which process of a worker this is, since when. Both numbers grow, so what was sent before can be told apart."""

    generation: int  # another one whenever the parameters are set or put back
    joins: int  # as in `Member`


def ledger_shape(num_workers: int) -> tuple[int, int]:
    """[2 + W, WIDTH] of the ledger."""
    return _MEMBERS + num_workers, WIDTH


def initial_rows(
    num_workers: int, counters: Counters, run_id: int, generation: int, starts: list[int], settings_id: int = 0
) -> np.ndarray:
    """[2 + W, WIDTH] before anyone has joined, to go on from `counters`; `starts` of each worker so far."""
    rows = np.zeros(ledger_shape(num_workers), np.int64)
    rows[:2, :_C] = counters
    rows[0, [_RUN_ID, _GENERATION, _SETTINGS_ID]] = run_id, generation, settings_id
    rows[0, _LAST_MINIBATCHES] = counters.minibatches
    rows[_MEMBERS : _MEMBERS + len(starts), _STARTS] = starts[:num_workers]
    return rows


class Counted(NamedTuple):
    """What `LedgerOperations.count` gives: tensors [C] of int64, and scalars."""

    before: tf.Tensor  # [C] the counters of the run; of a push, as they were when it first arrived
    after: tf.Tensor  # [C]
    granted: tf.Tensor  # steps
    is_member: tf.Tensor  # whether the sender still is the member, bool
    hold: tf.Tensor  # not 0: nothing was done, as this hold is on; the same request may be sent again
    # What shards must know, [3]: generation, count of target refreshes, order of the push. Under a quorum [4 + W]:
    # generation, refreshes, updates, the version that the sender's last gradient is in, and the order of each worker's.
    mark: tf.Tensor


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
        request: tf.Tensor,
        counts: tf.Tensor,
        computed_on: tf.Tensor | None,
        budget: int,
        target_period: int,
        max_staleness: int,
        quorum: Quorum | None = None,
        deposits: tf.Tensor | None = None,
    ) -> Counted:
        """Graph form of `store.base.advance` for one worker; counted once however often a request is sent.

        A request that was seen changes nothing and gets the same answer again. An update that was computed on
        parameters more than `max_staleness` updates old is dropped, and counted as such. The order of a push is its
        place among all pushes of this worker; it is 0 where there is nothing to apply.

        Args:
          request: its number in its sequence, from 1.
          computed_on: of a push: `updates` in the pull that it was computed on; None: these are counts alone.
          quorum: of a push: when the open version is complete. A request that was seen, as 0 always is, may complete it
            as well. Targets are refreshed with versions only. None: each push is an update.
          deposits: [K, 2] int64, under a quorum: the version of each shard, and whether the gradient is there. It is
            dropped where it is not everywhere.
        """
        is_push = computed_on is not None
        last = _PUSH if is_push else _COUNT
        request, counts = self._brought(request), self._brought(counts)
        computed_on = self._brought(computed_on) if is_push else None
        with tf.device(self.variable.device):
            shards: Any = tf.unstack(deposits, axis=1) if quorum else [None, None]
        versions, are_there = shards  # [K]

        def body() -> tuple[tf.Tensor, ...]:
            rows = self.variable.read_value()
            run, old = rows[0], rows[_MEMBERS + worker]
            before, is_member = run[:_C], _is_member(old, token)
            is_unseen = is_member & (request > old[last])
            hold = tf.where(is_unseen, _hold(run, None if is_push else counts, versions), 0)
            is_new = is_unseen & tf.equal(hold, 0)
            asked = tf.unstack(tf.where(is_new, counts, tf.zeros_like(counts)))
            is_fresh = tf.constant(True)
            if is_push and max_staleness:
                is_fresh = before[_UPDATES] - computed_on <= max_staleness
            if quorum:
                is_fresh &= quorum.may_enter(before[_UPDATES], computed_on, old[_VERSION])
                is_fresh &= tf.reduce_all(are_there > 0)
            admitted = tf.where(is_fresh, asked[_UPDATES], 0)
            asked[_DROPPED] += asked[_UPDATES] - admitted
            open_version = None
            if quorum:
                open_version = _open_version(rows, worker, admitted, is_member, quorum)
                asked[_UPDATES] = tf.cast(open_version.is_complete, tf.int64)
            else:
                asked[_UPDATES] = admitted
            asked[_CLAIMED] = _granted(before, asked[_CLAIMED], budget)
            asked[_REFRESHES] = _refreshes(run, asked[_MINIBATCHES], target_period, open_version)
            after, own = _added(before, asked), _added(old[:_C], asked)

            answer = {_OUTSTANDING: old[_OUTSTANDING] + asked[_CLAIMED] - asked[_STEPS]}
            answer[last] = tf.where(is_new, request, old[last])
            if is_push:
                order = order_of(old[_JOINS], request)
                is_admitted = admitted > 0 if quorum else is_new & is_fresh
                answer[_IS_ADMITTED] = tf.where(is_new, tf.cast(is_fresh, tf.int64), old[_IS_ADMITTED])
                answer[_ADMITTED] = tf.where(is_admitted, order, old[_ADMITTED])
                known, granted = tf.where(is_new, before, old[_BEFORE:]), asked[_CLAIMED]
                # A request that is not the last one was given up by its sender, which has gone on.
                is_last = is_member & tf.equal(request, answer[last]) & (answer[_IS_ADMITTED] > 0)
                order = tf.where(is_last, order, 0)
            else:
                granted = answer[_GRANTED] = tf.where(is_new, asked[_CLAIMED], old[_GRANTED])
                is_claim = is_new & (counts[_CLAIMED] > 0)
                answer[_IS_AWAITED] = tf.where(is_claim, tf.cast(granted > 0, tf.int64), old[_IS_AWAITED])
                known, order = old[_BEFORE:], tf.zeros([], tf.int64)
            if open_version:
                answer[_VERSION] = open_version.number
            kept = [answer.get(column, old[column]) for column in range(_C, _BEFORE)]
            run = tf.concat([after, run[_C:]], 0)
            mark = tf.stack([run[_GENERATION], after[_REFRESHES], order])
            if open_version:
                run = _closed(run, open_version)
                orders = _with(rows[_MEMBERS:, _ADMITTED], worker, answer[_ADMITTED])
                mark = tf.concat([mark[:2], [after[_UPDATES], open_version.number], orders], 0)
            rows = _replaced(rows, worker, run, tf.concat([own, tf.stack(kept), known], 0))
            with tf.control_dependencies([before, self.variable.assign(rows, read_value=False)]):
                given = [known if is_push else before, after, granted, is_member, hold]
                return (*map(tf.identity, given), mark)

        return Counted(*self._execute(body))

    def join(
        self, worker: int, token: int, *, is_start: tf.Tensor, generation: tf.Tensor, joins: tf.Tensor
    ) -> tf.Tensor:
        """Makes the process with this token the member, whoever was it before; gives the ledger after.

        Nothing happens unless generation and joins are those of the ledger: so the same request joins once, however
        late it comes. Nothing happens while a restore is under way.

        Args:
          is_start: 1 for a process that has not been this worker before; else 0.
          generation, joins: of the ledger and of the member row, as last read.
        """
        is_start, generation, joins = self._brought(is_start), self._brought(generation), self._brought(joins)

        def change(old: tf.Tensor, run: tf.Tensor) -> tf.Tensor:
            starts = old[_STARTS] + tf.where(tf.equal(old[_TOKEN], token), tf.zeros_like(is_start), is_start)
            # Nobody waits for a process that takes another's place until it has claimed steps.
            is_awaited = tf.cast(tf.equal(old[_STATE], int(MemberState.EXPECTED)), tf.int64)
            member = [tf.constant(token, tf.int64), MemberState.ACTIVE, old[_JOINS] + 1, starts, 0, 0, 0, 0, 0]
            joined = tf.stack([*member, is_awaited])
            is_as_read = tf.equal(run[_GENERATION], generation) & tf.equal(old[_JOINS], joins)
            new = tf.concat([old[:_C], joined, old[_ADMITTED:]], 0)
            return tf.where(is_as_read & (generation > 0), new, old)

        return self._change_member(worker, change)

    def leave(self, worker: int, token: int | tf.Tensor, state: MemberState) -> tf.Tensor:
        """Ends the membership of the process with this token, if it still is the member; gives the ledger after.

        The token `ANYONE` stands for that of whoever is the member.
        """
        token = self._brought(token)

        def change(old: tf.Tensor, run: tf.Tensor) -> tf.Tensor:
            del run
            ended = tf.stack([tf.constant(0, tf.int64), state, old[_JOINS], old[_STARTS], 0, 0, 0, 0, 0, 0])
            theirs = tf.where(tf.equal(token, ANYONE), old[_TOKEN], token)
            return tf.where(_is_member(old, theirs), tf.concat([old[:_C], ended, old[_ADMITTED:]], 0), old)

        return self._change_member(worker, change)

    def hold(self, hold: tf.Tensor) -> tf.Tensor:
        """From now on no update is admitted, nor anything that may refresh targets; gives the ledger after."""
        hold = self._brought(hold)
        return self._change_run(lambda run: _with(run, _HOLD, hold))[1]

    def release(self, hold: tf.Tensor) -> tf.Tensor:
        """Ends this hold; gives the ledger before, which says whether it was still on."""
        hold = self._brought(hold)
        return self._change_run(
            lambda run: _with(run, _HOLD, tf.where(tf.equal(run[_HOLD], hold), tf.zeros_like(hold), run[_HOLD]))
        )[0]

    def set(self, rows: tf.Tensor) -> tf.Tensor:
        """Replaces everything; gives the generation after. Nothing happens if that in `rows` is behind.

        So a request that is sent again, or that arrives late, does nothing: generations grow, and that of a restore
        under way, which is negative, comes before the same one when it is done.
        """
        rows = self._brought(rows)

        def body() -> tf.Tensor:
            new = rows[0, _GENERATION]
            is_set = tf.raw_ops.VarIsInitializedOp(resource=self.variable.handle)
            zero = tf.zeros([], tf.int64)
            known = tf.cond(is_set, lambda: tf.identity(self.variable.read_value()[0, _GENERATION]), lambda: zero)
            is_ahead = (tf.abs(new) > tf.abs(known)) | (tf.equal(tf.abs(new), tf.abs(known)) & (new > known))

            def assign() -> tf.Tensor:
                with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=rows)]):
                    return tf.identity(new)

            return tf.cond(is_ahead, assign, lambda: tf.identity(known))

        return self._execute(body)

    def _change_member(self, worker: int, change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """Changes one member row; what it had claimed and not taken goes back when it is another process's."""

        def body() -> tf.Tensor:
            rows = self.variable.read_value()
            old = rows[_MEMBERS + worker]
            new = change(old, rows[0])
            freed = old[_OUTSTANDING] - new[_OUTSTANDING]
            claimed = tf.one_hot(_CLAIMED, WIDTH, dtype=tf.int64)
            run = rows[0]
            if worker == 0:  # a hold of a chief that has ended would stop the others
                is_same = tf.reduce_all(tf.equal(old[_TOKEN : _JOINS + 1], new[_TOKEN : _JOINS + 1]))
                run = _with(run, _HOLD, tf.where(is_same, run[_HOLD], 0))
            rows = _replaced(rows, worker, run - freed * claimed, new - freed * claimed)
            with tf.control_dependencies([self.variable.assign(rows, read_value=False)]):
                return tf.identity(rows)

        return self._execute(body)

    def _change_run(self, change: Callable[[tf.Tensor], tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Changes the run's row; gives the ledger before and after."""

        def body() -> tuple[tf.Tensor, tf.Tensor]:
            old = self.variable.read_value()
            new = tf.tensor_scatter_nd_update(old, [[0]], [change(old[0])])
            with tf.control_dependencies([self.variable.assign(new, read_value=False)]):
                return tf.identity(old), tf.identity(new)

        return self._execute(body)

    def _brought(self, value: Any) -> tf.Tensor:
        """What a section needs, on the ps before it begins: its lock would be held while a value is on its way."""
        with tf.device(self.variable.device):
            return tf.identity(tf.convert_to_tensor(value, tf.int64))

    def _execute(self, body: Any) -> Any:
        with tf.device(self.variable.device):
            return self._critical.execute(body)


def order_of(joins: tf.Tensor, request: tf.Tensor) -> tf.Tensor:
    """The place of a push among all pushes of its worker: the later process's come later."""
    return joins * _MAX_REQUESTS + request


def _is_member(row: tf.Tensor, token: int | tf.Tensor) -> tf.Tensor:
    # Not `==`, which compares objects in a plain graph.
    return tf.equal(row[_STATE], int(MemberState.ACTIVE)) & tf.equal(row[_TOKEN], token)


class _OpenVersion(NamedTuple):
    """The version that gradients enter, once that of a request is in it."""

    number: tf.Tensor  # [] int64, of the version that the sender's last gradient is in
    gradients: tf.Tensor  # [] int64, how many are in the open one
    is_complete: tf.Tensor  # [] bool


def _open_version(
    rows: tf.Tensor, worker: int, admitted: tf.Tensor, is_member: tf.Tensor, quorum: Quorum
) -> _OpenVersion:
    run, updates = rows[0], rows[0, _UPDATES]
    number = tf.where(admitted > 0, updates + 1, rows[_MEMBERS + worker, _VERSION])
    gradients = run[_GRADIENTS] + admitted
    is_lacking = _is_lacking(rows[_MEMBERS:], worker, number, updates)
    is_complete = is_member & tf.equal(run[_HOLD], 0) & quorum.is_complete(gradients, is_lacking)
    return _OpenVersion(number, gradients, is_complete)


def _closed(run: tf.Tensor, version: _OpenVersion) -> tf.Tensor:
    """The run's row, in which the next version begins if this one is complete."""
    done = version.is_complete
    run = _with(run, _GRADIENTS, tf.where(done, tf.zeros_like(version.gradients), version.gradients))
    return _with(run, _LAST_MINIBATCHES, tf.where(done, run[_MINIBATCHES], run[_LAST_MINIBATCHES]))


def _hold(run: tf.Tensor, counts: tf.Tensor | None, versions: tf.Tensor | None) -> tf.Tensor:
    """The hold that a new request meets, [] int64; 0: none.

    Args:
      run: [columns] int64, the run's row.
      counts: [C] int64, of a request that is no push: it may refresh targets if it counts minibatches.
      versions: [K] int64, of the shards, under a quorum: what is not applied yet has to be all of one version, on
        every shard.
    """
    hold = run[_HOLD]
    if counts is not None:
        hold = tf.where(counts[_MINIBATCHES] > 0, hold, 0)
    if versions is not None:
        is_behind = tf.equal(hold, 0) & (tf.reduce_min(versions) < run[_UPDATES])
        hold = tf.where(is_behind, tf.constant(_BEHIND, tf.int64), hold)
    return hold


def _granted(before: tf.Tensor, wanted: tf.Tensor, budget: int) -> tf.Tensor:
    """How many of these steps are in the budget; less than 0 where steps are given back."""
    ceiling = tf.where(before[_STOPPED] > 0, before[_CLAIMED], tf.maximum(before[_CLAIMED], budget))
    return tf.minimum(before[_CLAIMED] + wanted, ceiling) - before[_CLAIMED]


def _refreshes(run: tf.Tensor, minibatches: tf.Tensor, period: int, version: _OpenVersion | None) -> tf.Tensor:
    """1 where so many minibatches more make a refresh of the targets due, else 0; under a quorum with versions only."""
    if not period:
        return tf.zeros([], tf.int64)
    last = run[_LAST_MINIBATCHES] if version else run[_MINIBATCHES]
    is_due = (run[_MINIBATCHES] + minibatches) // period > last // period
    return tf.cast(is_due & version.is_complete if version else is_due, tf.int64)


def _is_lacking(members: tf.Tensor, worker: int, version: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    """The workers at work that have no gradient in the open version [W]; the one of this worker is in `version`."""
    is_at_work = tf.equal(members[:, _STATE], int(MemberState.ACTIVE)) & (members[:, _IS_AWAITED] > 0)
    return is_at_work & (_with(members[:, _VERSION], worker, version) <= updates)


def _added(counters: tf.Tensor, asked: list[tf.Tensor]) -> tf.Tensor:
    columns = [old + new for old, new in zip(tf.unstack(counters), asked, strict=True)]
    for index in _MAXIMA:
        columns[index] = tf.maximum(counters[index], asked[index])
    return tf.stack(columns)


def _replaced(rows: tf.Tensor, worker: int, run: tf.Tensor, member: tf.Tensor) -> tf.Tensor:
    return tf.tensor_scatter_nd_update(rows, [[0], [_MEMBERS + worker]], [run, member])


def _with(row: tf.Tensor, column: int, value: tf.Tensor) -> tf.Tensor:
    return tf.tensor_scatter_nd_update(row, [[column]], [value])
