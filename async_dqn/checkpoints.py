"""Checkpoints: atomic to write, checked when read, the newest N kept.

One checkpoint is `NUMBER.npz` with the arrays and `NUMBER.json` with plain values and the SHA-256 of it all. Both
are written under another name, flushed and renamed, the JSON last: where it stands and agrees, the checkpoint is whole.
"""

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FORMAT = 1


class Checkpoint(NamedTuple):
    """What was saved: arrays by name, plain values, and the number (global agent steps) it was saved under."""

    number: int
    arrays: dict[str, np.ndarray]
    values: dict[str, Any]


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` by `content`: a reader, or whoever comes after a crash, finds the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def save(
    directory: Path, number: int, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], *, keep: int
) -> Path:
    """Writes one checkpoint and removes all but the newest `keep`. Gives the path of its JSON file.

    Raises:
      OSError: it could not be written; those before it are untouched.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"array {name!r} holds objects, which only pickle could save")
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    content = buffer.getvalue()
    stem = directory / f"{number:012d}"
    write_atomically(stem.with_suffix(".npz"), content)
    values = json.loads(json.dumps(values))
    described = {"format": FORMAT, "sha256": _checksum(content, values), "values": values}
    write_atomically(stem.with_suffix(".json"), json.dumps(described).encode())
    kept = [whole for whole in numbers(directory) if whole <= number][-keep:]
    for path in directory.iterdir():  # a later number is one that could not be read when the run was resumed
        if path.suffix in (".json", ".npz") and path.stem.isdigit() and int(path.stem) not in kept:
            path.unlink(missing_ok=True)
    return stem.with_suffix(".json")


def _checksum(content: bytes, values: Any) -> str:
    return hashlib.sha256(content + json.dumps(values, sort_keys=True).encode()).hexdigest()


def numbers(directory: Path) -> list[int]:
    """The numbers of all checkpoints that claim to be whole, oldest first."""
    return sorted(int(path.stem) for path in directory.glob("*.json") if path.stem.isdigit())


def load(directory: Path, number: int) -> Checkpoint:
    """Reads one checkpoint. Raises ValueError, naming file and fault, where it is not whole."""
    path = directory / f"{number:012d}.json"
    try:
        described = json.loads(path.read_bytes())
        if described["format"] != FORMAT:
            raise ValueError(f"format {described['format']}, this version reads {FORMAT}")
        content = path.with_suffix(".npz").read_bytes()
        if _checksum(content, described["values"]) != described["sha256"]:
            raise ValueError("its checksum does not match")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return Checkpoint(number, dict(arrays), described["values"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"checkpoint {path} cannot be used: {error}") from error


def load_newest(directory: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint, or None, and a line on each newer one that had to be passed over."""
    faults: list[str] = []
    for number in reversed(numbers(directory)):
        try:
            return load(directory, number), faults
        except ValueError as error:
            faults.append(str(error))
    return None, faults
