"""`async-dqn status`: where runs stand, from their files alone, and so from any host that sees the folder."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from async_dqn.base.errors import UserError
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import format_seconds, progress_line
from async_dqn.run.worker_table import Worker, read_worker, worker_table
from async_dqn.tools.report.runs import Run, read_runs

_SILENT = 10.0  # seconds past the log period after which a process that should write has fallen silent
_COPIED = 5.0  # seconds that the files of a run may be apart when someone has copied them
_PROGRESS = ("env_steps", "steps_per_second", "updates_per_second", "episodes", "epsilon", "wall_seconds")
_RATES = ("steps_per_second", "updates_per_second")  # in summary.json: of all of its time
_MAYBE = ("mean_return_100", "staleness_mean")  # empty before the first game and the first update


def run_status(paths: Sequence[str], now: Callable[[], float] = time.time) -> int:
    """Prints where the runs in these folders stand. Gives the exit code.

    Args:
      now: seconds since the epoch.

    Raises:
      UserError: there is no run in one of them.
    """
    if not paths:
        raise UserError("status needs run directories: async-dqn status RUN [RUN ...]")
    print("\n\n".join("\n".join(describe(run, now())) for run in read_runs(paths)))
    return 0


def describe(run: Run, now: float) -> Iterator[str]:
    """What there is to say of a run, line by line."""
    silence = _silence(RunDirectory(run.path).metrics, run, now)
    yield f"{run.path}: {run.settings.get('env', '?')}, {run.kind}"
    yield _state(run, silence)
    if set(_PROGRESS) <= run.metrics.keys() and len(run.metrics["env_steps"]):
        row = {name: float(run.metrics[name][-1]) for name in _PROGRESS}
        row |= {name: float(run.metrics[name][-1]) if name in run.metrics else math.nan for name in _MAYBE}
        has_ended = _has_ended(run)
        if has_ended:  # what its last seconds were like says little of it
            row |= {name: float(value) for name in _RATES if isinstance(value := run.summary.get(name), int | float)}
        if all(map(math.isfinite, (row[name] for name in _PROGRESS))):
            yield progress_line(row, _budget(run), _goal(run), has_ended=has_ended)
    found = [(index, worker) for index in range(_num_workers(run)) if (worker := read_worker(run.path, index))]
    if found:
        if _has_ended(run):
            found = [(index, dataclasses.replace(worker, steps_per_second=math.nan)) for index, worker in found]
        yield from worker_table([(f"worker {i}", _state_of(run, worker, i, now), worker) for i, worker in found])


def _state(run: Run, silence: float) -> str:
    if _has_ended(run):
        return f"ended: {run.summary['exit_reason']}"
    if not math.isfinite(silence):
        return "starting: nothing is written yet"
    return (
        f"silent for {format_seconds(silence)}: it has ended without a word, or stands still" if silence else "running"
    )


def _has_ended(run: Run) -> bool:
    reason = run.summary.get("exit_reason")
    return isinstance(reason, str) and reason != "running" and not _is_resumed(RunDirectory(run.path))


def _is_resumed(run: RunDirectory) -> bool:
    """Whether its summary is of an earlier time: a run that goes on logs long before it saves and writes a new one."""
    try:
        return run.metrics.stat().st_mtime > run.summary.stat().st_mtime + _COPIED
    except OSError:
        return False


def _silence(path: Path, run: Run, now: float) -> float:
    """Seconds for which nothing was written that should have been; 0: it writes; inf: it never has."""
    try:
        age = max(0.0, now - path.stat().st_mtime)
    except OSError:
        return math.inf
    period = run.settings.get("log_period", 0.0)
    return age if age > (period if isinstance(period, int | float) else 0.0) + _SILENT else 0.0


def _goal(run: Run) -> float:
    goal = run.settings.get("stop_at_return")
    return float(goal) if isinstance(goal, int | float) and abs(goal) < 1e9 else math.inf


def _budget(run: Run) -> int:
    total = run.settings.get("total_steps")
    return total if isinstance(total, int) and total > 0 else max(1, int(run.metrics["env_steps"][-1]))


def _num_workers(run: Run) -> int:
    number = run.settings.get("num_workers")
    return number if isinstance(number, int) else 0


def _state_of(run: Run, worker: Worker, index: int, now: float) -> str:
    """What there is to say of one worker, without asking its host."""
    if not _has_ended(run):
        silence = _silence(worker.path, run, now)
        return f"silent for {format_seconds(silence)}" if silence else "running"
    workers = run.summary.get("workers")
    known = workers[index] if isinstance(workers, list) and index < len(workers) else {}
    return str(known.get("state", "?")) if isinstance(known, dict) else "?"
