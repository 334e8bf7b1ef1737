"""A replay's way to disk: a log of checked segments, written beside training.

A slot never changes once it is written, so neither does a segment: it holds the slots that every environment added
since the segment before it, which it names. The folder of a log so holds, oldest first, all that the replay holds but
for what came after the newest segment. A segment that overlaps the one it continues wins: `Replay.truncate` may have
changed the newest slots after a restore.
"""

import contextlib
import hashlib
import io
import math
import os
import re
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from async_dqn.background import Background
from async_dqn.checkpoints import read_regular, write_atomically
from async_dqn.errors import one_line
from async_dqn.replay import Replay, Slots

_MAGIC = b"replay1\n"
_DIGEST_SIZE = hashlib.sha256().digest_size
_NAME = re.compile(r"[0-9]{12,}\.segment")
_TEMPORARY = re.compile(r"\.[0-9]{12,}\.segment\..*\.tmp")
_MAX_WAITING = 2  # segments copied out and not yet written
_RETRY_PERIOD = 10.0  # seconds between two attempts of a write that fails
_WARN_PERIOD = 60.0
_CHANGED_BY_TRUNCATE = 2  # newest slots of an environment
_NONE = 0  # in place of the number of a segment


class Segment(NamedTuple):
    """What a file holds: the slots first ... stop - 1 [N] of every environment."""

    path: Path
    number: int
    previous: int  # number of the segment that this one continues
    first: np.ndarray
    stop: np.ndarray
    slots_per_env: int
    stack: int


