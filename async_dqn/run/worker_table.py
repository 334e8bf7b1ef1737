"""Where each worker of a run stands, by its own metrics: for `local` and `status`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from async_dqn.run import csv_log
from async_dqn.run.directory import RunDirectory

_COLUMNS = {  # name in metrics.csv: (title, format)
    "env_steps": ("steps", "{:,.0f}"),
    "steps_per_second": ("steps/s", "{:.0f}"),
    "minibatches": ("minibatches", "{:,.0f}"),
    "staleness_mean": ("staleness", "{:.1f}"),
    "waiting_percent": ("waiting", "{:.1f} %"),
    "resident_mb": ("memory", "{:,.0f} MB"),
}


def read_worker(path: Path, index: int, last: int | None = 10) -> dict[str, float] | None:
    """Where a worker of the run in a folder stands; None where it has written nothing.

    Args:
      last: rows that `waiting_percent` is taken from; None: all.

    Returns:
      The last row of its metrics.csv, NaN where a cell holds no number; and `waiting_percent`: the share of its time
      that it waited for the parameter servers.
    """
    file = RunDirectory(path).worker(index) / "metrics.csv"
    try:
        cells = (csv_log.last_rows(file, last) if last else csv_log.rows(file)) if may_be_read(file) else []
    except OSError:
        return None
    if not cells:
        return None
    rows = [{name: as_number(cell) for name, cell in row.items()} for row in cells]
    spent = {name: _rise(rows, name) for name in rows[-1] if name.startswith("seconds_")}
    total = sum(spent.values())
    waiting = 100 * spent.get("seconds_waiting", math.nan) / total if total > 0 else math.nan
    return rows[-1] | {"waiting_percent": waiting}


def worker_table(workers: Sequence[tuple[str, str, Mapping[str, float] | None]]) -> list[str]:
    """Lines on workers: the name, the state and what `read_worker` gave of each; no column that none of them has."""
    known = [worker or {} for _, _, worker in workers]
    shown = [name for name in _COLUMNS if any(math.isfinite(worker.get(name, math.nan)) for worker in known)]
    rows = [("", "state", *(_COLUMNS[name][0] for name in shown))]
    for (title, state, _), worker in zip(workers, known, strict=True):
        values = [(worker.get(name, math.nan), _COLUMNS[name][1]) for name in shown]
        rows.append((title, state, *(form.format(value) if math.isfinite(value) else "-" for value, form in values)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = "<<" + ">" * len(shown)  # numbers to the right
    cells = [[f"{text:{side}{width}}" for text, side, width in zip(row, sides, widths, strict=True)] for row in rows]
    return ["  ".join(row).rstrip() for row in cells]


def may_be_read(path: Path) -> bool:
    """Whether reading it comes to an end: false for a pipe or a device."""
    return path.is_file() or not path.exists()


def as_number(cell: str) -> float:
    """NaN where it is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _rise(rows: Sequence[Mapping[str, float]], name: str) -> float:
    """By how much a count went up in all; a process that is started again counts from 0 again."""
    values = [row.get(name, math.nan) for row in rows]
    return sum(max(0.0, after - before) for before, after in zip(values, values[1:], strict=False))
