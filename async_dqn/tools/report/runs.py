"""Reads what a run directory holds, whatever state it is in: going on, interrupted, damaged, of another version."""

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from async_dqn.base.errors import UserError, one_line
from async_dqn.base.files import read_regular
from async_dqn.run import csv_log
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import count
from async_dqn.run.worker_table import as_number, may_be_read
from async_dqn.system.process_meter import METER_FIELDS

_SERIES = ("env_steps", "wall_seconds")
_GAMES = ("env_steps", "episode_return")


@dataclasses.dataclass(frozen=True)
class Run:
    """What is known of one run.

    Attributes:
      path: its folder.
      settings: as config.json has them; what is missing there is missing here.
      described: all of config.json: versions, host, command.
      summary: as summary.json has it; empty where there is none.
      returns: unclipped returns of all games [G], in the order in which they ended.
      steps: agent steps of all workers when each game ended [G]; never falling.
      seconds: of training, those before a resume included, at that moment [G]; NaN where nothing tells.
      metrics: the columns of metrics.csv, by name [M].
      notes: what is not as it should be, for whoever looks at the picture.
    """

    path: Path
    settings: Mapping[str, Any]
    described: Mapping[str, Any]
    summary: Mapping[str, Any]
    returns: np.ndarray
    steps: np.ndarray
    seconds: np.ndarray
    metrics: Mapping[str, np.ndarray]
    notes: Sequence[str]

    @property
    def is_baseline(self) -> bool:
        """Whether a single process trained it."""
        command = self.described.get("command")
        return isinstance(command, list) and command[1:2] == ["baseline"]

    @property
    def kind(self) -> str:
        """How it was trained, the same for all seeds."""
        if self.is_baseline:
            return "standard: one process"
        return f"asynchronous: {self._number('num_ps')} ps + {_workers(self._number('num_workers'))}"

    def _number(self, name: str) -> int | str:
        value = self.settings.get(name)
        return value if isinstance(value, int) else "?"


def _workers(number: int | str) -> str:
    return count(number, "worker") if isinstance(number, int) else f"{number} workers"


def read_run(path: Path) -> Run:
    """Reads a run as far as it goes. Raises UserError where the folder holds no run."""
    run = RunDirectory(path)
    try:
        exists = run.config.exists()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give run directories") from error
    if not exists:
        raise UserError(f"{path} holds no run (no config.json); give run directories")
    notes: list[str] = []
    described = _read_object(run.config, notes)
    settings = described.get("config")
    summary = _read_object(run.summary, notes) if run.summary.exists() else {}
    reason = str(summary.get("exit_reason", "running"))
    if reason == "running":
        notes.append("has not ended")
    elif reason == "interrupted" or reason.startswith("failed"):
        notes.append(reason.partition(":")[0])
    metrics = _columns(run.metrics, _SERIES, notes)
    games = _columns(run.episodes, _GAMES, notes)
    if not len(games["episode_return"]):
        notes.append("no games yet")
    steps = np.maximum.accumulate(games["env_steps"])  # workers hear of each other's steps a little late
    seconds = _seconds_at(steps, metrics)
    if np.isnan(seconds).any():
        notes.append("times are not known")
    return Run(
        path=path,
        settings=settings if isinstance(settings, dict) else {},
        described=described,
        summary=summary,
        returns=games["episode_return"],
        steps=steps,
        seconds=seconds,
        metrics=metrics,
        notes=notes,
    )


def read_runs(paths: Iterable[str]) -> list[Run]:
    """Reads each run once, however often and in what ways its folder is named. Raises UserError as `read_run` does."""
    found: dict[Path, Run] = {}
    for path in paths:
        run = read_run(Path(path))
        found.setdefault(run.path.resolve(), run)
    return list(found.values())


def _read_object(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(read_regular(path))
        if isinstance(value, dict):
            return value
    except Exception:  # whatever json makes of content that may be anything
        pass
    notes.append(f"{path.name} cannot be read")
    return {}


def _columns(path: Path, needed: Sequence[str], notes: list[str]) -> dict[str, np.ndarray]:
    """The columns of a CSV file as numbers, empty cells as NaN; without the rows in which a needed one is no number."""
    rows = []
    try:
        if may_be_read(path):
            rows = csv_log.rows(path)
        else:
            notes.append(f"{path.name} is no file")
    except OSError as error:
        notes.append(f"{path.name}: {one_line(error.strerror or error)}")
    numbers = [{name: as_number(cell) for name, cell in row.items()} for row in rows]
    whole = [row for row in numbers if all(math.isfinite(row.get(name, math.nan)) for name in needed)]
    if len(whole) < len(rows):
        notes.append(f"{path.name}: {count(len(rows) - len(whole), 'row')} cannot be read")
    names = [*needed, *(name for name in (whole[0] if whole else {}) if name not in needed)]
    return {name: np.array([row.get(name, math.nan) for row in whole], np.float64) for name in names}


def _seconds_at(steps: np.ndarray, metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """When the run had taken so many steps. Not from the games' own times, which go on while a run stands still."""
    if not len(metrics["env_steps"]):
        return np.full(len(steps), np.nan)
    at, seconds = (np.maximum.accumulate([0.0, *metrics[name]]) for name in _SERIES)
    return np.interp(steps, at, seconds)


def read_stalenesses(path: Path, num_workers: int) -> Counter[int]:
    """How often an update of the run in a folder was how stale, from its workers' own metrics."""
    counts: Counter[int] = Counter()
    for index in range(num_workers):
        file = RunDirectory(path).worker(index) / "metrics.csv"
        try:
            rows = csv_log.rows(file) if may_be_read(file) else []
        except OSError:
            continue
        for row in rows:
            for staleness, times in re.findall(r"\b([0-9]{1,9}):([0-9]{1,9})\b", row.get("stalenesses", "")):
                counts[int(staleness)] += int(times)
    return counts


class Usage(NamedTuple):
    """What one process took of the machine: CPU seconds a second [T] and megabytes in memory [T], at `seconds` [T]."""

    seconds: np.ndarray
    cores: np.ndarray
    resident_mb: np.ndarray

    @property
    def mean_cores(self) -> float:
        """Over all of its time."""
        return float(np.average(self.cores, weights=np.maximum(np.diff(self.seconds, prepend=0.0), 1e-9)))

    @property
    def half_way_mb(self) -> float:
        """Megabytes when half of its time was over."""
        return float(np.interp(self.seconds[-1] / 2, self.seconds, self.resident_mb))


def read_usage(path: Path, *, num_ps: int, num_workers: int) -> dict[str, Usage]:
    """What each ps and worker of the run in a folder took of the machine, as far as they have recorded it."""
    run = RunDirectory(path)
    folders = {f"worker {index}": run.worker(index) for index in range(num_workers)}
    folders |= {f"ps {index}": run.ps(index) for index in range(num_ps)}
    found = {}
    for name, folder in folders.items():
        columns = _columns(folder / "metrics.csv", ("wall_seconds", *METER_FIELDS), [])
        if len(columns["wall_seconds"]):
            usage = Usage(columns["wall_seconds"], *(columns[field] for field in METER_FIELDS))
            found[name] = usage._replace(seconds=_unbroken(usage.seconds))
    return found


def _unbroken(seconds: np.ndarray) -> np.ndarray:
    """A process that is started again counts from 0 again; here it goes on from where it was."""
    falls = np.where(np.diff(seconds, prepend=0.0) < 0, np.concatenate([[0.0], seconds[:-1]]), 0.0)
    return seconds + np.cumsum(falls)


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of each value and those before it, `window` together; of fewer at the beginning. [G] -> [G]."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)
