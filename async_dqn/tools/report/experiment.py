"""A set of training runs that are to be compared: which, in what order, and where it was left."""

import contextlib
import functools
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from async_dqn.base.errors import UserError
from async_dqn.base.files import read_regular, write_atomically
from async_dqn.run.csv_log import last_rows
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress, count, format_seconds, progress_line
from async_dqn.settings.config import Config
from async_dqn.system import signals
from async_dqn.system.task import INTERRUPTED, Task, supervise

STANDARD = "standard"
_FILE = "compare.json"
_ENDED = ("finished", "solved")
_OF_A_TRIAL = ("seed", "num_workers")  # settings that are a trial's own, and part of its name


class Trial(NamedTuple):
    """One training run.

    Attributes:
      name: of its kind: standard, or async-2 for two workers.
      job: the command that trains it.
      config: its settings.
      path: its run directory.
    """

    name: str
    job: str
    config: Config
    path: Path

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.name}, seed {self.config.seed}"

    @property
    def run(self) -> RunDirectory:
        """Where it lies."""
        return RunDirectory(self.path)

    @property
    def is_over(self) -> bool:
        """Whether it has trained to its end, or failed in a way that going on would not mend."""
        return self.run.exit_reason() in _ENDED or self.run.has_failed()

    def is_done(self, games: int) -> bool:
        """Whether nothing is left to do for it: it has failed, or has played so many games with what it learned."""
        return self.run.has_failed() or (self.is_over and read_evaluation(self.run).get("games") == games)


def read_evaluation(run: RunDirectory) -> dict[str, Any]:
    """What evaluation.json holds; nothing where it is not of the run's newest state, or cannot be read."""
    with contextlib.suppress(Exception):  # there may be none yet, or one that holds anything
        found, summary = (json.loads(read_regular(path)) for path in (run.path / "evaluation.json", run.summary))
        if found["checkpoint_env_steps"] == summary["env_steps"]:
            return found
    return {}


def trials(config: Config, folder: Path, *, worker_counts: Sequence[int], num_seeds: int) -> list[Trial]:
    """Every kind with every seed: seed by seed, so that whatever slows the machine for an hour meets all kinds alike.

    Args:
      config: the settings that all share; its seed is the first one.
      worker_counts: of the clusters; 0 stands for the standard agent, in a single process.
      num_seeds: of each kind.
    """
    found = []
    for seed in range(config.seed, config.seed + num_seeds):
        for number in worker_counts:
            name = f"async-{number}" if number else STANDARD
            own = {"seed": seed, "num_workers": max(number, 1), "num_ps": config.num_ps if number else 1}
            path = folder / "runs" / f"{name}-seed-{seed}"
            settings = Config.from_dict(config.to_dict() | own)
            found.append(Trial(name, "local" if number else "baseline", settings, path))
    return found


def begin(folder: Path, config: Config, described: Mapping[str, Any], *, trains: bool = True) -> list[dict[str, Any]]:
    """Makes the folder of a comparison, or goes on with the one that lies there.

    Args:
      described: this call: its command, date and machine.
      trains: False for a call that finds every run done, which is not written down.

    Returns:
      The calls that it is made by, the first one first; of those with the same command only one.

    Raises:
      UserError: something else lies there, or a comparison of other settings.
    """
    path = folder / _FILE
    shared = {name: value for name, value in config.to_dict().items() if name not in _OF_A_TRIAL}
    try:
        if path.exists():
            known = json.loads(read_regular(path))
            _check_settings(folder, known.get("settings"), shared)
            calls = _calls(known)
            if trains and described.get("command") not in [call.get("command") for call in calls]:
                calls.append(dict(described))  # more seeds, or other clusters
                _write(path, shared, calls)
            return calls
        if folder.exists() and any(not path.name.startswith(f".{_FILE}.") for path in folder.iterdir()):
            raise UserError(f"--logdir={folder} holds something else (no {_FILE}); give another folder")
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, shared, [dict(described)])
        return [dict(described)]
    except OSError as error:
        raise UserError(f"--logdir={folder}: {error.strerror}; give another folder") from error
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} cannot be read; give another --logdir") from error


