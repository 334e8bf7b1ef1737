"""`async-dqn status`: where runs stand, from their files alone, and so from any host that sees the folder."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from async_dqn.agents.goals import steps_to_goal
from async_dqn.agents.table import TABLE, config_from_dict
from async_dqn.base.errors import UserError
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import format_seconds, progress_line
from async_dqn.run.worker_table import read_process, worker_table
from async_dqn.tools.report.runs import Run, finite, read_runs

_SILENT = 10.0  # seconds past the log period after which a process that should write has fallen silent
_COPIED = 5.0  # seconds that the files of a run may be apart when someone has copied them
_NEEDED = ("env_steps", "steps_per_second", "updates_per_second", "episodes", "wall_seconds")


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
    has_ended = run.exit_reason != "running" and not _is_resumed(run)
    yield f"{run.path}: {run.settings.get('agent', '?')} on {run.settings.get('env', '?')}, {run.kind}"
    state = _state(RunDirectory(run.path).metrics, run, now)
    yield f"ended: {run.exit_reason}" if has_ended else state
    row = {name: float(column[-1]) for name, column in run.metrics.items() if len(column)}
    if has_ended:  # what its last seconds were like says little of it
        known = (*_NEEDED, "mean_return_100")
        row |= {name: value for name in known if not math.isnan(value := finite(run.summary.get(name)))}
    if all(math.isfinite(row.get(name, math.nan)) for name in _NEEDED):
        total = finite(run.settings.get("total_steps"))
        budget = int(total) if total > 0 else max(1, int(row["env_steps"]))
        goal = math.inf if math.isnan(run.goal) else run.goal
        needed = _needed(run.settings)
        yield progress_line({"mean_return_100": math.nan} | row, budget, goal, needed, has_ended=has_ended)
    table = []
    for index in range(run.num_workers):
        file = RunDirectory(run.path).worker(index) / "metrics.csv"
        if worker := read_process(file):
            state = _state(file, run, now)
            if has_ended:
                state, worker["steps_per_second"] = _end_of(run, index), math.nan
            table.append((f"worker {index}", state, worker))
    yield from worker_table(table) if table else []


def _needed(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """What past runs needed, as far as the settings are known here: no module of a user's own is imported for it."""
    try:
        return steps_to_goal(config_from_dict(settings)) if settings.get("agent") in TABLE else None
    except UserError:  # of another version
        return None


def _is_resumed(run: Run) -> bool:
    """Whether its summary is of an earlier time: a run that goes on logs long before it saves and writes a new one."""
    folder = RunDirectory(run.path)
    try:
        return folder.metrics.stat().st_mtime > folder.summary.stat().st_mtime + _COPIED
    except OSError:
        return False


def _state(path: Path, run: Run, now: float) -> str:
    """Whether what should write to a file does."""
    try:
        age = max(0.0, now - path.stat().st_mtime)
    except OSError:
        return "starting: nothing is written yet"
    period = finite(run.settings.get("log_period"))
    is_silent = age > (0.0 if math.isnan(period) else period) + _SILENT
    return f"silent for {format_seconds(age)}" if is_silent else "running"


def _end_of(run: Run, index: int) -> str:
    """How a worker has ended, by the summary."""
    workers = run.summary.get("workers")
    known = workers[index] if isinstance(workers, list) and index < len(workers) else None
    return str(known.get("state", "?")) if isinstance(known, dict) else "?"
