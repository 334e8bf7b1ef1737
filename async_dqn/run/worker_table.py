"""Where each worker of a run stands, by its own metrics: for `local` and `status`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from async_dqn.run import csv_log

_COLUMNS = {  # name in metrics.csv: (title, format)
    "env_steps": ("steps", "{:,.0f}"),
    "steps_per_second": ("steps/s", "{:.0f}"),
    "minibatches": ("minibatches", "{:,.0f}"),
    "staleness_mean": ("staleness", "{:.1f}"),
    "waiting_percent": ("waiting", "{:.1f} %"),
    "resident_mb": ("memory", "{:,.0f} MB"),
}


def read_process(file: Path, last: int | None = 10) -> dict[str, float] | None:
    """Where a process stands by a metrics.csv of its own; None where it has written nothing.

    Args:
      last: rows that means are taken over; None: all.

    Returns:
      The last row, NaN where a cell holds no number; and `waiting_percent`, the share of its time that it waited for
      the parameter servers, and `cores_mean`, the cores that it used.
    """
    try:
        rows = csv_log.number_rows(file, last)
    except OSError:
        return None
    if not rows:
        return None
    spent = {name: csv_log.rise(rows, name) for name in rows[-1] if name.startswith("seconds_")}
    total = sum(spent.values())
    waiting = 100 * spent.get("seconds_waiting", math.nan) / total if total > 0 else math.nan
    cores = sum(row.get("cores_used", math.nan) for row in rows) / len(rows)
    return rows[-1] | {"waiting_percent": waiting, "cores_mean": cores}


def worker_table(workers: Sequence[tuple[str, str, Mapping[str, float] | None]]) -> list[str]:
    """Lines on workers: the name, the state and what `read_process` gave of each; no column that none of them has."""
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