def _calls(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those that a file tells of; earlier versions kept the first one alone."""
    found = known.get("calls", [known.get("origin")])
    return [call for call in found if isinstance(call, dict)] if isinstance(found, list) else []


def _write(path: Path, settings: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> None:
    write_atomically(path, json.dumps({"settings": settings, "calls": calls}, indent=1).encode() + b"\n")


def _check_settings(folder: Path, known: Any, wanted: Mapping[str, Any]) -> None:
    if not isinstance(known, dict) or not known:
        raise ValueError("no settings")
    defaults = Config().to_dict()
    for name, value in wanted.items():
        before = known.get(name, defaults[name])  # a version may not have had it yet
        if before != value:
            raise UserError(
                f"--logdir={folder} holds a comparison with --{name}={before}, not {value}; "
                "go on with its own settings, or give another folder"
            )


def train(
    trial: Trial,
    show: Callable[[str], None],
    say: Callable[[str], None],
    should_stop: threading.Event,
    inherited: Sequence[int] = (),
) -> int:
    """Trains one to its end, from where it was left. Gives the exit code of the run.

    Args:
      show: takes the newest line on how it stands.
      say: takes a line on what went wrong.
      inherited: descriptors that the process keeps open.
    """
    flags = [f"--{name}={value}" for name, value in trial.config.to_dict().items()]
    flags += ["--resume"] if trial.run.config.exists() else []
    trial.path.parent.mkdir(parents=True, exist_ok=True)  # the run makes its own, which nobody else may read
    return supervise(_task(trial, trial.job, flags, say, inherited), should_stop, lambda: show(_standing(trial)))


def evaluate(trial: Trial, games: int, say: Callable[[str], None], should_stop: threading.Event) -> int:
    """Plays greedy games with what was trained. Gives the exit code."""
    return supervise(_task(trial, "evaluate", [f"--games={games}"], say), should_stop)


def _task(
    trial: Trial, job: str, flags: Sequence[str], say: Callable[[str], None], inherited: Sequence[int] = ()
) -> Task:
    command = [sys.executable, "-m", "async_dqn", job, *flags, f"--logdir={trial.path}"]
    log = trial.path.with_name(f"{trial.path.name}.log")
    return Task(
        f"{trial.title}: {job}",
        lambda restarts: command,
        max_restarts=0,
        lease=math.inf,
        say=say,
        log=log,
        ask=signals.ASK,
        inherited=inherited,
    )


def _standing(trial: Trial) -> str:
    """How a run stands, from its files."""
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        row = {name: float(cell or "nan") for name, cell in last_rows(trial.run.metrics, 1)[-1].items()}
        return progress_line(row, trial.config.total_steps, trial.config.stop_at_return)
    return "starting"


def _show(progress: Progress, header: str, line: str) -> None:
    progress.show(f"{header} | {line}")


def run_all(
    plan: Sequence[Trial],
    progress: Progress,
    *,
    games: int,
    should_stop: threading.Event,
    inherited: Sequence[int] = (),
) -> Iterator[tuple[Trial, int]]:
    """Trains and evaluates what has not been, in order. Gives each of those with its exit code once it is over.

    Ends with the first that was interrupted.
    """
    took: list[float] = []
    for number, trial in enumerate(plan, 1):
        if trial.is_done(games):
            continue
        begun = time.monotonic()
        left = sum(not other.is_over for other in plan[number - 1 :])
        hint = f", about {format_seconds(left * sum(took) / len(took))} left in all" if took and left else ""
        header = f"{number} of {len(plan)}: {trial.title}{hint}"
        code = 0
        if not trial.is_over:
            progress.say(header)
            show = functools.partial(_show, progress, header)
            code = train(trial, show, progress.say, should_stop, inherited)
            took.append(time.monotonic() - begun)
        if code == 0 and not trial.run.has_failed():
            progress.show(f"{header} | greedy games")
            code = evaluate(trial, games, progress.say, should_stop)
        yield trial, code
        if code == INTERRUPTED:
            return


def check_counts(text: str) -> tuple[int, ...]:
    """Worker counts from "1,2,4", each once. Raises UserError."""
    numbers = _whole_numbers(text)
    if numbers is None or not all(1 <= number <= 512 for number in numbers):
        raise UserError(f"--worker_counts={text}: must be numbers of workers from 1 to 512, such as 2 or 1,2,4")
    return tuple(dict.fromkeys(numbers))


def _whole_numbers(text: str) -> Iterable[int] | None:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        return None


def summary_line(plan: Sequence[Trial]) -> str:
    """What will be done, in a line."""
    over = sum(trial.is_over for trial in plan)
    return f"{count(len(plan), 'run')}, {over} of them done" if over else count(len(plan), "run")
