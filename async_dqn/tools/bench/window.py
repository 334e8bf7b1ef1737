"""What the rows and the processes of a program that learns tell on a window of its time."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from async_dqn.run import csv_log

_MINIBATCHES_BEFORE = 200  # the window opens so many minibatches and
_SECONDS_BEFORE = 3.0  # so many seconds later: compilation, first trips and empty caches are over then

Row = Mapping[str, float]


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics file, as numbers; cells that hold none are left out."""
    return [dict(_numbers(row)) for row in csv_log.rows(path)]


def _numbers(row: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for name, cell in row.items():
        with contextlib.suppress(ValueError):
            yield name, float(cell)


def read_json_rows(path: Path) -> list[Row]:
    """The lines of a file that are JSON objects."""
    try:
        lines = path.read_text(errors="replace").split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.startswith("{")]


class Window(NamedTuple):
    """Where in a program's rows the measurement begins and ends; None: not yet."""

    first: int | None
    last: int | None


def window(rows: Sequence[Row], seconds: float) -> Window:
    """The learning phase, `seconds` of it: from well after the first minibatches on."""
    learning = next((row["wall_seconds"] for row in rows if row["minibatches"] >= _MINIBATCHES_BEFORE), None)
    if learning is None:
        return Window(None, None)
    first = _first_from(rows, learning + _SECONDS_BEFORE)
    return Window(first, None if first is None else _first_from(rows, rows[first]["wall_seconds"] + seconds))


def _first_from(rows: Sequence[Row], wall_seconds: float) -> int | None:
    return next((index for index, row in enumerate(rows) if row["wall_seconds"] >= wall_seconds), None)


class Sample(NamedTuple):
    """What a program takes at one moment.

    Attributes:
      time: seconds on the monotonic clock.
      pids: of all its processes.
      cpu: seconds of a core used so far, by what the process is.
      resident_mb: megabytes in memory, likewise.
      workers: the latest row of each worker's own metrics.
    """

    time: float
    pids: frozenset[int]
    cpu: Mapping[str, float]
    resident_mb: Mapping[str, float]
    workers: Mapping[str, Row]


def values(
    rows: Sequence[Row], before: Sample, after: Sample, replay_mb: Callable[[Row], float] = lambda row: 0.0
) -> dict[str, float]:
    """What was measured in a window: "metric" of the whole program, "metric: process" of each of its processes.

    CPU time comes from other moments than the rows, so rates are divided, not amounts.

    Args:
      rows: those of the window.
      before, after: what the program took at its ends.
    """
    first, last = rows[0], rows[-1]
    wall = last["wall_seconds"] - first["wall_seconds"]
    rates = {what: (last[what] - first[what]) / wall for what in ("env_steps", "minibatches", "updates")}
    found = {
        "agent steps/s": rates["env_steps"],
        "minibatches/s": rates["minibatches"],
        "updates/s": rates["updates"],
    }
    staleness = mean_staleness(rows)
    if staleness is not None:
        found["staleness"] = staleness
    cores = {who: (after.cpu[who] - before.cpu[who]) / (after.time - before.time) for who in before.cpu}
    found["cores used"] = sum(cores.values())
    for who in ("", *cores):
        share = cores[who] if who else sum(cores.values())
        found[_of("CPU s/1000 steps", who)] = 1_000 * share / rates["env_steps"] if rates["env_steps"] else float("nan")
    for who in ("", *cores):
        found[_of("resident MB", who)] = after.resident_mb[who] if who else sum(after.resident_mb.values())
    for who, row in after.workers.items():
        if replay := replay_mb(row):
            found[_of("of it replay MB", who)] = replay
        for part, percent in cycle(before.workers.get(who, row), row).items():
            found[_of(f"{part} %", who)] = percent
    return found


def _of(what: str, who: str) -> str:
    return f"{what}: {who}" if who else what


def mean_staleness(rows: Sequence[Row]) -> float | None:
    """Over all updates between the first row and the last; None where nothing is known of it."""
    total = weight = 0.0
    for earlier, row in zip(rows, rows[1:], strict=False):
        if "staleness_mean" in row:
            updates = row["updates"] - earlier["updates"]
            total, weight = total + updates * row["staleness_mean"], weight + updates
    return total / weight if weight else None


def cycle(before: Row, after: Row) -> dict[str, float]:
    """Where a worker's time went between two rows of its own metrics, in percent; empty where they do not tell."""
    wall = after["wall_seconds"] - before["wall_seconds"]
    parts = [name for name in after if name.startswith("seconds_") and name in before]
    if wall <= 0 or not parts:
        return {}
    percents = {name.removeprefix("seconds_"): 100 * (after[name] - before[name]) / wall for name in parts}
    return percents if "other" in percents else percents | {"other": 100 - sum(percents.values())}
