"""Where each worker of a run stands, by its own metrics: for `local` and `status`."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from async_dqn.run import csv_log
from async_dqn.run.directory import RunDirectory

_COLUMNS = ("", "state", "steps", "steps/s", "minibatches", "staleness", "waiting", "memory")


@dataclasses.dataclass(frozen=True)
class Worker:
    """Where one worker stands, by the last rows of its own metrics. Numbers that they lack are NaN.

    Attributes:
      path: of these metrics.
      waiting_percent: of its latest time, for the parameter servers.
      steps_per_second, staleness_mean: of the last row's interval.
    """

    path: Path
    waiting_percent: float
    env_steps: float
    minibatches: float
    steps_per_second: float
    staleness_mean: float
    resident_mb: float


def read_worker(path: Path, index: int, last: int | None = 10) -> Worker | None:
    """A worker of the run in a folder; None where it has written nothing.

    Args:
      last: rows that its latest time is taken from; None: all.
    """
    file = RunDirectory(path).worker(index) / "metrics.csv"
    try:
        cells = (csv_log.last_rows(file, last) if last else csv_log.rows(file)) if may_be_read(file) else []
    except OSError:
        return None
    if not cells:
        return None
    rows = [{name: as_number(cell) for name, cell in row.items()} for row in cells]
    row = rows[-1]
    spent = {name: _rise(rows, name) for name in row if name.startswith("seconds_")}
    total = sum(spent.values())
    waiting = 100 * spent.get("seconds_waiting", math.nan) / total if total > 0 else math.nan
    names = ("env_steps", "minibatches", "steps_per_second", "staleness_mean", "resident_mb")
    return Worker(file, waiting, *(row.get(name, math.nan) for name in names))


def worker_table(workers: Sequence[tuple[str, str, Worker | None]]) -> list[str]:
    """Lines on workers: the name, the state and what is known of each."""
    rows = []
    for name, state, worker in workers:
        row = (
            _text(worker.env_steps, "{:,.0f}"),
            _text(worker.steps_per_second, "{:.0f}"),
            _text(worker.minibatches, "{:,.0f}"),
            _text(worker.staleness_mean, "{:.1f}"),
            _text(worker.waiting_percent, "{:.1f} %"),
            _text(worker.resident_mb, "{:,.0f} MB"),
        ) if worker else ("-",) * (len(_COLUMNS) - 2)  # fmt: skip
        rows.append((name, state, *row))
    return _aligned([_COLUMNS, *rows])


def may_be_read(path: Path) -> bool:
    """Whether reading it comes to an end: false for a pipe or a device."""
    return path.is_file() or not path.exists()


def as_number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _rise(rows: Sequence[Mapping[str, float]], name: str) -> float:
    """By how much a count went up in all; a process that is started again counts from 0 again."""
    values = [row.get(name, math.nan) for row in rows]
    return sum(max(0.0, after - before) for before, after in zip(values, values[1:], strict=False))


def _text(value: float, form: str) -> str:
    return form.format(value) if math.isfinite(value) else "-"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first two columns to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if place < 2 else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
