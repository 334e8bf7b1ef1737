"""Whole programs, through the command line that users have: how fast they learn, and what they take of the machine."""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from async_dqn.base.errors import RunError
from async_dqn.run.csv_log import number_rows
from async_dqn.settings.config import Config
from async_dqn.system.program import own_command
from async_dqn.tools.bench.processes import by_role, end, running, wait_for

LOG = "output.log"  # of a program, in its folder
_DEADLINE = 600.0  # seconds until the window opens, and for a program that ends by itself
_MINIBATCHES_BEFORE = 200  # the window opens so many minibatches and
_SECONDS_BEFORE = 3.0  # so many seconds later: compilation, first round trips and empty caches are over then
_PATIENCE = 60.0  # seconds past the window's length until it closes

Row = dict[str, float]


class Program(NamedTuple):
    """A program that learns until a signal ends it, with exit code 130; each function takes a folder of its own.

    Attributes:
      command: its command line; its output goes to LOG in the folder.
      rows: what it has done: wall_seconds, env_steps, minibatches, updates, perhaps staleness_mean.
      workers: the rows of each worker's own metrics, by its name.
    """

    command: Callable[[Path], Sequence[str]]
    rows: Callable[[Path], list[Row]]
    workers: Callable[[Path], Mapping[str, list[Row]]] = lambda folder: {}


class Sample(NamedTuple):
    """What a program takes at one moment, by process: CPU seconds so far, megabytes, a worker's rows of metrics."""

    time: float  # seconds on the monotonic clock
    pids: Mapping[str, int]
    cpu: Mapping[str, float]
    resident_mb: Mapping[str, float]
    workers: Mapping[str, list[Row]]


def command_line(job: str, config: Config, logdir: Path) -> list[str]:
    """The command line of one of our programs."""
    flags = [f"--{name}={value}" for name, value in config.to_dict().items()]
    return own_command(job, *flags, f"--logdir={logdir}")


def ours(job: str, config: Config) -> Program:
    """One of our programs, `baseline` or `local`."""
    names = ["baseline"] if job == "baseline" else [f"worker {index}" for index in range(config.num_workers)]
    return Program(
        lambda folder: command_line(job, config, folder / "run"),
        lambda folder: number_rows(folder / "run" / "metrics.csv"),
        lambda folder: {name: number_rows(folder / f"run/worker-{i}/metrics.csv") for i, name in enumerate(names)},
    )


def measure(program: Program, seconds: float) -> dict[str, float]:
    """Starts a program, measures it for `seconds` while it learns, and ends it.

    Raises RunError where the program or a process of it ended by itself, did not learn, or did not end well.
    """
    with tempfile.TemporaryDirectory(prefix="async-dqn-bench-", ignore_cleanup_errors=True) as name:
        folder, begin = Path(name), time.monotonic()
        with running(program.command(folder), folder / LOG) as task:

            def rows_from(name: str, value: float, deadline: float) -> list[Row]:
                def find() -> list[Row]:
                    return [row for row in program.rows(folder) if row[name] >= value]

                return wait_for(task, find, deadline, f"{name} is {value:g}")

            def sample() -> Sample:
                try:
                    processes = by_role(task)
                    pids = {who: process.pid for who, process in processes.items()}
                    cpu = {who: sum(process.cpu_times()[:2]) for who, process in processes.items()}
                    resident_mb = {who: process.memory_info().rss / 1e6 for who, process in processes.items()}
                except psutil.Error as error:
                    raise RunError(f"a process of it ended within the window: {error}") from error
                return Sample(time.monotonic(), pids, cpu, resident_mb, program.workers(folder))

            rows_from("updates", 1, _DEADLINE)
            start_up = time.monotonic() - begin
            learning = rows_from("minibatches", _MINIBATCHES_BEFORE, _DEADLINE)[0]
            first = rows_from("wall_seconds", learning["wall_seconds"] + _SECONDS_BEFORE, _DEADLINE)[0]
            before = sample()
            last = rows_from("wall_seconds", first["wall_seconds"] + seconds, seconds + _PATIENCE)[0]
            after = sample()
            rows = [row for row in program.rows(folder) if first["env_steps"] <= row["env_steps"] <= last["env_steps"]]
            return values(rows, before, after) | {"start-up seconds": start_up, "seconds to end": end(task)}


def values(rows: Sequence[Row], before: Sample, after: Sample) -> dict[str, float]:
    """What was measured in a window: "metric" of the whole program, "metric: process" of each of its processes.

    CPU time comes from other moments than the rows, so rates are divided, not amounts.

    Args:
      rows: those of the window.
      before, after: what the program took at its ends.

    Raises:
      RunError: a process has gone meanwhile, even where another has taken its place.
    """
    if gone := sorted(who for who, pid in before.pids.items() if after.pids.get(who) != pid):
        raise RunError(f"{', '.join(gone)} ended within the window")
    wall = rows[-1]["wall_seconds"] - rows[0]["wall_seconds"]
    columns = {"agent steps/s": "env_steps", "minibatches/s": "minibatches", "updates/s": "updates"}
    rates = {metric: (rows[-1][column] - rows[0][column]) / wall for metric, column in columns.items()}
    staleness = [one for row in rows[1:] if math.isfinite(one := row.get("staleness_mean", math.nan))]
    cores = {who: (after.cpu[who] - before.cpu[who]) / (after.time - before.time) for who in before.cpu}
    costs = {who: 1_000 * used / rates["agent steps/s"] for who, used in cores.items()}
    found = {
        **rates,
        **({"staleness": statistics.fmean(staleness)} if staleness else {}),
        "cores used": sum(cores.values()),
        "CPU s/1000 steps": sum(costs.values()),
        "resident MB": sum(after.resident_mb.values()),
        **{f"CPU s/1000 steps: {who}": cost for who, cost in costs.items()},
        **{f"resident MB: {who}": after.resident_mb[who] for who in cores},
    }
    for who, earlier in before.workers.items():
        if earlier:
            found |= {f"{part} %: {who}": share for part, share in cycle(earlier[-1], after.workers[who][-1]).items()}
    return found


def cycle(before: Row, after: Row) -> dict[str, float]:
    """Where a worker's time went between two rows of its own metrics, in percent; empty where they are the same row."""
    wall = after["wall_seconds"] - before["wall_seconds"]
    parts = [name for name in after if name.startswith("seconds_") and wall > 0]
    return {name.removeprefix("seconds_"): 100 * (after[name] - before[name]) / wall for name in parts}
