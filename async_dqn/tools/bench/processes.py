"""The processes of a program that is being measured: which there are, what each of them is, and their end."""

import contextlib
import math
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from async_dqn.base.errors import RunError
from async_dqn.run.progress import count
from async_dqn.system import signals
from async_dqn.system.task import INTERRUPTED, Task

_POLL_PERIOD = 0.02  # seconds
_END_DEADLINE = 30.0  # seconds from the signal until all processes are gone


@contextlib.contextmanager
def running(command: Sequence[str], log: Path, temporary: Path | None = None) -> Iterator[Task]:
    """A program that runs meanwhile; no process of it is left behind, however the block ends.

    Args:
      log: where its output goes.
      temporary: a folder that nobody else's processes name: those that do are its own, though their launcher is gone.
    """
    task = Task(
        "program",
        lambda restarts: command,
        max_restarts=0,
        lease=math.inf,
        say=lambda line: None,
        log=log,
        ask=signals.ASK if "async_dqn" in command else signal.SIGTERM,
    )
    task.start()
    try:
        yield task
    finally:
        end_by_force(task, temporary)


def role(command: Sequence[str]) -> str:
    """What a process is, from its command line: launcher, baseline, worker 1, ps 0, or the name of its script."""
    if "async_dqn" in command[:-1]:
        job = command[command.index("async_dqn") + 1]
        index = next((part.partition("=")[2] for part in command if part.startswith("--task_index=")), "")
        return "launcher" if job == "local" else f"{job} {index}".strip()
    return next((Path(part).stem for part in command if part.endswith(".py")), "another")


def family(pid: int) -> list[psutil.Process]:
    """A process and all that descend from it."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end(task: Task) -> float:
    """Ends a program the way a user does. Gives the seconds until its last process was gone.

    Raises RunError where it does not end, or not with the exit code of an interrupted run.
    """
    processes = family(task.pid) if task.pid else []
    begin = time.monotonic()
    task.terminate()
    while (task.is_running or any(map(_runs, processes))) and time.monotonic() < begin + _END_DEADLINE:
        time.sleep(_POLL_PERIOD)
        task.poll()
    if left := [process for process in processes if _runs(process)]:
        raise RunError(f"{count(len(left), 'process')} still ran {_END_DEADLINE:g} s after the signal")
    if task.code != INTERRUPTED:
        raise RunError(f"ended with exit code {task.code} when interrupted; {INTERRUPTED} is right")
    return time.monotonic() - begin


def end_by_force(task: Task, temporary: Path | None = None) -> None:
    """Ends what still runs of a program, in order if that goes quickly; also what its launcher has left behind."""
    task.poll()
    processes = family(task.pid) if task.pid else []
    task.terminate()
    deadline = time.monotonic() + _END_DEADLINE / 2
    while task.is_running and time.monotonic() < deadline:
        task.poll()
        time.sleep(_POLL_PERIOD)
    left = [process for process in (*processes, *(_naming(temporary) if temporary else ())) if _runs(process)]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, _END_DEADLINE)
    task.poll()


def _runs(process: psutil.Process) -> bool:
    """Whether it has not ended; what nobody has taken off the list of processes has."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _naming(folder: Path) -> list[psutil.Process]:
    """Other processes that have the folder in their command line."""
    found = psutil.process_iter(["cmdline"])
    return [one for one in found if any(str(folder) in part for part in one.info["cmdline"] or ())]
