"""Whole programs, through the command line that users have: how fast they learn, and what they take of the machine."""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from async_dqn.base.errors import RunError
from async_dqn.envs import registry
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import count
from async_dqn.settings.config import Config
from async_dqn.system.task import Task
from async_dqn.tools.bench.case import Case
from async_dqn.tools.bench.processes import end, family, role, running
from async_dqn.tools.bench.window import Row, Sample, read_rows, values, window
from async_dqn.tools.bench.work import Plan, config

SECTION = "programs"
LOG = "output.log"  # of a program, in its folder
_POLL_PERIOD = 0.2  # seconds
_START_DEADLINE = 600.0  # seconds until the window opens
_PATIENCE = 60.0  # seconds past the window's length until it closes


class Program(NamedTuple):
    """A program that learns until a signal ends it, with exit code 130.

    Attributes:
      command: its command line, from a folder of its own for whatever it writes; its output goes to LOG there.
      rows: what it has done, from that folder: wall_seconds, env_steps, minibatches, updates, perhaps staleness_mean.
      workers: the latest row of each worker's own metrics, by its name, from that folder.
      replay_mb: megabytes that a worker's replay takes, from such a row.
    """

    command: Callable[[Path], Sequence[str]]
    rows: Callable[[Path], list[Row]]
    workers: Callable[[Path], dict[str, Row]] = lambda folder: {}
    replay_mb: Callable[[Row], float] = lambda row: 0.0


def cases(plan: Plan) -> list[Case]:
    """The baseline and the cluster, on the same work."""
    settings = config(plan)
    cluster = f"local, {plan.num_ps} ps + {count(plan.num_workers, 'worker')}"
    workers = {f"worker {index}": index for index in range(plan.num_workers)}
    programs = {
        "baseline": _ours(settings, "baseline", {"baseline": 0}),
        cluster: _ours(settings, "local", workers, "--private_network=auto"),
    }
    return [case(name, program, plan) for name, program in programs.items()]


def case(name: str, program: Program, plan: Plan) -> Case:
    """A program as a case."""
    return Case(SECTION, name, lambda: measure(program, plan.seconds, plan.say))


def _ours(settings: Config, job: str, workers: Mapping[str, int], *flags: str) -> Program:
    """A command of this package.

    Args:
      workers: index in the run directory by the name that the process has in reports.
    """
    flags = (*(f"--{name}={value}" for name, value in settings.to_dict().items()), *flags)
    share = settings.replay_capacity // len(workers)
    spec = registry.resolve(settings.env, settings.protocol)
    bytes_per_step = int(np.prod(spec.observation_shape)) * spec.observation_dtype.itemsize

    def run(folder: Path) -> RunDirectory:
        return RunDirectory(folder / "run")

    def latest(folder: Path) -> dict[str, Row]:
        found = {name: read_rows(run(folder).worker(index) / "metrics.csv") for name, index in workers.items()}
        return {name: rows[-1] for name, rows in found.items() if rows}

    return Program(
        command=lambda folder: [sys.executable, "-m", "async_dqn", job, *flags, f"--logdir={run(folder).path}"],
        rows=lambda folder: read_rows(run(folder).metrics),
        workers=latest,
        replay_mb=lambda row: min(row["env_steps"], share) * bytes_per_step / 1e6,
    )


def _sample(processes: Sequence[psutil.Process], workers: Mapping[str, Row]) -> Sample:
    cpu: dict[str, float] = {}
    resident: dict[str, float] = {}
    pids = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):  # one that has just ended
            name, times, memory = role(process.cmdline()), process.cpu_times(), process.memory_info().rss
            cpu[name] = cpu.get(name, 0.0) + times.user + times.system
            resident[name] = resident.get(name, 0.0) + memory / 1e6
            pids.add(process.pid)
    return Sample(time.monotonic(), frozenset(pids), cpu, resident, workers)


def measure(program: Program, seconds: float, say: Callable[[str], None] = lambda line: None) -> dict[str, float]:
    """Starts a program, measures its learning phase and ends it.

    Args:
      seconds: length of the window.
      say: takes a line on what is being waited for.

    Raises:
      RunError: the program ended by itself, never got to learn, or did not end well.
    """
    with tempfile.TemporaryDirectory(prefix="async-dqn-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with running(program.command(folder), folder / LOG, folder) as task:
            found = _watch(task, program, folder, seconds, say)
            say("ending it")
            return found | {"seconds to end": end(task)}


def _watch(task: Task, program: Program, folder: Path, seconds: float, say: Callable[[str], None]) -> dict[str, float]:
    """Waits for the window, and gives what was measured in it."""
    started = time.monotonic()
    deadline = started + _START_DEADLINE
    first_update = before = None
    say("starting up")
    while True:
        task.poll()
        if task.is_over or task.pid is None:
            raise RunError(f"ended by itself with exit code {task.code}: {task.last_words()}")
        rows = program.rows(folder)
        found = window(rows, seconds)
        if first_update is None and rows and rows[-1]["updates"] > 0:
            first_update = time.monotonic() - started
            say("learns; the window opens soon")
        if found.first is not None and before is None:
            before = _sample(family(task.pid), program.workers(folder))
            deadline = before.time + seconds + _PATIENCE
            say(f"measuring for {seconds:g} s")
        if found.first is not None and found.last is not None and before is not None:
            after = _sample(family(task.pid), program.workers(folder))
            if not before.pids <= after.pids:
                raise RunError("a process of it ended within the window")
            measured = values(rows[found.first : found.last + 1], before, after, program.replay_mb)
            return measured | {"start-up seconds": first_update or 0.0}
        if time.monotonic() > deadline:
            what = "learning began" if before is None else "the window was over"
            raise RunError(f"given up before {what}, {time.monotonic() - started:.0f} s after its start")
        time.sleep(_POLL_PERIOD)
