"""Segments of a replay in files: their format, folders of them, and a replay that is filled from these.

A slot never changes once it is written, so neither does a segment: it holds the slots that every environment added
since the segment before it, which it names. A segment that overlaps the one it continues wins: `Replay.truncate` may
have changed the newest slots after a restore.
"""

import contextlib
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from async_dqn.base.errors import one_line
from async_dqn.base.files import read_regular, remove_leftovers
from async_dqn.data.replay import Replay, Slots

_MAGIC = b"replay1\n"
_DIGEST_SIZE = hashlib.sha256().digest_size
NAMES = r"[0-9]{12,}\.segment"  # of files, a regular expression


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
    remove_leftovers(directory, NAMES)
    found, _ = find(directory)
    for path in found.values():
        unlink(path)
    with contextlib.suppress(OSError):
        directory.rmdir()


def path_of(directory: Path, number: int) -> Path:
    """Where the segment of that number belongs."""
    return directory / f"{number:012d}.segment"


def find(directory: Path) -> tuple[dict[int, Path], list[str]]:
    """The segments by number, oldest first, and a line if the folder cannot be read."""
    try:
        names = sorted(filter(re.compile(NAMES).fullmatch, os.listdir(directory)), key=lambda name: (len(name), name))
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {}, [f"replay {one_line(directory)} cannot be listed: {one_line(error.strerror)}"]
    return {int(name.partition(".")[0]): directory / name for name in names}, []


def unlink(path: Path) -> bool:
    """Whether the file is gone now."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def encode(segment: Segment, slots: Slots, run_id: np.int64) -> bytes:
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
    found, lines = find(directory)
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
