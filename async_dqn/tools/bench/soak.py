"""Whether a cluster that runs for long goes on as it began: memory, descriptors, threads and time per step."""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from async_dqn.base.errors import RunError
from async_dqn.run.csv_log import CsvWriter, number_rows
from async_dqn.settings.config import Config
from async_dqn.system.task import Task
from async_dqn.tools.bench.processes import by_role, end, running, wait_for
from async_dqn.tools.bench.programs import command_line
from async_dqn.tools.bench.work import Plan, config

_START_DEADLINE = 600.0  # seconds until it writes metrics
_FULL = 1.1  # times the capacity of replay: after so many steps every worker's is full
_HOUR = 3600.0

# What should not grow: its unit, the growth in an hour that counts as none, and the growth over the whole time that
# says nothing, as an allocator takes minutes to settle.
_QUANTITIES = {
    "resident MB": ("MB/hour", 20.0, 40.0),
    "descriptors": ("descriptors/hour", 1.0, 2.0),
    "threads": ("threads/hour", 1.0, 2.0),
    "ms/agent step": ("%/hour", 2.0, 3.0),
}


class Sample(NamedTuple):
    """One measurement, a row of soak.csv; `seconds` count from the first row of the run's metrics."""

    seconds: float
    process: str
    what: str
    value: float


def run(
    plan: Plan,
    minutes: float,
    output: Path,
    say: Callable[[str], None],
    command: Callable[[str, Config, Path], list[str]] = command_line,
) -> dict[str, Any]:
    """Runs the plan's cluster for so long. Gives `report`; writes soak.csv and the run directory `run` to `output`.

    Args:
      say: takes a line on how far it is.
      command: the program's command line, from "local", settings and run directory.

    Raises:
      RunError: a process ended by itself, the run did not end well, or it was too short to be judged.
    """
    settings, samples = config(plan), []
    program = [*command("local", settings, output / "run"), "--max_restarts=0"]  # a process that ends is a failure
    with (
        contextlib.closing(CsvWriter(output / "soak.csv", Sample._fields, say)) as writer,
        running(program, output / "soak.log") as task,
    ):
        for sample in _watch(task, output / "run" / "metrics.csv", 60 * minutes, say):
            writer.write(sample._asdict())
            samples.append(sample)
        end(task)
    return report(samples, getattr(settings, "replay_capacity", 0))


def _watch(task: Task, metrics: Path, seconds: float, say: Callable[[str], None]) -> Iterator[Sample]:
    """Samples of all processes, for so long from the first row of metrics on."""
    period = min(max(seconds / 150, 0.25), 5.0)
    before = wait_for(task, lambda: number_rows(metrics), _START_DEADLINE, "it writes metrics")[-1]
    begin, known = time.monotonic(), set[str]()
    while (now := time.monotonic() - begin) < seconds:
        say(f"soak: {now / 60:.0f} of {seconds / 60:g} minutes")
        row = wait_for(task, lambda: number_rows(metrics), 0.0, "")[-1]
        processes = by_role(task)
        known |= {name for name in processes if name.startswith(("worker", "ps"))}
        if gone := known - processes.keys():
            raise RunError(f"after {now:.0f} s {', '.join(sorted(gone))} had ended by itself")
        for name, process in processes.items():
            with contextlib.suppress(psutil.Error):  # it has just ended
                yield Sample(now, name, "resident MB", process.memory_info().rss / 1e6)
                yield Sample(now, name, "descriptors", process.num_fds())
                yield Sample(now, name, "threads", process.num_threads())
        if (steps := row["env_steps"] - before["env_steps"]) > 0:
            yield Sample(now, "run", "env_steps", row["env_steps"])
            yield Sample(now, "run", "ms/agent step", 1e3 * (row["wall_seconds"] - before["wall_seconds"]) / steps)
            before = row
        time.sleep(max(0.0, begin + now + period - time.monotonic()))
        task.poll()


def report(samples: Sequence[Sample], replay_capacity: int) -> dict[str, Any]:
    """What has grown since replay was full: plain values, and under "growth" all that is known of each quantity.

    Raises RunError where there is too little to tell.
    """
    since = judged_from(samples, replay_capacity)
    series: dict[tuple[str, str], list[Sample]] = {}
    for one in samples:
        if one.seconds >= since:
            series.setdefault((one.process, one.what), []).append(one)
    found = [growth(own) for what in _QUANTITIES for (_, name), own in series.items() if name == what]
    verdicts = {one["verdict"] for one in found}
    return {
        "minutes": samples[-1].seconds / 60,
        "judged from minute": since / 60,
        "verdict": next(word for word in ("grows", "unclear", "steady") if word in verdicts),
        **{"{process}: {what}".format(**one): "{value:+.3g} {unit}, {verdict}".format(**one) for one in found},
        "growth": found,
    }


def judged_from(samples: Sequence[Sample], replay_capacity: int) -> float:
    """Seconds from which on nothing has a reason to grow: replay is full, and half of the time is over.

    Raises RunError where less than a quarter of the time is left then.
    """
    total = samples[-1].seconds if samples else 0.0
    full = (one.seconds for one in samples if one.what == "env_steps" and one.value >= _FULL * replay_capacity)
    full_at = next(full, math.inf)
    if full_at > 0.75 * total:
        when = "not full in the end" if full_at > total else f"full after {full_at / 60:.1f}"
        raise RunError(f"too short to be judged: replay was {when} of {total / 60:.1f} minutes")
    return max(full_at, total / 2)


def growth(samples: Sequence[Sample]) -> dict[str, Any]:
    """How one quantity of one process has grown in an hour, with its limits and its verdict.

    It grows where even the lower limit is above what counts as none. Raises RunError for too few samples.
    """
    process, what = samples[0].process, samples[0].what
    unit, bound, noise = _QUANTITIES[what]
    try:
        slopes = slope([one.seconds / _HOUR for one in samples], [one.value for one in samples])
    except ValueError as error:
        raise RunError(f"{process}, {what}: {error}") from error
    scale = 100 / statistics.median(one.value for one in samples) if unit.startswith("%") else 1.0
    value, low, high = (scale * one for one in slopes)
    hours = (samples[-1].seconds - samples[0].seconds) / _HOUR
    verdict = "grows" if low > max(bound, noise / hours) else "steady" if high <= bound else "unclear"
    found = {"process": process, "what": what, "unit": unit, "bound": bound, "noise": noise}
    return found | {"value": value, "low": low, "high": high, "verdict": verdict}


def slope(times: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """Change in a unit of time, and the limits between which it lies in 95 of 100 cases.

    The median of the slopes between all pairs of points (Theil 1950), with limits by their ranks (Sen 1968). Up to 29 %
    of the points may be anything. Neighbouring points are first joined to the medians of up to 30 stretches, as their
    errors are not independent of each other. Raises ValueError for fewer than 8 points.
    """
    if len(times) < 8:
        raise ValueError(f"{len(times)} points are too few for a slope: at least 8 are needed")
    n = min(30, len(times))
    x, y = (np.array([np.median(block) for block in np.array_split(series, n)]) for series in (times, values))
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first]))
    spread = 1.96 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)  # 95 % of a normal distribution
    low = max(0, math.floor((len(slopes) - spread) / 2) - 1)  # ranks count from 1
    high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    return float(np.median(slopes)), float(slopes[low]), float(slopes[high])
