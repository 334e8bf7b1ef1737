"""Reads what a run directory holds, whatever state it is in: going on, interrupted, damaged, of another version."""

import contextlib
import dataclasses
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from async_dqn.base.errors import UserError, one_line
from async_dqn.base.files import json_object
from async_dqn.run.csv_log import number_rows, numbers, rise, rows
from async_dqn.run.directory import COMPLETE, RunDirectory
from async_dqn.run.progress import count

BASELINE = "baseline"


@dataclasses.dataclass(frozen=True)
class Run:
    """What is known of one run.

    Attributes:
      path: its folder.
      described: config.json: settings, versions, host, command; what is missing there is missing here.
      summary: summary.json; empty where there is none.
      games: columns of episodes.csv by name [G], in the order in which the games ended; `env_steps` never falls, and
        `seconds` is the training time, that before a resume included, at that moment; NaN where nothing tells.
      metrics: columns of metrics.csv by name [M], whatever columns the agent writes.
      notes: what is not as it should be, for whoever looks at the picture.
      label: the kind of run in a study.
    """

    path: Path
    described: Mapping[str, Any]
    summary: Mapping[str, Any]
    games: Mapping[str, np.ndarray]
    metrics: Mapping[str, np.ndarray]
    notes: Sequence[str]
    label: str = ""

    @property
    def settings(self) -> Mapping[str, Any]:
        """As config.json has them."""
        settings = self.described.get("config")
        return settings if isinstance(settings, dict) else {}

    @property
    def host(self) -> Mapping[str, Any]:
        """The machine that it began on, as config.json has it."""
        host = self.described.get("host")
        return host if isinstance(host, dict) else {}

    @property
    def kind(self) -> str:
        """How it was trained, the same for all seeds: baseline, or the size of its cluster; in a study its label."""
        if self.label:
            return self.label
        command = self.described.get("command")
        as_named = isinstance(command, list) and command[1:2] == ["baseline"]
        if self.described.get("in_one_process", as_named):  # which earlier versions did not write, nor the mode
            return BASELINE
        num_ps, num_workers = self.settings.get("num_ps", "?"), self.num_workers
        store = f"{num_ps} ps"
        if self.settings.get("store") == "shared_memory":
            mode = self.described.get("update_mode", self.settings.get("update_mode"))
            store = f"shared memory, {'hogwild' if mode in ('auto', None) else mode}"
        return f"{store} + {count(num_workers, 'worker') if num_workers else '? workers'}"

    @property
    def title(self) -> str:
        """Which it is of several seeds."""
        return f"{self.kind}, seed {self.settings.get('seed', '?')}"

    @property
    def num_workers(self) -> int:
        """0 where it is not known."""
        number = self.settings.get("num_workers")
        return number if isinstance(number, int) else 0

    @property
    def goal(self) -> float:
        """The mean return at which it ends; NaN where there is none."""
        return finite(self.settings.get("stop_at_return"))

    @property
    def exit_reason(self) -> str:
        """Of summary.json: "running" until it has ended."""
        return str(self.summary.get("exit_reason") or "running")


def finite(value: Any) -> float:
    """A number of a JSON file; NaN for all else."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _read_json(path: Path, notes: list[str]) -> dict[str, Any]:
    """The object that a file holds; nothing where there is no file, or, with a note, where it cannot be read."""
    value = json_object(path)
    if value is None and os.path.lexists(path):
        notes.append(f"{path.name} cannot be read")
    return value or {}


def read_run(path: Path) -> Run:
    """Reads a run as far as it goes. Raises UserError where the folder holds no run."""
    run, notes = RunDirectory(path), list[str]()
    if not os.path.exists(run.config):
        raise UserError(f"{path} holds no run (no config.json); give run directories")
    described, summary = (_read_json(file, notes) for file in (run.config, run.summary))
    metrics = _columns(run.metrics, ("env_steps", "wall_seconds"), notes)
    games = _columns(run.episodes, ("env_steps", "episode_return"), notes)
    games["env_steps"] = np.maximum.accumulate(games["env_steps"])  # workers hear of each other's steps a little late
    games["seconds"] = np.full(len(games["env_steps"]), np.nan)
    if len(metrics["env_steps"]):  # not from the games' own times, which go on while a run stands still
        steps, seconds = (np.maximum.accumulate([0.0, *metrics[name]]) for name in ("env_steps", "wall_seconds"))
        games["seconds"] = np.interp(games["env_steps"], steps, seconds)
    made = Run(path, described, summary, games, metrics, notes)
    if made.exit_reason not in COMPLETE:
        notes.append(made.exit_reason.partition(":")[0].replace("running", "has not ended"))
    if not len(games["env_steps"]):
        notes.append("no games yet")
    elif not len(metrics["env_steps"]):
        notes.append("times are not known")
    return made


def read_runs(paths: Iterable[str]) -> list[Run]:
    """Reads each run once, however often and in what ways its folder is named. Raises UserError as `read_run` does."""
    return list({run.path.resolve(): run for run in map(read_run, map(Path, paths))}.values())


def read_evaluation(path: Path) -> dict[str, Any]:
    """What evaluation.json holds; nothing where its games were cut short or not greedy, or not of the newest state."""
    found, summary = (json_object(path / name) or {} for name in ("evaluation.json", "summary.json"))
    is_newest = found.get("checkpoint_env_steps") == summary.get("env_steps")
    is_whole = found.get("actions") == "greedy" and not found.get("epsilon") and not found.get("max_steps")
    return found if is_newest and is_whole else {}


def _columns(path: Path, needed: Sequence[str], notes: list[str]) -> dict[str, np.ndarray]:
    """The columns of a CSV file as numbers, empty cells as NaN; without the rows in which a needed one is no number."""
    found: list[dict[str, str]] = []
    try:
        found = rows(path)
    except OSError as error:
        notes.append(f"{path.name}: {one_line(error.strerror or error)}")
    whole = [row for row in map(numbers, found) if all(math.isfinite(row.get(name, math.nan)) for name in needed)]
    if len(whole) < len(found):
        notes.append(f"{path.name}: {count(len(found) - len(whole), 'row')} cannot be read")
    names = dict.fromkeys([*needed, *(whole[0] if whole else ())])
    return {name: np.array([row[name] for row in whole], np.float64) for name in names}


def read_stalenesses(run: Run) -> Counter[int]:
    """How often an update was how stale, from the workers' own metrics."""
    counts: Counter[int] = Counter()
    for file in run.path.glob("worker-*/metrics.csv"):
        with contextlib.suppress(OSError):
            for row in rows(file):
                for staleness, times in re.findall(r"\b([0-9]{1,9}):([0-9]{1,9})\b", row.get("stalenesses", "")):
                    counts[int(staleness)] += int(times)
    return counts


def read_megabytes(run: Run) -> float:
    """Updates, parameters and experience that the workers sent or fetched, in all; NaN: it is not known."""
    name = "megabytes_exchanged"
    try:
        workers = [number_rows(file) for file in run.path.glob("worker-*/metrics.csv")]
    except OSError:
        return math.nan  # the others alone would be too few
    is_known = any(math.isfinite(row.get(name, math.nan)) for own in workers for row in own)
    return sum(rise([{name: 0.0}, *own], name) for own in workers) if is_known else math.nan


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of each value and those before it, `window` together; of fewer at the beginning. [G] -> [G]."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)
