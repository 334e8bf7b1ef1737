"""The store in shared memory whose workers make every update together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from async_dqn.nn.module import Module
from async_dqn.store.base import Counters, MemberState, Pulled, Stop, Update, passes, saved_counters
from async_dqn.store.shared_memory import (
    FREE,
    MEMBERS,
    MINIBATCHES,
    REFRESHES,
    STATE,
    STOPPED,
    UPDATES,
    Ledger,
    SharedMemoryStore,
    counters_in,
)
from async_dqn.system.memory import Shapes

# Of a worker: the update that its last gradient is in, and whether an update waits for it.
_ROUND, _IS_AWAITED = FREE, FREE + 1
_LAST_MINIBATCHES = FREE  # of the run: as many as there were at the last update
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0001, 0.002  # seconds between two looks whether an update is complete
_PART = 0.125  # in between, a pause is this part of the time waited so far
_PATIENCE = 0.01  # seconds after which a worker that waits looks itself whether all who are still at work are there


class SynchronousStore(SharedMemoryStore):
    """As `SharedMemoryStore`; an update is the mean of one gradient of each worker that is at work.

    All of them are computed on the same parameters (Chen et al. 2016, arXiv 1604.00981). Each worker leaves its
    gradient in a row of its own. Whoever comes last adds the rows up in the order of the workers, so that the bits are
    the same whoever that is, and steps the parameters. A worker that has pushed waits for that when it pulls, unless
    the run was interrupted or has failed, or `should_stop` says so.

    Nobody waits for a worker that has left or was lost, that has no steps, or that has taken another's place and not
    claimed steps yet. Who is killed while it steps the parameters leaves a part of the update behind, and another makes
    the whole of it.

    Args:
      backup_workers: so many workers are not waited for; a gradient that comes too late is dropped.
      max_norm: a mean with a larger norm, over all trained modules, is scaled down to this one; 0: never.
      should_stop: whether this worker was asked to end.
      options: as for `SharedMemoryStore`.
    """

    def __init__(
        self,
        descriptor: int,
        modules: Sequence[Module],
        *,
        backup_workers: int = 0,
        max_norm: float = 0.0,
        target_period: int = 0,
        should_stop: Callable[[], bool] = lambda: False,
        **options: Any,
    ):
        super().__init__(descriptor, modules, target_period=0, **options)  # updates refresh targets, not counts
        self._backup_workers, self._refresh_period = backup_workers, target_period
        self._should_stop, self._max_norm = should_stop, max_norm
        self._gradients = {one.name: self.arrays.pop(f"{one.name}/gradients") for one in modules}  # [W, P] each
        self._terms = self.arrays.pop("terms")  # [W, M, 2], see `_shapes`
        self._means = {one.name: np.empty(one.size, np.float32) for one in modules}
        self._awaited = 0  # the update that this worker's last gradient is in

    @classmethod
    def _shapes(cls, modules: Sequence[Module], num_workers: int) -> Shapes:
        rows: Shapes = {f"{one.name}/gradients": ((num_workers, one.size), np.float32) for one in modules}
        # For each module whether the gradient has a part of it, and the rate of that.
        terms: Shapes = {"terms": ((num_workers, len(modules), 2), np.float32)}
        return {**super()._shapes(modules, num_workers), **rows, **terms}

    def join(self) -> Ledger:
        with self._table.change() as rows:
            own = rows[MEMBERS + self._worker]
            own[_IS_AWAITED] = own[STATE] == MemberState.EXPECTED
            self._awaited = int(own[_ROUND])  # that of the process before
        return super().join()

    def pull(self) -> Pulled:
        self._wait()
        return super().pull()

    # `updates` may lack modules, but all are pulled, as others may have pushed to them.

    def _push(
        self, updates: Mapping[str, Update], counts: Counters, computed_on: int, *, pull: bool
    ) -> tuple[Counters, Pulled]:
        with self._table.change() as rows:
            before = counters_in(rows[0])
            own = rows[MEMBERS + self._worker]
            is_in_time = computed_on == before.updates and own[_ROUND] <= before.updates
            if is_in_time:
                self._leave_gradient(updates)
                own[_ROUND] = self._awaited = before.updates + 1
            dropped = 0 if is_in_time else counts.updates
            self._count(rows, counts._replace(updates=0, dropped=counts.dropped + dropped))
            self._update_if_complete(rows)
            after = counters_in(rows[0])
        return before, self.pull() if pull else Pulled({}, after)

    def _leave_gradient(self, updates: Mapping[str, Update]) -> None:
        """Writes a gradient to this worker's row, which nobody reads now."""
        for index, module in enumerate(self.modules):
            update = updates.get(module.name)
            self._terms[self._worker, index] = (1, update.rate) if update else 0
            if update:
                self._gradients[module.name][self._worker] = update.value

    def _update_if_complete(self, rows: np.ndarray) -> None:
        """Makes the update of a table that is being changed, if the gradients of all workers at work are there."""
        members, updates = rows[MEMBERS:], rows[0, UPDATES]
        is_in = members[:, _ROUND] > updates
        is_at_work = (members[:, STATE] == MemberState.ACTIVE) & (members[:, _IS_AWAITED] > 0)
        if not is_in.any() or np.count_nonzero(is_at_work & ~is_in) > self._backup_workers:
            return
        means, rates = {}, {}
        for index, module in enumerate(self.modules):
            has_part = is_in & (self._terms[:, index, 0] > 0)
            if has_part.any():
                means[module.name] = _mean(self._gradients[module.name], has_part, self._means[module.name])
                rates[module.name] = float(self._terms[has_part, index, 1].mean())
        if self._max_norm:
            self._clip([means[one.name] for one in self.modules if one.is_trained and one.name in means])
        for name, mean in means.items():
            self.step(name, mean, rates[name])
        self._count(rows, Counters(updates=1))
        if passes(rows[0, _LAST_MINIBATCHES], rows[0, MINIBATCHES], self._refresh_period):
            rows[[0, MEMBERS + self._worker], REFRESHES] += 1
            self._refresh_targets()
        rows[0, _LAST_MINIBATCHES] = rows[0, MINIBATCHES]

    def _clip(self, means: Sequence[np.ndarray]) -> None:
        """Scales means [P_i] down by one factor, in place, where their common Euclidean norm is above `max_norm`."""
        norm = math.sqrt(sum(float(mean @ mean) for mean in means))
        if norm > self._max_norm:
            for mean in means:
                mean *= self._max_norm / norm

    def _wait(self) -> None:
        """Until the update is complete that this worker's last gradient is in."""
        begin = time.monotonic()
        while self.num_updates < self._awaited and not self._should_stop():
            waited = time.monotonic() - begin
            if waited > _PATIENCE:  # the others may have gone
                with self._table.change() as rows:
                    self._update_if_complete(rows)
                    if rows[0, STOPPED] >= Stop.INTERRUPTED:
                        return
            time.sleep(min(max(_SHORTEST_PAUSE, waited * _PART), _LONGEST_PAUSE))

    def _count(self, rows: np.ndarray, counts: Counters) -> int:
        granted = super()._count(rows, counts)
        if counts.claimed_steps > 0:  # who is given none has none to learn from
            rows[MEMBERS + self._worker, _IS_AWAITED] = granted > 0
        return granted

    def _saved(self) -> Counters:
        """Gradients of the open update are not saved, and count as dropped."""
        rows = self._table.now()
        counters = counters_in(rows[0])
        num_open = np.count_nonzero(rows[MEMBERS:, _ROUND] > counters.updates)
        return counters._replace(dropped=counters.dropped + int(num_open))

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        with self._table.change() as rows:
            rows[0, _LAST_MINIBATCHES] = saved_counters(state).minibatches
            rows[MEMBERS:, _ROUND] = 0
        super().restore(state)


def _mean(rows: np.ndarray, is_in: np.ndarray, out: np.ndarray) -> np.ndarray:
    """The mean [P] of some rows of [W, P], added up in their order; `out` [P] is where it is put."""
    first, *others = np.flatnonzero(is_in)
    np.copyto(out, rows[first])
    for other in others:
        out += rows[other]
    if others:
        out /= 1 + len(others)
    return out
