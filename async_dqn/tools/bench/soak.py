"""Whether a cluster that runs for long goes on as it began: memory, descriptors, threads and time per step."""

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from async_dqn.base.errors import RunError, UserError
from async_dqn.run.csv_log import CsvWriter, last_rows
from async_dqn.run.directory import RunDirectory
from async_dqn.settings.config import Config
from async_dqn.system.task import Task
from async_dqn.tools.bench import trend
from async_dqn.tools.bench.processes import end, family, role, running
from async_dqn.tools.bench.work import Plan, config

RUN = "run"  # the name of the whole, beside those of its processes
_NUM_SAMPLES = 150  # of a short run; a long one has more
_SHORTEST_PERIOD, _LONGEST_PERIOD = 0.25, 5.0  # seconds between two samples
_START_DEADLINE = 600.0  # seconds until it writes metrics
_FULL = 1.1  # times the capacity of replay: so many steps fill every worker's
_HOUR = 3600.0


class Sample(NamedTuple):
    """One measurement; a row of soak.csv."""

    seconds: float  # since the first row of the run's metrics
    process: str
    what: str
    value: float


class Quantity(NamedTuple):
    """Something that should not grow.

    Attributes:
      what: as in samples.
      unit: of its growth.
      bound: growth in an hour that counts as none.
      noise: growth over the whole time that says nothing, as an allocator takes minutes to settle: a soak must be long
        enough for more.
      is_relative: growth is told in percent.
    """

    what: str
    unit: str
    bound: float
    noise: float
    is_relative: bool = False


QUANTITIES = (
    Quantity("resident MB", "MB/hour", bound=20.0, noise=40.0),
    Quantity("descriptors", "descriptors/hour", bound=1.0, noise=2.0),
    Quantity("threads", "threads/hour", bound=1.0, noise=2.0),
    Quantity("ms/agent step", "%/hour", bound=2.0, noise=3.0, is_relative=True),
)


class Growth(NamedTuple):
    """How one quantity of one process has grown, in its unit."""

    process: str
    quantity: Quantity
    slope: trend.Slope
    hours: float  # for which it was watched

    @property
    def verdict(self) -> str:
        """Whether it grows, is steady, or was watched for too short a time to tell."""
        return trend.verdict(self.slope, self.quantity.bound, self.quantity.noise / self.hours)


def run(
    plan: Plan, minutes: float, output: Path, program: Callable[[Config, Path], Sequence[str]] | None = None
) -> dict[str, Any]:
    """Runs `local` on the plan's work for so long after it has started up, and tells what of it has grown.

    Writes soak.csv and the run directory `run` to `output`.

    Args:
      program: the command line in place of `local`'s, from settings and run directory.

    Returns:
      Plain values: verdicts and slopes; and under "growth" all that is known of each.

    Raises:
      UserError: `output` holds a soak already.
      RunError: the run, or a process of it, ended by itself, did not end well, or was too short to be judged.
    """
    settings = config(plan)
    directory = RunDirectory(output / "run")
    if (output / "soak.csv").exists() or directory.path.exists():
        raise UserError(f"--output={output} holds a soak already; give another folder")
    output.mkdir(parents=True, exist_ok=True)  # the run makes its own folder, which nobody else may read
    command = (program or _local)(settings, directory.path)
    samples = []
    with (
        contextlib.closing(CsvWriter(output / "soak.csv", Sample._fields, plan.say)) as writer,
        running(command, output / "soak.log") as task,
    ):
        for sample in _watch(task, directory, 60 * minutes, plan.say):
            writer.write(sample._asdict())
            samples.append(sample)
        plan.say("ending it")
        end(task)
    return report(samples, settings.replay_capacity)


def _local(settings: Config, path: Path) -> Sequence[str]:
    flags = [f"--{name}={value}" for name, value in settings.to_dict().items()]
    # A process that ends is a failure here, so none is started again.
    return [sys.executable, "-m", "async_dqn", "local", *flags, "--max_restarts=0", f"--logdir={path}"]


def _end(task: Task) -> str:
    how = "did not end" if task.is_running else f"ended with exit code {task.code}"
    return f"{how}: {task.last_words()}"


