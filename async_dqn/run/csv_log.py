"""The CSV files of a run: whole lines, whatever happens while they are written."""

import csv
import errno
import io
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from async_dqn.base.files import write_atomically

_WARN_PERIOD = 60.0  # seconds
_LONGEST_LINE = 1_024  # bytes; a row of metrics has some 200


class CsvWriter:
    """Appends rows of the given fields to a CSV file, whole lines at a time.

    A last line that a crash cut short is removed first. A file with other fields, as another version writes them, is
    moved aside, to NAME.1.csv. Where nothing can be written, as on a full disk, rows are left out.

    Args:
      warn: told so, once a minute at most.
    """

    def __init__(self, path: Path, fields: Iterable[str], warn: Callable[[str], None] = lambda line: None):
        self._path, self._fields, self._warn = path, list(fields), warn
        self._file: io.FileIO | None = None
        self._warned_at = -math.inf
        self._append("")

    def write(self, row: Mapping[str, Any]) -> bool:
        """Writes one row; floats with six significant digits, unknown ones empty. Gives whether it is there."""
        line = io.StringIO()
        writer = csv.DictWriter(line, self._fields, lineterminator="\n")
        writer.writerow({name: _cell(value) for name, value in row.items()})
        return self._append(line.getvalue())

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _append(self, text: str) -> bool:
        try:
            self._file = self._file or self._open()
            _write_whole(self._file, text.encode())
            return True
        except OSError as error:
            if time.monotonic() - self._warned_at > _WARN_PERIOD:
                self._warned_at = time.monotonic()
                self._warn(f"warning: could not write to {self._path}: {error.strerror}; rows are left out")
            return False

    def _open(self) -> io.FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lines = _whole_lines(self._path)
        if self._path.exists():
            os.truncate(self._path, sum(map(len, lines)))
        if lines and _cells(lines[0]) != self._fields:
            self._path.rename(_free_name(self._path))
            lines = []
        file = io.FileIO(self._path, "a")
        if not lines:
            _write_whole(file, f"{','.join(self._fields)}\n".encode())
        return file


def _write_whole(file: io.FileIO, content: bytes) -> None:
    """All or, raising OSError, nothing."""
    size = os.fstat(file.fileno()).st_size
    if file.write(content) != len(content):
        file.truncate(size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def rows(path: Path, last: int | None = None) -> list[dict[str, str]]:
    """The rows of a CSV file that have all cells; none where there is no file.

    Args:
      last: up to so many of the last rows, for which not all of the file is read.

    Raises:
      OSError: it cannot be read, or is a pipe or a device, which might never end.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path.name} is no file")
    found = [row for row in _parse(_whole_lines(path, last)) if row is not None]
    return found[-last:] if last else found


def number_rows(path: Path, last: int | None = None) -> list[dict[str, float]]:
    """The same, their cells as numbers."""
    return list(map(numbers, rows(path, last)))


def numbers(row: Mapping[str, str]) -> dict[str, float]:
    """The cells of a row as numbers, NaN where a cell holds none."""
    return {name: _number(cell) for name, cell in row.items()}


def rise(rows: Sequence[Mapping[str, float]], name: str) -> float:
    """By how much a count went up in all, less cells that hold none; a process that is started again begins at 0."""
    values = [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]
    return sum(after - before if after >= before else after for before, after in itertools.pairwise(values))


def rewind(path: Path, keep: Callable[[dict[str, str]], bool]) -> int:
    """Takes out of a CSV file the rows that are not to be kept, and what a crash left of a last line.

    Lines that are not whole rows go with the row before them. Gives the number of rows taken out; 0 without a file.

    Raises OSError where it has to be written anew and cannot be.
    """
    lines = _whole_lines(path)
    kept, is_kept, num_removed = lines[:1], True, 0
    for line, row in zip(lines[1:], _parse(lines), strict=True):
        if row is not None:
            is_kept = keep(row)
            num_removed += not is_kept
        if is_kept:
            kept.append(line)
    content = b"".join(kept)
    if path.exists() and kept == lines[: len(kept)]:
        os.truncate(path, len(content))  # needs no room on the disk
    elif path.exists():
        write_atomically(path, content)
    return num_removed


def _whole_lines(path: Path, last: int | None = None) -> list[bytes]:
    """The lines of a file with their ends, without a last one that has none; or the first and some of the last ones."""
    header = b""
    try:
        with open(path, "rb") as file:
            if last:
                header = file.readline(_LONGEST_LINE)
                begin = file.tell()
                file.seek(max(begin, file.seek(0, os.SEEK_END) - (last + 1) * _LONGEST_LINE))
                if file.tell() > begin:
                    file.readline()  # begins in the middle
            content = header + file.read()
    except FileNotFoundError:
        return []
    return [line + b"\n" for line in content.split(b"\n")[:-1]]


def _parse(lines: Sequence[bytes]) -> Iterator[dict[str, str] | None]:
    """One row for every line after the header, None for lines that hold something else."""
    fields = _cells(lines[0]) if lines else []
    for row in map(_cells, lines[1:]):
        yield dict(zip(fields, row, strict=True)) if row and len(row) == len(fields) else None


def _cells(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode(errors="replace")]), [])
    except csv.Error:
        return []


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}.{count}{path.suffix}") for count in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def _cell(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else f"{value:.6g}"
    if isinstance(value, str):
        return " ".join(value.splitlines())  # one line is one row
    return value
