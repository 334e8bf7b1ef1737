"""A replay's way to disk: a log of checked segments, written beside training.

The folder of a log holds, oldest first, all that the replay holds but for what came after the newest segment.
"""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from async_dqn.base.errors import one_line
from async_dqn.base.files import remove_leftovers, write_atomically
from async_dqn.data import replay_segments
from async_dqn.data.replay import Replay, Slots
from async_dqn.data.replay_segments import Restored, Segment

_MAX_WAITING = 2  # segments copied out and not yet written
_RETRY_PERIOD = 10.0  # seconds between two attempts of a write that fails
_WARN_PERIOD = 60.0
_CHANGED_BY_TRUNCATE = 2  # newest slots of an environment
_NONE = 0  # in place of the number of a segment


class ReplayLog:
    """Writes what is added to a replay, at a bounded rate, in a thread of its own.

    Args:
      directory: of this log alone; made when the first segment is written.
      replay: of this worker; `append` and `flush` are to be called by the thread that adds to it.
      run_id: fits 64 bits; a log of another run is not restored.
      warn: told, in one line and at most once a minute, that nothing can be written. Called in the writing thread.
      after: what `restore` gave for this folder; None in a new run. `replay.truncate()` may have been called since.
      replaces: folders of logs that `restore` read beside this one; removed once their slots are saved here.
      bytes_per_second: most that is written but for `flush`, before compression.
      segment_bytes: of a segment, before compression. A small replay has at least eight segments all the same.
      clock, sleep: for tests.
    """

    def __init__(
        self,
        directory: Path,
        replay: Replay,
        *,
        run_id: int,
        warn: Callable[[str], None],
        after: Restored | None = None,
        replaces: Sequence[Path] = (),
        bytes_per_second: float = 64e6,
        segment_bytes: float = 32e6,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ):
        self._directory, self._replay, self._run_id, self._warn = directory, replay, np.int64(run_id), warn
        self._bytes_per_second, self._clock = bytes_per_second, clock
        size = replay.slots_per_env
        self._segment_slots = max(1, min(int(segment_bytes / replay.slot_bytes), replay.num_envs * size // 8))
        remove_leftovers(directory, replay_segments.NAMES)
        found, _ = replay_segments.find(directory)
        self._segments = list(after.segments) if after else []  # of use, oldest first
        used = {segment.number for segment in self._segments}
        self._outdated = [path for number, path in found.items() if number not in used]
        self._replaces = list(replaces)
        self._next_number = max(found, default=_NONE) + 1
        # A log that begins anew saves the whole ring; until then what it replaces is still needed.
        self._goal = replay.added
        if self._segments:
            self._previous = self._segments[-1].number
            self._taken = np.maximum(self._segments[-1].stop - _CHANGED_BY_TRUNCATE, 0)  # [N], next slots to copy
        else:
            self._previous = _NONE
            self._taken = np.maximum(self._goal - size, 0)
        self._changed = threading.Condition()  # guards the next three
        self._waiting: deque[tuple[Segment, Slots]] = deque()
        self._failures = 0
        self._is_closed = False
        self._may_warn_at = self._due = -math.inf
        self._hurry = threading.Event()
        self._sleep = sleep or self._hurry.wait
        threading.Thread(target=self._write, name="replay-log", daemon=True).start()

    def append(self) -> None:
        """Has a segment written if it is time for one; to be called after every step. Never waits, never raises."""
        settled = np.maximum(self._replay.added - _CHANGED_BY_TRUNCATE, self._taken)
        while len(self._waiting) < _MAX_WAITING and (settled - self._taken).sum() >= self._segment_slots:
            self._take(settled)

    def flush(self, deadline: float) -> bool:
        """Writes all that is not saved yet, as fast as it can. Gives up after `deadline` seconds or at a failure.

        Returns:
          Whether all is saved.
        """
        end = time.monotonic() + deadline
        failures = self._failures

        def has_room() -> bool:
            return not self._waiting or (len(self._waiting) < _MAX_WAITING and self._num_new() > 0)

        self._hurry.set()
        try:
            while self._waiting or self._num_new():
                while len(self._waiting) < _MAX_WAITING and self._num_new():
                    self._take(self._replay.added)
                with self._changed:
                    left = end - time.monotonic()
                    self._changed.wait_for(lambda: has_room() or self._failures > failures, timeout=left)
                    if self._failures > failures or not has_room():
                        return False
            return True
        finally:
            self._hurry.clear()

    def close(self) -> None:
        """Ends the writing thread after the segment that it is at, whose writing it does not wait for."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._hurry.set()

    def _num_new(self) -> int:
        return int((self._replay.added - self._taken).sum())

    def _take(self, end: np.ndarray) -> None:
        """Copies out up to a segment of new slots before `end` [N], from each environment in proportion."""
        added, size = self._replay.added, self._replay.slots_per_env
        if (self._taken < added - size).any():  # slots were overwritten that had not been copied
            if self._previous == _NONE:
                oldest = added - size
            else:
                # Who fell behind once may do so again: half a ring ahead is a start that is not lost at once.
                oldest, self._previous = added - size // 2, _NONE
            self._taken = np.maximum(self._taken, oldest)
        new = np.maximum(end - self._taken, 0)
        total = int(new.sum())
        stop, slots = self._replay.read(self._taken, self._taken - (-new * min(total, self._segment_slots) // total))
        path = replay_segments.path_of(self._directory, self._next_number)
        segment = Segment(path, self._next_number, self._previous, self._taken, stop, size, self._replay.stack)
        self._taken, self._previous, self._next_number = stop, self._next_number, self._next_number + 1
        with self._changed:
            self._waiting.append((segment, slots))
            self._changed.notify_all()

    def _write(self) -> None:
        """What the writing thread does until the log is closed: waits for a segment and writes it, or fails to."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                segment, slots = self._waiting[0]
            try:
                self._keep_to_rate(sum(array.nbytes for array in slots))
                self._directory.mkdir(parents=True, exist_ok=True)
                write_atomically(segment.path, replay_segments.encode(segment, slots, self._run_id))
                self._remove_old(segment)
            except Exception as error:  # whatever it is, training goes on
                with contextlib.suppress(Exception):  # of a warning that cannot be given
                    self._complain(error)
                with self._changed:
                    self._failures += 1
                    self._changed.notify_all()
                self._sleep(_RETRY_PERIOD)
                continue
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()
            del segment, slots  # megabytes, and the next may be minutes away

    def _keep_to_rate(self, num_bytes: int) -> None:
        now = self._clock()
        if now < self._due and not self._hurry.is_set():
            self._sleep(self._due - now)
        self._due = max(self._due, now) + num_bytes / self._bytes_per_second

    def _remove_old(self, newest: Segment) -> None:
        """Removes what is of no use after the newest segment, which is on disk."""
        self._segments.append(newest)
        # Counted in slots on disk: restored, the ring ends with the newest of them. Slots before a gap still count.
        room = np.full(len(newest.stop), newest.slots_per_env)
        for end in range(len(self._segments) - 1, 0, -1):
            earlier, later = self._segments[end - 1 : end + 1]
            room -= later.stop - np.maximum(later.first, earlier.stop)
            # One that does not act never fills its ring: then two rings of slots in all are enough.
            if (room <= 0).all() or -room.sum() >= room.size * newest.slots_per_env:
                self._outdated += [segment.path for segment in self._segments[:end]]
                del self._segments[:end]
                break
        if (newest.stop >= self._goal - _CHANGED_BY_TRUNCATE).all():  # the newest slots wait for those that follow
            self._outdated = [path for path in self._outdated if not replay_segments.unlink(path)]
            while self._replaces:
                replay_segments.remove(self._replaces.pop())

    def _complain(self, error: Exception) -> None:
        now = self._clock()
        if now >= self._may_warn_at:
            self._may_warn_at = now + _WARN_PERIOD
            self._warn(
                f"could not save replay to {self._directory}: {one_line(error)}; "
                "training goes on, and it will be tried again"
            )
