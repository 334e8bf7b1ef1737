"""A cluster on this machine: starts every ps and worker as a process of its own, watches them, shows one progress."""

import contextlib
import csv
import ctypes
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from async_dqn.checkpoints import write_atomically
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.config import Config
from async_dqn.progress import Progress, format_seconds, progress_line
from async_dqn.run_directory import RunDirectory

_END_DEADLINE = 10.0  # seconds between a signal and force
_PS_GRACE = 3.0  # seconds in which a ps may end by itself once no worker runs
_LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec nothing may take a lock
_PR_SET_PDEATHSIG = 1


class Task(NamedTuple):
    """One process of the cluster."""

    name: str
    is_ps: bool
    process: subprocess.Popen
    log: Path


def run_local(
    config: Config, run: RunDirectory, flags: Sequence[str], *, resume: bool, should_stop: threading.Event
) -> int:
    """Runs the whole cluster to its end. Gives the exit code: 0 only if every process ended with 0.

    Args:
      config, run: settings and run directory, both checked already.
      flags: the settings as flags, passed on to every process.
      resume: go on from the run directory's newest checkpoint.
      should_stop: set when the user interrupts.
    """
    progress = Progress()
    spec = ClusterSpec.local(config.num_ps, config.num_workers)
    run.create()
    run.logs.mkdir(exist_ok=True)
    spec_file = run.path / "cluster.json"
    write_atomically(spec_file, json.dumps(spec.to_dict(), indent=2).encode() + b"\n")
    common = [
        *flags,
        f"--cluster_spec={spec_file}",
        f"--logdir={run.path}",
        *(["--resume"] if resume else []),
    ]
    progress.say(f"run directory: {run.path}")
    progress.say(f"starting {config.num_ps} ps and {config.num_workers} workers (logs in {run.logs})")
    rows = _Tail(run.metrics)
    tasks: list[Task] = []
    try:
        for job, count in (("ps", config.num_ps), ("worker", config.num_workers)):
            for index in range(count):
                tasks.append(_start(job, index, common, run.logs))
        failed = _watch(tasks, rows, progress, config.total_steps, should_stop)
    finally:
        _end(tasks)
    for task in tasks:
        progress.say(f"{task.name}: exit code {task.process.returncode}")
    for task in failed:
        progress.say(f"{task.name} failed: {_last_line(task.log)}")
    _report(run, progress)
    if should_stop.is_set():
        return 130
    return 0 if all(task.process.returncode == 0 for task in tasks) else 1


def _start(job: str, index: int, common: Sequence[str], logs: Path) -> Task:
    log = logs / f"{job}-{index}.log"
    command = [sys.executable, "-m", "async_dqn", job, f"--task_index={index}", *common]
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on in order
            preexec_fn=_die_with_parent,
        )
    return Task(f"{job} {index}", job == "ps", process, log)


def _die_with_parent() -> None:
    """Linux: a process of the cluster gets SIGTERM when its launcher dies, however it dies."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _watch(
    tasks: Sequence[Task], rows: "_Tail", progress: Progress, total_steps: int, should_stop: threading.Event
) -> list[Task]:
    """Waits until all have ended, the user interrupts or one fails. Gives those that failed by themselves."""
    while None in [task.process.poll() for task in tasks]:  # a list: every one is polled
        for row in rows.read():
            progress.show(progress_line(row, total_steps))
        failed = [task for task in tasks if task.process.returncode not in (None, 0)]
        if failed or should_stop.wait(0.2):
            return failed
    for row in rows.read():
        progress.show(progress_line(row, total_steps))
    return [task for task in tasks if task.process.returncode]


def _end(tasks: Sequence[Task]) -> None:
    """Ends what still runs: workers first, so that they save and signal, then each ps that does not end by itself."""
    workers = [task.process for task in tasks if not task.is_ps]
    servers = [task.process for task in tasks if task.is_ps]
    _terminate(workers)
    _wait(servers, _PS_GRACE)
    _terminate(servers)


def _terminate(processes: Sequence[subprocess.Popen]) -> None:
    """SIGTERM for those that run, and SIGKILL for those that run on after the deadline."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in _wait(processes, _END_DEADLINE):
        process.kill()
        process.wait()


def _wait(processes: Sequence[subprocess.Popen], seconds: float) -> list[subprocess.Popen]:
    """Waits until all have ended; gives those that have not after so many seconds."""
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    return [process for process in processes if process.poll() is None]


def _report(run: RunDirectory, progress: Progress) -> None:
    try:
        summary = json.loads(run.summary.read_text())
    except (OSError, ValueError):
        progress.say("no summary was written")
        return
    mean = summary["mean_return_100"]
    progress.say(
        f"{summary['exit_reason']}: {summary['env_steps']:,} agent steps, {summary['minibatches']:,} minibatches, "
        f"{summary['episodes']:,} games in {format_seconds(summary['wall_seconds'])}; "
        f"mean return of the last 100 games: {'-' if mean is None else mean}"
    )


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return f"{lines[-1] if lines else 'no output'} (see {log})"


class _Tail:
    """The rows that a CSV file of numbers grows by, whole lines only; what it holds at the start is passed over."""

    def __init__(self, path: Path):
        self._path = path
        self._position = os.path.getsize(path) if path.exists() else 0
        self._header: list[str] = []

    def read(self) -> list[dict[str, float]]:
        """The rows since the last call."""
        if not self._path.exists():
            return []
        with open(self._path, newline="") as file:
            header = file.readline()
            if not header.endswith("\n"):
                return []
            self._header = self._header or next(csv.reader([header]))
            file.seek(max(self._position, len(header)))
            text = file.read()
        complete = text[: text.rfind("\n") + 1]
        self._position = max(self._position, len(header)) + len(complete)
        reader = csv.reader(io.StringIO(complete))
        return [
            {name: float(cell) if cell else float("nan") for name, cell in zip(self._header, row, strict=False)}
            for row in reader
        ]
