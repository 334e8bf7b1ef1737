"""`async-dqn compare`: trains the baseline and clusters on the same work, in turn, and reports on them."""

import contextlib
import dataclasses
import math
import re
import shlex
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from async_dqn.base.errors import UserError, one_line
from async_dqn.base.files import json_object, write_json
from async_dqn.run.csv_log import number_rows
from async_dqn.run.directory import RunDirectory, is_over
from async_dqn.run.progress import Progress, count, format_seconds, progress_of
from async_dqn.settings.config import Config
from async_dqn.system import signals
from async_dqn.system.program import own_command
from async_dqn.system.task import INTERRUPTED, Task, supervise
from async_dqn.tools import machine
from async_dqn.tools.report import findings
from async_dqn.tools.report.runs import read_evaluation, read_run
from async_dqn.tools.report.studies import Kind

_FILE = "compare.json"


class Trial(NamedTuple):
    """One training run: its name, the command that trains it (baseline or local), settings, and where it is written."""

    name: str
    job: str
    config: Config
    run: RunDirectory
    label: str = ""  # of its kind in a study

    @property
    def flags(self) -> list[str]:
        """Of the command that trains it, or goes on with it."""
        values, resume = self.config.to_dict(), []
        if self.run.config.exists():
            resume = ["--resume"]
            if values["compute_dtype"] == "auto":  # what that was where it began
                values["compute_dtype"] = self.run.read_config().compute_dtype
        return [f"--{name}={value}" for name, value in values.items()] + resume

    @property
    def is_over(self) -> bool:
        """Whether it has trained to its end, or failed in a way that going on would not mend."""
        return is_over(self.run.exit_reason())

    def is_done(self, games: int) -> bool:
        """Whether nothing is left to do for it: it has failed, or has played so many games with what it learned."""
        has_played = not games or read_evaluation(self.run.path).get("games") == games
        return self.run.has_failed() or (self.is_over and has_played)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One call of the command.

    Attributes:
      config: the settings that all runs share, of any agent; its seed is the first one.
      folder: where runs, pictures and report lie. A comparison that it holds already is gone on with.
      kinds: of the runs, such as the baseline and each cluster.
      num_seeds: runs of each kind.
      games: greedy games that every trained agent plays; those of a study play none.
      study: the name of the study that the kinds are of.
      by_workers: settings of which each number of workers has its own.
      verbose: the runs' logs have TensorFlow's own messages.
    """

    config: Config
    folder: Path
    kinds: Sequence[Kind]
    num_seeds: int
    games: int
    study: str = ""
    by_workers: Collection[str] = ()
    verbose: bool = False

    def trials(self) -> list[Trial]:
        """The runs seed by seed, so that whatever slows the machine for an hour meets all kinds."""
        seeds = range(self.config.seed, self.config.seed + self.num_seeds)
        return [self._trial(kind, seed) for seed in seeds for kind in self.kinds]

    def _trial(self, kind: Kind, seed: int) -> Trial:
        name = f"{re.sub('[^a-z0-9_]+', '-', kind.name)}-seed-{seed}"
        run, label = RunDirectory(self.folder / "runs" / name), kind.name if self.study else ""
        return Trial(name, kind.job, dataclasses.replace(kind.config, seed=seed), run, label)


def with_clusters(alone: Config, clusters: Mapping[int, Config]) -> list[Kind]:
    """The kinds of run of one agent: the baseline, and a cluster for each number of workers, with its settings."""
    baseline = Kind("baseline", "baseline", alone)
    return [baseline, *(Kind(f"async-{number}", "local", config) for number, config in clusters.items())]


def check_counts(text: str) -> tuple[int, ...]:
    """Worker counts from "1,2,4", each once. Raises UserError."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(1 <= number <= 512 for number in numbers):
        raise UserError(f"--worker_counts={text}: must be numbers of workers from 1 to 512, such as 2 or 1,2,4")
    return tuple(dict.fromkeys(numbers))


