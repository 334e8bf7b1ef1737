"""What a run reports: trackers that consume the run loop, and the writers they feed."""

import collections
import contextlib
import csv
import errno
import io
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.parameters import Counters, EpisodeReport

EPISODE_FIELDS = ("time", "worker", "env_steps", "episode_return", "length")
METRIC_FIELDS = (
    "wall_seconds",
    "env_steps",
    "frames",
    "minibatches",
    "updates",
    "episodes",
    "mean_return_100",
    "epsilon",
    "learning_rate",
    "loss",
    "steps_per_second",
    "minibatches_per_second",
    "updates_per_second",
    "staleness_mean",
)
_WARN_PERIOD = 60.0  # seconds


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

    def write(self, row: Mapping[str, Any]) -> None:
        """Writes one row; floats with six significant digits, unknown ones empty."""
        line = io.StringIO()
        writer = csv.DictWriter(line, self._fields, lineterminator="\n")
        writer.writerow({name: _cell(value) for name, value in row.items()})
        self._append(line.getvalue())

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _append(self, text: str) -> None:
        try:
            self._file = self._file or self._open()
            _write_whole(self._file, text.encode())
        except OSError as error:
            if time.monotonic() - self._warned_at > _WARN_PERIOD:
                self._warned_at = time.monotonic()
                self._warn(f"warning: could not write to {self._path}: {error.strerror}; rows are left out")

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


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file that have all cells; none where there is no file."""
    lines = _whole_lines(path)
    return [row for row in _parse(lines) if row is not None]


def rewind(path: Path, keep: Callable[[dict[str, str]], bool]) -> int:
    """Cuts a CSV file off before its first row that is not to be kept, and what a crash left of a last line.

    Lines that are not whole rows go with those around them. Gives the number of rows cut off; 0 without a file.
    """
    lines = _whole_lines(path)
    parsed = _parse(lines)
    first = next((index for index, row in enumerate(parsed) if row is not None and not keep(row)), len(parsed))
    if path.exists():
        os.truncate(path, sum(map(len, lines[: 1 + first])))
    return sum(row is not None for row in parsed[first:])


def _whole_lines(path: Path) -> list[bytes]:
    """The lines of a file with their ends, without a last one that has none; each holds one row."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    return [line + b"\n" for line in content.split(b"\n")[:-1]]


def _parse(lines: Sequence[bytes]) -> list[dict[str, str] | None]:
    """One row for every line after the header, None for lines that hold something else."""
    if not lines:
        return []
    fields = _cells(lines[0])
    cells = map(_cells, lines[1:])
    return [dict(zip(fields, row, strict=True)) if row and len(row) == len(fields) else None for row in cells]


def _cells(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode(errors="replace")]), [])
    except csv.Error:
        return []


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}.{count}{path.suffix}") for count in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def _cell(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return "" if math.isnan(value) else f"{value:.6g}"
    if isinstance(value, str):
        return " ".join(value.splitlines())  # one line is one row
    return value


class TensorBoardWriter:
    """Scalars for TensorBoard, over global agent steps."""

    def __init__(self, directory: Path):
        self._writer = tf.summary.create_file_writer(str(directory))

    def write(self, row: Mapping[str, Any], step: int) -> None:
        """Writes every finite number of the row."""
        with contextlib.suppress(OSError, tf.errors.OpError), self._writer.as_default(step=step):  # a full disk
            for name, value in row.items():
                if isinstance(value, int | float) and math.isfinite(value):
                    tf.summary.scalar(name, value)

    def close(self) -> None:
        with contextlib.suppress(OSError, tf.errors.OpError):
            self._writer.close()


class EpisodeTracker:
    """Returns of whole games: the running mean, its best, and when it first reached the goal."""

    def __init__(self, goal: float):
        self._goal = goal
        self._returns: collections.deque[float] = collections.deque(maxlen=100)
        self.best = float("nan")
        self.solved_at: tuple[float, int] | None = None  # wall seconds, env steps

    def add(self, episode: EpisodeReport, wall_seconds: float) -> None:
        """Takes in one game; means count once there are 100."""
        self._returns.append(episode.episode_return)
        if len(self._returns) == 100:
            self.best = float(np.fmax(self.best, self.mean))
            if self.mean >= self._goal and self.solved_at is None:
                self.solved_at = (wall_seconds, episode.env_steps)

    @property
    def mean(self) -> float:
        """Mean return of the last 100 games, or of as many as there were; NaN before the first."""
        return float(np.mean(self._returns)) if self._returns else float("nan")

    def state(self) -> dict[str, Any]:
        """Plain values for JSON."""
        best = None if math.isnan(self.best) else self.best
        return {"returns": list(self._returns), "best": best, "solved_at": self.solved_at}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Puts `state()` back."""
        self._returns.clear()
        self._returns.extend(state["returns"])
        self.best = float("nan") if state["best"] is None else state["best"]
        self.solved_at = tuple(state["solved_at"]) if state["solved_at"] else None


class RateTracker:
    """Rates per second, and the mean staleness, between two looks at the counters."""

    def __init__(self, counters: Counters):
        self._last, self._time = counters, time.monotonic()

    def rates(self, counters: Counters) -> dict[str, float]:
        """Since the last call."""
        now = time.monotonic()
        seconds = max(now - self._time, 1e-9)
        delta = Counters(*(new - old for new, old in zip(counters, self._last, strict=True)))
        self._last, self._time = counters, now
        return {
            "steps_per_second": delta.env_steps / seconds,
            "minibatches_per_second": delta.minibatches / seconds,
            "updates_per_second": delta.updates / seconds,
            "staleness_mean": delta.staleness_sum / delta.updates if delta.updates else float("nan"),
        }