class Restored(NamedTuple):
    """What `restore` found."""

    num_slots: int
    added: np.ndarray | None  # [N] where the replay is the same again, slot numbers and all
    faults: list[str]  # a line on each thing that could not be used
    segments: tuple[Segment, ...]  # that the log of this worker goes on from


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
        _remove_temporaries(directory)
        found, _ = _list(directory)
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
        self._waiting: deque[tuple[Segment, Slots]] = deque()
        self._is_writing = self._is_closed = False
        self._changed = threading.Condition()  # guards the three above and the count below
        self._failures = 0
        self._retry_at = self._may_warn_at = self._due = -math.inf
        self._hurry = threading.Event()
        self._sleep = sleep or self._hurry.wait
        self._background = Background("replay-log")

    def append(self) -> None:
        """Has a segment written if it is time for one; to be called after every step. Never waits, never raises."""
        while len(self._waiting) < _MAX_WAITING and self._num_new() >= self._segment_slots:
            self._take()
        if self._waiting and not self._is_writing and self._clock() >= self._retry_at:
            self._start_writing()

    def flush(self, deadline: float) -> bool:
        """Writes all that is not saved yet, as fast as it can. Gives up after `deadline` seconds or at a failure.

        Returns:
          Whether all is saved.
        """
        end = time.monotonic() + deadline
        failures = self._failures
        self._hurry.set()
        try:
            while True:
                while len(self._waiting) < _MAX_WAITING and self._num_new():
                    self._take()
                self._start_writing()
                with self._changed:
                    count = len(self._waiting)
                    if not count and not self._num_new():
                        return True
                    if not count:
                        continue  # all was written while the last of it was copied out
                    self._changed.wait_for(
                        lambda: len(self._waiting) < count or self._failures > failures,  # noqa: B023
                        timeout=end - time.monotonic(),
                    )
                    if self._failures > failures or (self._waiting and time.monotonic() >= end):
                        return False
        finally:
            self._hurry.clear()

    def close(self) -> None:
        """Ends the writing thread after the segment that it is at, whose writing it does not wait for."""
        with self._changed:
            self._is_closed = True
        self._hurry.set()
        self._background.close()

    def _num_new(self) -> int:
        return int((self._replay.added - self._taken).sum())

    def _take(self) -> None:
        """Copies out up to a segment of new slots, from each environment in proportion to what it has."""
        added, size = self._replay.added, self._replay.slots_per_env
        if (self._taken < added - size).any():  # slots were overwritten that had not been copied
            if self._previous == _NONE:
                oldest = added - size
            else:
                # Who fell behind once may do so again: half a ring ahead is a start that is not lost at once.
                oldest, self._previous = added - size // 2, _NONE
            self._taken = np.maximum(self._taken, oldest)
        new = added - self._taken
        total = int(new.sum())
        stop, slots = self._replay.read(self._taken, self._taken - (-new * min(total, self._segment_slots) // total))
        path = self._directory / f"{self._next_number:012d}.segment"
        segment = Segment(path, self._next_number, self._previous, self._taken, stop, size, self._replay.stack)
        self._taken, self._previous, self._next_number = stop, self._next_number, self._next_number + 1
        with self._changed:
            self._waiting.append((segment, slots))

    def _start_writing(self) -> None:
        with self._changed:
            if self._waiting and not self._is_writing and not self._is_closed:
                self._is_writing = True
                self._background.submit(self._write_waiting)

    def _write_waiting(self) -> None:
        """Writes segments until none waits or one fails; runs in the writing thread."""
        while True:
            with self._changed:
                if not self._waiting or self._is_closed:
                    self._is_writing = False
                    return
                segment, slots = self._waiting[0]
            try:
                self._keep_to_rate(sum(array.nbytes for array in slots))
                self._directory.mkdir(parents=True, exist_ok=True)
                write_atomically(segment.path, _encode(segment, slots, self._run_id))
                self._remove_old(segment)
            except Exception as error:  # whatever it is, training goes on
                try:
                    self._complain(error)
                finally:
                    with self._changed:
                        self._retry_at = self._clock() + _RETRY_PERIOD
                        self._failures += 1
                        self._is_writing = False
                        self._changed.notify_all()
                return
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()

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
            if (room <= 0).all():
                self._outdated += [segment.path for segment in self._segments[:end]]
                del self._segments[:end]
                break
        if (newest.stop >= self._goal).all():
            self._outdated = [path for path in self._outdated if not _unlink(path)]
            while self._replaces:
                remove(self._replaces.pop())

    def _complain(self, error: Exception) -> None:
        now = self._clock()
        if now >= self._may_warn_at:
            self._may_warn_at = now + _WARN_PERIOD
            self._warn(
                f"could not save replay to {self._directory}: {one_line(error)}; "
                "training goes on, and it will be tried again"
            )


def restore(replay: Replay, directories: Sequence[Path], *, run_id: int) -> Restored:
    """Fills a replay from logs; what it held before is forgotten.

    Where one log has all that a ring of the same size held, the replay is what it was when the newest segment was
    taken, and samples the same. Else its rings take what runs of slots there are, the newest last, each run ended as
    by `Replay.truncate`; ring e takes those of the rings e, e + N, ... of every log.

    Args:
      directories: of this worker's own log, then those of workers that are no more. They may be missing.
      run_id: whose logs to read.
    """
    faults: list[str] = []
    logs = [_read_log(directory, replay, run_id, faults) for directory in directories]
    while True:
        is_exact = _is_exact(replay, logs)
        replay.clear()
        lost = _fill(replay, logs, is_exact, faults)
        if lost is None:
            break
        logs = [[segment for segment in log if segment is not lost] for log in logs]
    segments = tuple(logs[0]) if is_exact else ()
    return Restored(replay.num_slots, replay.added if is_exact else None, faults, segments)


def remove(directory: Path) -> None:
    """Removes a log, and its folder if nothing else is in it. Does not mind what cannot be removed."""
    _remove_temporaries(directory)
    found, _ = _list(directory)
    for path in found.values():
        _unlink(path)
    with contextlib.suppress(OSError):
        directory.rmdir()


def _list(directory: Path) -> tuple[dict[int, Path], list[str]]:
    """The segments by number, oldest first, and a line if the folder cannot be read."""
    try:
        names = sorted(filter(_NAME.fullmatch, os.listdir(directory)), key=lambda name: (len(name), name))
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {}, [f"replay {one_line(directory)} cannot be listed: {one_line(error.strerror)}"]
    return {int(name.partition(".")[0]): directory / name for name in names}, []


def _remove_temporaries(directory: Path) -> None:
    with contextlib.suppress(OSError):
        for name in filter(_TEMPORARY.fullmatch, os.listdir(directory)):
            _unlink(directory / name)


def _unlink(path: Path) -> bool:
    """Whether the file is gone now."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _encode(segment: Segment, slots: Slots, run_id: np.int64) -> bytes:
    arrays = {
        "run_id": run_id,
        "previous": np.int64(segment.previous),
        "first": segment.first,
        "count": segment.stop - segment.first,
        "slots_per_env": np.int64(segment.slots_per_env),
        "stack": np.int64(segment.stack),
        "shape": np.array(slots.observation.shape[1:], np.int64),
        "dtype": np.array(slots.observation.dtype.str),
    } | slots._asdict()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    content = packed.getbuffer()
    return b"".join([_MAGIC, hashlib.sha256(content).digest(), content])


def _open(path: Path) -> np.lib.npyio.NpzFile:
    """The arrays of a file that is whole."""
    content = memoryview(read_regular(path, path.stat().st_size))
    begin = len(_MAGIC) + _DIGEST_SIZE
    if content[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is not a segment of a replay")
    if hashlib.sha256(content[begin:]).digest() != content[len(_MAGIC) : begin]:
        raise ValueError("its checksum does not match")
    return np.load(io.BytesIO(content[begin:]), allow_pickle=False)


def _read_log(directory: Path, replay: Replay, run_id: int, faults: list[str]) -> list[Segment]:
    """The segments that can be used, oldest first. A line goes to `faults` on all others."""
    found, lines = _list(directory)
    faults += lines
    segments: list[Segment] = []
    misfits: dict[str, int] = {}
    expected = f"{replay.observation_shape} {replay.observation_dtype}"
    for number, path in found.items():
        try:
            with _open(path) as arrays:
                shape, dtype = tuple(map(int, arrays["shape"])), np.dtype(str(arrays["dtype"]))
                first, stop = arrays["first"], arrays["first"] + arrays["count"]
                plain = {name: int(arrays[name]) for name in ("run_id", "previous", "slots_per_env", "stack")}
        except Exception as error:  # whatever zipfile and numpy make of content that may be anything
            faults.append(f"replay segment {one_line(path)} cannot be used: {one_line(error)}")
            continue
        reason = None
        if plain.pop("run_id") != run_id:
            reason = "of another run"
        elif f"{shape} {dtype}" != expected:
            reason = f"with observations {shape} {dtype}, not {expected}"
        if reason:
            misfits[reason] = misfits.get(reason, 0) + 1
        else:
            segments.append(Segment(path, number, first=first, stop=stop, **plain))
    faults += [f"replay {one_line(directory)}: ignored {n} segments {reason}" for reason, n in misfits.items()]
    return segments


def _continues(later: Segment, earlier: Segment) -> bool:
    same_envs = len(later.first) == len(earlier.first)
    return later.previous == earlier.number and same_envs and bool((later.first <= earlier.stop).all())


def _is_exact(replay: Replay, logs: Sequence[Sequence[Segment]]) -> bool:
    """Whether there is one log without a gap that holds all that a ring like this one would."""
    held = [log for log in logs if log]
    if len(held) != 1 or not all(_continues(later, earlier) for earlier, later in pairwise(held[0])):
        return False
    oldest, newest = held[0][0], held[0][-1]
    sizes = len(newest.first), newest.slots_per_env, newest.stack
    if sizes != (replay.num_envs, replay.slots_per_env, replay.stack):
        return False
    return bool((oldest.first <= np.maximum(newest.stop - newest.slots_per_env, 0)).all())


class _Part(NamedTuple):
    """What of a segment is to be restored: the slots first ... stop - 1 [N], which no later segment holds."""

    segment: Segment
    stop: np.ndarray
    run: tuple[int, int]  # parts of one run follow each other


def _parts(log: Sequence[Segment], which: int) -> list[_Part]:
    """The parts of one log, newest first."""
    parts: list[_Part] = []
    limit, run = np.empty(0), 0
    for later, segment in zip([None, *reversed(log)], reversed(log), strict=False):
        if later is None or not _continues(later, segment):
            limit, run = segment.stop, segment.number
        stop = np.minimum(segment.stop, limit)
        parts.append(_Part(segment, stop, (which, run)))
        limit = np.minimum(segment.first, limit)
    return parts


def _needed(replay: Replay, logs: Sequence[Sequence[Segment]]) -> Iterator[_Part]:
    """What of all logs the rings have room for, newest first; logs are taken to end at the same time."""
    room = np.full(replay.num_envs, replay.slots_per_env)
    parts = [(age, part) for which, log in enumerate(logs) for age, part in enumerate(_parts(log, which))]
    for _, part in sorted(parts, key=lambda aged: aged[0]):
        count = np.maximum(part.stop - part.segment.first, 0)
        rings = np.arange(len(count)) % replay.num_envs
        wanted = (count > 0) & (room[rings] > 0)
        if wanted.any():
            yield part._replace(stop=np.where(wanted, part.stop, part.segment.first))
        np.subtract.at(room, rings, count)


def _fill(replay: Replay, logs: Sequence[Sequence[Segment]], is_exact: bool, faults: list[str]) -> Segment | None:
    """Extends an empty replay by all logs, one segment in memory at a time. Gives one that could not be read."""
    ends: dict[int, tuple] = {}  # of each ring: the run, the environment and the number of the slot to come
    for part in reversed(list(_needed(replay, logs))):
        segment = part.segment
        try:
            with _open(segment.path) as arrays:
                slots = Slots(*(arrays[name] for name in Slots._fields))
        except Exception as error:  # it was whole a moment ago
            faults.append(f"replay segment {one_line(segment.path)} cannot be used: {one_line(error)}")
            return segment
        begins = np.cumsum(segment.stop - segment.first) - (segment.stop - segment.first)
        for env, (first, stop, begin) in enumerate(zip(segment.first, part.stop, begins, strict=True)):
            if stop <= first:
                continue
            ring = env % replay.num_envs
            slots_of_env = Slots(*(array[begin : begin + stop - first] for array in slots))
            if ends.get(ring) != (part.run, env, first):
                if is_exact:
                    replay.begin_at(env, first, slots_of_env.age[0])
                else:
                    replay.truncate(np.array([ring]))
            replay.extend(ring, slots_of_env)
            ends[ring] = part.run, env, stop
    if not is_exact:
        replay.truncate()
    return None