def _watch(task: Task, directory: RunDirectory, seconds: float, say: Callable[[str], None]) -> Iterator[Sample]:
    """Samples of all processes, for so long from the first row of metrics on."""
    period = min(max(seconds / _NUM_SAMPLES, _SHORTEST_PERIOD), _LONGEST_PERIOD)
    say("starting up")
    _wait_for_metrics(task, directory)
    begin = time.monotonic()
    said = 0
    known: set[str] = set()
    before = None
    while (now := time.monotonic() - begin) < seconds:
        task.poll()
        if task.pid is None:
            raise RunError(f"after {now:.0f} s it {_end(task)}")
        processes = _by_role(family(task.pid))
        yield from (Sample(now, *measured) for measured in _sample(processes))
        known |= {name for name in processes if name.startswith(("worker", "ps"))}
        if missing := known - processes.keys():
            raise RunError(f"after {now:.0f} s {', '.join(sorted(missing))} had ended by itself")
        if (row := last_row(directory.metrics)) is not None and row != before:
            yield Sample(now, RUN, "env_steps", row["env_steps"])
            if before is not None and row["env_steps"] > before["env_steps"]:
                milliseconds = 1e3 * (row["wall_seconds"] - before["wall_seconds"])
                yield Sample(now, RUN, "ms/agent step", milliseconds / (row["env_steps"] - before["env_steps"]))
            before = row
        if now // 60 > said:
            said = int(now // 60)
            say(f"{said} of {seconds / 60:g} minutes")
        time.sleep(max(0.0, begin + now + period - time.monotonic()))


def _wait_for_metrics(task: Task, directory: RunDirectory) -> None:
    end = time.monotonic() + _START_DEADLINE
    while last_row(directory.metrics) is None:
        task.poll()
        if task.pid is None:
            raise RunError(f"it {_end(task)}")
        if time.monotonic() > end:
            raise RunError(f"no metrics within {_START_DEADLINE:.0f} s of its start")
        time.sleep(_SHORTEST_PERIOD)


def _by_role(processes: Iterable[psutil.Process]) -> dict[str, psutil.Process]:
    found = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):  # one that has just ended
            found[role(process.cmdline())] = process
    return found


def _sample(processes: Mapping[str, psutil.Process]) -> Iterator[tuple[str, str, float]]:
    for name, process in processes.items():
        with contextlib.suppress(psutil.Error):
            yield name, "resident MB", process.memory_info().rss / 1e6
            yield name, "descriptors", process.num_fds()
            yield name, "threads", process.num_threads()


def last_row(path: Path) -> dict[str, float] | None:
    """Time and steps in the last whole row of a run's metrics; None where there is none yet."""
    rows = last_rows(path, 1)
    return {name: float(rows[0][name]) for name in ("wall_seconds", "env_steps")} if rows else None


def report(samples: Sequence[Sample], replay_capacity: int) -> dict[str, Any]:
    """What has grown since replay was full. Raises RunError where there is too little to tell."""
    since = judged_from(samples, replay_capacity)
    found = growth(samples, since)
    verdicts = {one.verdict for one in found}
    return {
        "minutes": samples[-1].seconds / 60,
        "judged from minute": since / 60,
        "verdict": next(word for word in ("grows", "unclear", "steady") if word in verdicts),
        **{
            f"{one.process}: {one.quantity.what}": f"{one.slope.value:+.3g} {one.quantity.unit}, {one.verdict}"
            for one in found
        },
        "growth": [
            {
                "process": one.process,
                **one.quantity._asdict(),
                **one.slope._asdict(),
                "verdict": one.verdict,
            }
            for one in found
        ],
    }


def judged_from(samples: Sequence[Sample], replay_capacity: int) -> float:
    """Seconds from which on nothing has a reason to grow: replay is full, and half of the time is over.

    Raises:
      RunError: less than a quarter of the time is left then.
    """
    total = samples[-1].seconds if samples else 0.0
    full = (one.seconds for one in samples if one.what == "env_steps" and one.value >= _FULL * replay_capacity)
    full_at = next(full, float("inf"))
    if full_at > 0.75 * total:
        when = "not full in the end" if full_at > total else f"full after {full_at / 60:.1f}"
        raise RunError(f"too short to be judged: replay was {when} of {total / 60:.1f} minutes")
    return max(full_at, total / 2)


def growth(samples: Sequence[Sample], since: float) -> list[Growth]:
    """The growth of each quantity of each process from `since` on. Raises RunError where there is too little."""
    found = []
    for quantity in QUANTITIES:
        names = dict.fromkeys(one.process for one in samples if one.what == quantity.what)
        for name in names:
            own = [one for one in samples if (one.process, one.what) == (name, quantity.what) and one.seconds >= since]
            try:
                slope = trend.slope([one.seconds / _HOUR for one in own], [one.value for one in own])
            except ValueError as error:
                raise RunError(f"{name}, {quantity.what}: {error}") from error
            if quantity.is_relative:
                slope = trend.Slope(*(100 * part / _middle(own) for part in slope))
            found.append(Growth(name, quantity, slope, hours=(own[-1].seconds - own[0].seconds) / _HOUR))
    return found


def _middle(samples: Sequence[Sample]) -> float:
    return statistics.median(one.value for one in samples)
