"""The parameter store in memory that the processes of one host share: an anonymous file that all of them map.

It has no server. The arrays of all modules lie in the file, and a process steps them where they lie. A lock guards the
counters, and the arrays too but in `step` and for who uses `arrays` itself. The system takes the lock back however its
holder ends, and the file when the last process that has it open has ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from async_dqn.base.errors import RunError
from async_dqn.nn.aligned import aligned_empty
from async_dqn.nn.module import Module
from async_dqn.store.base import (
    Counters,
    EpisodeReport,
    MemberState,
    ParameterStore,
    Pulled,
    Standing,
    Update,
    WorkerStatus,
    advance,
    check_state,
    counter_state,
    episode_report,
    saved_counters,
    state_shapes,
)
from async_dqn.system.memory import Shapes, anonymous_file, file_bytes, map_arrays
from async_dqn.system.shared_table import FileLock, SharedTable

_MAX_EPISODES = 2**17  # that wait for the chief, which takes them every few seconds
_C = len(Counters._fields)
_CLAIMED = Counters._fields.index("claimed_steps")
UPDATES, MINIBATCHES, REFRESHES, STOPPED = map(
    Counters._fields.index, ("updates", "minibatches", "target_refreshes", "stopped")
)
_MAXIMA = [*map(Counters._fields.index, ("staleness_max", "stopped"))]
# Row 0 is the run's: the counters, and these. Those of episodes count all that were ever put in and taken out.
_RUN_ID, _IS_READY, _PUT, _TAKEN = range(_C, _C + 4)
# A row for each worker follows: its own counts since the store was last set, and these.
STATE, _STARTS, _OUTSTANDING = range(_C, _C + 3)
FREE = _C + 4  # the first column that a subclass may use
_WIDTH = _C + 6
MEMBERS = 1  # the row of worker 0


def create(num_bytes: int) -> int:
    """Makes the file, of zeros: nothing is initialised. Gives its descriptor, for processes to inherit.

    Raises OSError where the system has no such files, or not the memory.
    """
    descriptor = anonymous_file()
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)  # now: who touches what is not there later is killed
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Ledger(NamedTuple):
    """What the table of counters says of the run as a whole."""

    run_id: int


class SharedMemoryStore(ParameterStore):
    """The shared networks, seen from one worker.

    Attributes:
      arrays: {MODULE/online, MODULE/target, MODULE/slot/NAME: float32 array}: the memory itself. Whoever reads or
        writes it takes no lock, so numbers of several versions may come together.
      run_id: the chief's to set, before it initialises or restores.
      descriptor: of the file.

    Args:
      descriptor: of the file that `create` has made.
      worker: this worker's task index, of `num_workers`.
      target_period: minibatches between two refreshes of the targets; 0: there are none.
      max_staleness: `push` drops updates that are older; 0: none.
    """

    def __init__(
        self,
        descriptor: int,
        modules: Sequence[Module],
        *,
        worker: int,
        num_workers: int,
        total_steps: int,
        target_period: int = 0,
        max_staleness: int = 0,
    ):
        self.modules = modules
        self.total_steps = total_steps
        self.max_staleness = max_staleness
        self.run_id = 0
        self.descriptor = descriptor
        self._worker, self._target_period = worker, target_period
        self.arrays = map_arrays(descriptor, self._shapes(modules, num_workers))
        self._episodes = self.arrays.pop("episodes")
        self._lock = FileLock(descriptor)
        self._table = SharedTable(self.arrays.pop("version"), self.arrays.pop("tables"), self._lock)

    @classmethod
    def _shapes(cls, modules: Sequence[Module], num_workers: int) -> Shapes:
        """What lies in the file, in this order. Arrays of modules are named as in `ParameterStore.state`."""
        return {
            "version": ((1,), np.int64),  # the table that counts is the one of its last bit
            "tables": ((2, MEMBERS + num_workers, _WIDTH), np.int64),
            "episodes": ((_MAX_EPISODES, len(EpisodeReport._fields)), np.float64),  # a ring
            **{name: (shape, np.float32) for name, shape in state_shapes(modules).items()},
        }

    @classmethod
    def required_bytes(cls, modules: Sequence[Module], num_workers: int) -> int:
        """What the shared file takes."""
        return file_bytes(cls._shapes(modules, num_workers))

    # Who takes part.

    def is_ready(self) -> bool:
        """Whether the networks are initialised or restored."""
        return bool(self._table.read()[0, _IS_READY])

    def wait_until_ready(self, deadline: float, should_stop: Callable[[], bool]) -> None:
        """Waits until the chief has initialised or restored the networks. Raises RunError after `deadline` seconds."""
        end = time.monotonic() + deadline
        while not self.is_ready() and not should_stop():
            if time.monotonic() > end:
                raise RunError(f"worker 0, the chief, has not initialised the network within {deadline:.0f} s")
            time.sleep(0.02)

    def read_ledger(self) -> Ledger:
        """Whose networks these are."""
        return Ledger(int(self._table.read()[0, _RUN_ID]))

    def join(self) -> Ledger:
        """Makes this process the worker; what the process before it had claimed and not taken may be claimed again.

        That process has ended: whoever starts processes again sees to it.
        """
        with self._table.change() as rows:
            _free(rows, self._worker, MemberState.ACTIVE)
            rows[MEMBERS + self._worker, _STARTS] += 1
        return self.read_ledger()

    @property
    def membership(self) -> tuple[int, int]:
        """Generation of the networks, which are set once only, and number of the process that is this worker."""
        return 0, int(self._table.now()[MEMBERS + self._worker, _STARTS])

    def leave(self) -> None:
        """This worker is done."""
        with self._table.change() as rows:
            _free(rows, self._worker, MemberState.DONE)

    def starts(self, worker: int) -> int | None:
        """Processes that have been this worker, as long as it has not left; without a lock. None where it has."""
        row = self._table.now()[MEMBERS + worker]
        return int(row[_STARTS]) if row[STATE] in (MemberState.EXPECTED, MemberState.ACTIVE) else None

    def lose(self, worker: int, starts: int) -> None:
        """The last of so many processes of a worker has ended: others may claim what it had and has not taken."""
        with self._table.change() as rows:
            if rows[MEMBERS + worker, _STARTS] == starts:
                _free(rows, worker, MemberState.LOST)

    def check(self) -> Standing:
        rows = self._table.read()
        workers = [
            WorkerStatus(MemberState(row[STATE]).name.lower(), int(row[_STARTS]), counters_in(row))
            for row in rows[MEMBERS:]
        ]
        return Standing(counters_in(rows[0]), workers)

    # Parameters.

    def pull(self) -> Pulled:
        with self._lock:
            return Pulled({one.name: _copy(self.arrays[f"{one.name}/online"]) for one in self.modules}, self._run())

    def pull_target(self) -> dict[str, np.ndarray]:
        with self._lock:
            names = [module.name for module in self.modules if module.has_target]
            return {name: _copy(self.arrays[f"{name}/target"]) for name in names}

    def push(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> Counters:
        return self._push(updates, counts, computed_on, pull=False)[0]

    def push_pull(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> tuple[Counters, Pulled]:
        return self._push(updates, counts, computed_on, pull=True)

    def _push(
        self, updates: Mapping[str, Update], counts: Counters, computed_on: int, *, pull: bool
    ) -> tuple[Counters, Pulled]:
        """All under one lock: nobody else pushes or pulls meanwhile."""
        with self._table.change() as rows:
            before = counters_in(rows[0])
            if self.max_staleness and before.updates - computed_on > self.max_staleness:
                counts = counts._replace(updates=0, dropped=counts.dropped + counts.updates)
            else:
                for name, update in updates.items():
                    self.step(name, update.value.astype(np.float32, copy=False), update.rate)
            self._count(rows, counts)
            online = {name: _copy(self.arrays[f"{name}/online"]) for name in updates} if pull else {}
            return before, Pulled(online, counters_in(rows[0]))

    def step(self, module: str, update: np.ndarray, rate: float) -> None:
        """Steps one module's parameters [P] by its optimizer, where they lie and without a lock."""
        (optimizer,) = (one.optimizer for one in self.modules if one.name == module)
        prefix = f"{module}/slot/"
        slots = {name.removeprefix(prefix): one for name, one in self.arrays.items() if name.startswith(prefix)}
        optimizer.step(self.arrays[f"{module}/online"], slots, update, rate)

    @property
    def num_updates(self) -> int:
        """Updates until now, without a lock: one that is being counted may be in it or not."""
        return int(self._table.now()[0, UPDATES])

    # Counts.

    def claim_steps(self, wanted: int, counts: Counters) -> tuple[int, Counters]:
        with self._table.change() as rows:
            self._count(rows, counts)
            granted = self._count(rows, Counters(claimed_steps=wanted))
            return granted, counters_in(rows[0])

    def report_episodes(self, episodes: list[EpisodeReport]) -> None:
        """Hands finished games to the chief. If nobody takes them for minutes, there is no room for more."""
        with self._table.change() as rows:
            put, taken = map(int, rows[0, [_PUT, _TAKEN]])
            for episode in episodes[: _MAX_EPISODES - (put - taken)]:
                self._episodes[put % _MAX_EPISODES] = episode
                put += 1
            rows[0, _PUT] = put

    def take_episodes(self) -> list[EpisodeReport]:
        with self._table.change() as rows:
            numbers = range(*map(int, rows[0, [_TAKEN, _PUT]]))
            rows[0, _TAKEN] = rows[0, _PUT]
            return [episode_report(self._episodes[number % _MAX_EPISODES]) for number in numbers]

    def _count(self, rows: np.ndarray, counts: Counters) -> int:
        """Adds this worker's counts to a table that is being changed. Gives the steps granted."""
        before = counters_in(rows[0])
        after = advance(before, counts, self.total_steps, self._target_period)
        own = rows[MEMBERS + self._worker]
        highest = np.maximum(own[_MAXIMA], np.array(counts)[_MAXIMA])
        rows[0, :_C] = after
        own[:_C] += np.array(after) - np.array(before)
        own[_MAXIMA] = highest
        granted = after.claimed_steps - before.claimed_steps
        own[_OUTSTANDING] += granted - counts.env_steps
        if after.target_refreshes > before.target_refreshes:  # before it counts: who is killed here has not counted
            self._refresh_targets()
        return granted

    def _refresh_targets(self) -> None:
        for module in self.modules:
            if module.has_target:
                self.arrays[f"{module.name}/target"][:] = self.arrays[f"{module.name}/online"]

    # Saving and restoring.

    def state(self) -> dict[str, np.ndarray]:
        with self._lock:
            arrays = {name: array.copy() for name, array in self.arrays.items()}
            counters = self._saved()
        return counter_state(counters) | arrays

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        check_state(state, self.modules)
        with self._table.change() as rows:
            for name, array in self.arrays.items():
                array[...] = state[name]
            rows[:, :_C] = 0
            rows[0, :_C] = saved_counters(state)
            rows[0, [_RUN_ID, _IS_READY]] = self.run_id, 1
            rows[MEMBERS:, _OUTSTANDING] = 0

    def close(self) -> None:
        """Nothing is left to end: the memory goes with the last process that has it."""

    def _saved(self) -> Counters:
        """The run's counters as they are saved, under the lock."""
        return self._run()

    def _run(self) -> Counters:
        """The run's counters, under the lock."""
        return counters_in(self._table.now()[0])


def counters_in(row: np.ndarray) -> Counters:
    return Counters(*row[:_C].tolist())


def _copy(array: np.ndarray) -> np.ndarray:
    """In memory that a tensor can share."""
    copied = aligned_empty(array.shape, array.dtype)
    copied[:] = array
    return copied


def _free(rows: np.ndarray, worker: int, state: MemberState) -> None:
    """Puts a worker into a state, and the steps that it has claimed and not taken back into the budget."""
    row = rows[MEMBERS + worker]
    rows[0, _CLAIMED] -= row[_OUTSTANDING]
    row[_CLAIMED] -= row[_OUTSTANDING]
    row[[_OUTSTANDING, STATE]] = 0, state