def run_compare(comparison: Comparison, should_stop: threading.Event, progress: Progress) -> int:
    """Trains what is left, and writes the report after every run. Gives the exit code: 0, 1 if any failed, or 130.

    Raises UserError where the folder cannot be used, before anything starts.
    """
    plan, folder, games = comparison.trials(), comparison.folder, comparison.games
    has_work = not all(trial.is_done(games) for trial in plan)
    described = machine.describe() if has_work else None
    calls = begin(folder, comparison.config, described, comparison.study, comparison.by_workers)
    codes, took, verbose = list[int](), list[float](), ["--verbose"] * comparison.verbose
    # Two commands at a time would slow each other.
    with RunDirectory(folder).claimed(progress.say, should_stop=should_stop.is_set) as held:
        if should_stop.is_set():  # while it waited for the folder
            return INTERRUPTED
        over = sum(trial.is_over for trial in plan)
        progress.say(f"{count(len(plan), 'run')}, {over} of them done; report in {folder / 'report.html'}")
        _report(comparison, plan, calls, progress)
        for number, trial in enumerate(plan, 1):
            if trial.is_done(games):
                continue
            left, begun = sum(not other.is_over for other in plan[number - 1 :]), time.monotonic()
            hint = f", about {format_seconds(left * sum(took) / len(took))} left in all" if took and left else ""
            header, code = f"{number} of {len(plan)}: {trial.name}{hint}", 0
            progress.say(header)
            if not trial.is_over:
                flags = [*trial.flags, *verbose]
                code = execute(trial, trial.job, flags, header, progress, should_stop, held)
                took.append(time.monotonic() - begun)
            if games and code == 0 and not trial.run.has_failed():
                flags = [f"--games={games}", "--checkpoint=newest", *verbose]  # which all runs have, at the same budget
                code = execute(trial, "evaluate", flags, f"{header} | greedy games", progress, should_stop, held)
            _report(comparison, plan, calls, progress)
            if code == INTERRUPTED or (code and should_stop.is_set()):
                progress.say(
                    f"interrupted; the same command with --logdir={shlex.quote(str(folder))} goes on from here"
                )
                return INTERRUPTED
            codes.append(code)
            if code:
                progress.say(f"{trial.name}: exit code {code}, see {trial.run.path}.log")
    failed = [trial for trial in plan if trial.run.has_failed()]  # be it in an earlier call
    for trial in failed:
        progress.say(f"{trial.name} {trial.run.exit_reason()}; to train it anew, remove {trial.run.path}")
    return int(any(codes) or bool(failed))


def begin(
    folder: Path,
    config: Config,
    described: Mapping[str, Any] | None,
    study: str = "",
    by_workers: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Makes the folder of a comparison, or goes on with the one that lies there.

    Args:
      described: this call: its command, date and machine. None: it has nothing to do, and is not written down.
      by_workers: settings of which each number of workers has its own.

    Returns:
      The calls that it is made by, the first one first; of those that differ in nothing but the date only one.

    Raises:
      UserError: something else lies there, or a comparison of other settings.
    """
    path, defaults = folder / _FILE, type(config)().to_dict() | {"study": ""}
    own = {"seed", "num_workers", *by_workers}  # of single runs
    shared = {name: value for name, value in config.to_dict().items() if name not in own}
    shared["study"] = study
    calls = []
    try:
        if path.exists():
            known = json_object(path) or {}
            calls = known["calls"]
            for name, value in shared.items():
                before = known["settings"].get(name, defaults[name])  # an earlier version may not have had it
                if before != value:
                    raise UserError(
                        f"--logdir={folder} holds a comparison with --{name}={before}, not {value}; "
                        "go on with its own settings, or give another folder"
                    )
            left = set(known.get("by_workers", set(by_workers) - known["settings"].keys()))
            for name in sorted(left ^ set(by_workers)):
                before = "left to the preset" if name in left else f"given as {known['settings'].get(name)}"
                raise UserError(
                    f"--logdir={folder} holds a comparison with --{name} {before}; do the same, or give another folder"
                )
        elif folder.exists() and any(not path.name.startswith(f".{_FILE}.") for path in folder.iterdir()):
            raise UserError(f"--logdir={folder} holds something else (no {_FILE}); give another folder")
        if described is not None and not any(_is_same(described, call) for call in calls):
            calls.append(dict(described))
            folder.mkdir(parents=True, exist_ok=True)
            content = {"settings": shared, "by_workers": sorted(by_workers), "calls": calls}
            write_json(path, content, indent=1)
        return calls
    except OSError as error:
        raise UserError(f"--logdir={folder}: {error.strerror}; give another folder") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # of content that may be anything
        raise UserError(f"{path} cannot be read; give another --logdir") from error


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one[name] == other.get(name) for name in one if name != "date")


def execute(
    trial: Trial, job: str, flags: Sequence[str], header: str, progress: Progress, stop: threading.Event, held: Sequence
) -> int:  # fmt: skip
    """Runs a command on a run, its output in RUN.log, and shows how the run stands. Gives the command's exit code.

    Args:
      header: in front of what is shown.
      stop: set when the user interrupts.
      held: descriptors that the process keeps open.
    """
    path = trial.run.path
    path.parent.mkdir(parents=True, exist_ok=True)  # the run makes its own, which nobody else may read

    def look() -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):  # it has not written yet
            row = number_rows(trial.run.metrics, 1)[-1]
            progress.show(f"{header} | {progress_of(row, trial.config)}")

    task = Task(
        f"{trial.name}: {job}",
        lambda restarts: own_command(job, *flags, f"--logdir={path}"),
        max_restarts=0,
        lease=math.inf,
        say=progress.say,
        log=path.with_name(f"{path.name}.log"),
        ask=signals.ASK,
        inherited=held,
    )
    return supervise(task, stop, look)


def _report(comparison: Comparison, plan: Sequence[Trial], calls: Sequence[Mapping], progress: Progress) -> None:
    """Writes the report on what there is."""
    try:
        begun = [trial for trial in plan if trial.run.config.exists()]
        runs = [dataclasses.replace(read_run(trial.run.path), label=trial.label) for trial in begun]
        if runs:
            findings.write_report(runs, calls, comparison.folder, num_planned=len(plan), study=comparison.study)
    except Exception as error:  # whatever it is, the training is worth more
        progress.say(f"could not write the report: {one_line(error)}")
