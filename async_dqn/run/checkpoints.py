"""Checkpoints: atomic to write, read back before older ones go, checked when read, the newest N kept.

One checkpoint is `NUMBER.npz` with the arrays and `NUMBER.json` with plain values and the SHA-256 of it all. Both
are written under another name, read back, and renamed, the JSON last: where it stands and agrees, the checkpoint is
whole. What is read is not trusted: any fault of any kind ends as one line that names the file.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import reprlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np

from async_dqn.base import files
from async_dqn.base.errors import one_line

FORMAT = 1

_NAME = re.compile(r"(?P<number>[0-9]{12,})(?P<suffix>\.json|\.npz)")
_BLOCK = 2**20


class Checkpoint(NamedTuple):
    """What was saved: arrays by name, plain values, and the number (global agent steps) it was saved under."""

    number: int
    arrays: dict[str, np.ndarray]
    values: dict[str, Any]


def save(
    directory: Path, number: int, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], *, keep: int
) -> Path:
    """Writes one checkpoint and removes all but the newest `keep`. Gives the path of its JSON file.

    Older ones go only once this one has been read back. What a killed process left half-written goes as well.

    Raises:
      OSError: it could not be written, or does not read back; those before it are untouched.
      ValueError: an array holds objects, or a value is NaN or infinite; nothing was written.
    """
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"array {name!r} holds objects, which only pickle could save")
    values = json.loads(json.dumps(values, allow_nan=False))
    if not directory.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        files.sync_directory(directory.parent)
    files.remove_leftovers(directory, r"[0-9]{12,}\.npz")  # first of all, for they may be what fills the disk
    text, packed = _paths(directory, number)
    with files.temporary(packed) as new_packed, files.temporary(text) as new_text:
        digest = _write_arrays(new_packed, arrays)
        digest.update(_canonical(values))
        described = {"format": FORMAT, "number": number, "sha256": digest.hexdigest(), "values": values}
        files.write(new_text, json.dumps(described).encode())
        try:
            with _checked(new_text, new_packed, number):
                pass
        except Exception as error:
            raise OSError(f"checkpoint {text} does not read back as it was written: {one_line(error)}") from error
        os.replace(new_packed, packed)
        try:
            os.replace(new_text, text)
        except OSError:
            if not text.exists():
                packed.unlink(missing_ok=True)
            raise
    files.sync_directory(directory)
    _remove_old(directory, number, keep)
    return text


def numbers(directory: Path) -> list[int]:
    """The numbers of all checkpoints that claim to be whole, oldest first. Raises OSError for an unreadable folder."""
    return sorted(number for number, suffixes in _listed(directory).items() if len(suffixes) == 2)


def load(directory: Path, number: int) -> Checkpoint:
    """Reads one checkpoint. Raises ValueError, in one line naming file and fault, where it is not whole."""
    text, packed = _paths(directory, number)
    try:
        return _load(text, packed, number)
    except Exception as error:  # whatever zipfile, json and numpy make of content that may be anything
        # A save that was killed between its two renames is whole but for the name of its JSON.
        with contextlib.suppress(OSError):
            for cut_short in directory.glob(f".{text.name}.*.tmp"):
                with contextlib.suppress(Exception):
                    return _load(cut_short, packed, number)
        raise ValueError(f"checkpoint {one_line(text)} cannot be used: {one_line(error)}") from error


def load_newest(directory: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint, or None, and a line on each newer one that had to be passed over. Never raises."""
    faults: list[str] = []
    tried: set[int] = set()
    while True:
        try:
            new = _listed(directory).keys() - tried
        except OSError as error:
            return None, [f"checkpoints {one_line(directory)} cannot be listed: {error.strerror}"]
        if not new:
            return None, faults
        for number in sorted(new, reverse=True):
            try:
                return load(directory, number), faults
            except ValueError as error:
                faults.append(str(error))
        tried |= new  # a run that goes on may have put another one in their place meanwhile


def _paths(directory: Path, number: int) -> tuple[Path, Path]:
    """The JSON file and the arrays' file of one checkpoint."""
    return directory / f"{number:012d}.json", directory / f"{number:012d}.npz"


def _listed(directory: Path) -> dict[int, set[str]]:
    """Which of its two files is there for every number. Raises OSError where the folder is there and unreadable."""
    found: dict[int, set[str]] = {}
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return found
    for name in names:
        match = _NAME.fullmatch(name)
        if match and f"{int(match['number']):012d}" == match["number"]:
            found.setdefault(int(match["number"]), set()).add(match["suffix"])
    return found


def _remove_old(directory: Path, number: int, keep: int) -> None:
    """Keeps the newest `keep` up to `number`; a later one is one that could not be read when the run was resumed."""
    kept = [whole for whole in numbers(directory) if whole <= number][-keep:]
    for old in _listed(directory).keys() - set(kept):
        for path in _paths(directory, old):  # the JSON first, so that none stands without its arrays
            with contextlib.suppress(OSError):  # the new one is safe, so that this must not fail the save
                path.unlink()
    files.remove_leftovers(directory, r"[0-9]{12,}\.(json|npz)")


class _Hashing(io.RawIOBase):
    """A file to write front to back, and the SHA-256 of what should be in it."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: Any, /) -> int:
        self.digest.update(data)
        return self._file.write(data)


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> Any:
    """Writes what `np.savez` would, without a copy of it all in memory. Gives the hash object."""
    with open(path, "wb") as file:
        hashing = _Hashing(file)
        with zipfile.ZipFile(hashing, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        files.sync(file)
        if hasattr(os, "posix_fadvise"):  # so that reading it back asks the disk, not the memory it was written from
            with contextlib.suppress(OSError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return hashing.digest


def _load(text: Path, packed: Path, number: int) -> Checkpoint:
    with _checked(text, packed, number) as (values, file):
        return Checkpoint(number, _read_arrays(file), values)


@contextlib.contextmanager
def _checked(text: Path, packed: Path, number: int) -> Iterator[tuple[dict[str, Any], IO[bytes]]]:
    """The values of a checkpoint and its open file of arrays, once the checksum over both has been found right."""
    described = json.loads(files.read_regular(text), parse_constant=_refuse_constant)
    if not isinstance(described, dict) or "format" not in described:
        raise ValueError("it names no format, so it is not a checkpoint")
    if described["format"] != FORMAT or type(described["format"]) is not int:
        raise ValueError(f"format {reprlib.repr(described['format'])}, this version reads {FORMAT}")
    values = described.get("values")
    if not isinstance(values, dict):
        raise ValueError(f'its "values" are {reprlib.repr(values)}, not an object')
    if described.get("number", number) != number:  # the name of a file is easily changed
        raise ValueError(f"it was saved as number {reprlib.repr(described['number'])}")
    with files.open_regular(packed) as file:
        digest = hashlib.sha256()
        while block := file.read(_BLOCK):
            digest.update(block)
        digest.update(_canonical(values))
        if digest.hexdigest() != described.get("sha256"):
            raise ValueError("its checksum does not match")
        file.seek(0)
        yield values, file


def _read_arrays(file: IO[bytes]) -> dict[str, np.ndarray]:
    """The arrays that `_write_arrays` or `np.savez` wrote. Nothing is unpickled or unpacked."""
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > os.fstat(file.fileno()).st_size:
            raise ValueError("its arrays claim to be larger than the file")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name == member.filename or name in arrays or member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"it holds {reprlib.repr(member.filename)}, which save does not write")
            with archive.open(member) as content:
                arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
    return arrays


def _canonical(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, allow_nan=False).encode()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not JSON")
