"""The processes of a program that is being measured: how they are started, watched and ended."""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from async_dqn.base.errors import RunError
from async_dqn.system import signals
from async_dqn.system.task import INTERRUPTED, POLL_PERIOD, Task, kill, wait

_END_DEADLINE = 30.0  # seconds from the signal until all processes are gone
_Found = TypeVar("_Found")


@contextlib.contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[Task]:
    """A program, its output in `log`. No process of it is left behind, however the block ends."""
    ask = signals.ASK if "async_dqn" in command else signal.SIGTERM
    task = Task("it", lambda _: command, max_restarts=0, lease=math.inf, say=lambda _: None, log=log, ask=ask)
    before = _children()
    try:
        task.start()  # a signal may come in the middle of it, when the process is there and the task knows none
        yield task
    finally:
        processes = _children() - before
        kill([task])
        _kill(processes)
        psutil.wait_procs(processes, timeout=_END_DEADLINE)


def _children() -> set[psutil.Process]:
    """All that descend from this process."""
    return set(psutil.Process().children(recursive=True))


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def wait_for(task: Task, find: Callable[[], _Found], seconds: float, what: str) -> _Found:
    """Polls until `find` gives something. Raises RunError where the program ends before, or `what` takes too long."""
    deadline = time.monotonic() + seconds
    while True:
        task.poll()
        if task.is_over:
            raise RunError(f"ended by itself with exit code {task.code}: {task.last_line()}")
        if found := find():
            return found
        if time.monotonic() > deadline:
            raise RunError(f"given up after {seconds:.0f} s of waiting until {what}")
        time.sleep(POLL_PERIOD)


def end(task: Task) -> float:
    """Ends a program the way a user does. Gives the seconds until its last process was gone.

    Raises RunError where it does not end, or not with the exit code of an interrupted run.
    """
    processes, begin = by_role(task), time.monotonic()
    task.terminate()
    while left := {name: process for name, process in processes.items() if _is_alive(process)}:
        if time.monotonic() > begin + _END_DEADLINE:
            _kill(left.values())
            raise RunError(f"{', '.join(left)} still ran {_END_DEADLINE:g} s after the signal")
        time.sleep(0.02)
        task.poll()
    seconds = time.monotonic() - begin
    wait([task], _END_DEADLINE)
    if task.code != INTERRUPTED:
        raise RunError(f"ended with exit code {task.code} when interrupted; {INTERRUPTED} is right")
    return seconds


def _is_alive(process: psutil.Process) -> bool:
    """Whether it has not ended; one that nobody has waited for yet has."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def by_role(task: Task) -> dict[str, psutil.Process]:
    """The program's first process and all that descend from it, by what they are."""
    found = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(task.pid) if task.pid else None
        for process in [first, *first.children(recursive=True)] if first else []:
            with contextlib.suppress(psutil.Error):  # one that has just ended
                found[role(process.cmdline())] = process
    return found


def role(command: Sequence[str]) -> str:
    """What a process is, from its command line: launcher, baseline, worker 1, ps 0, or the name of its script."""
    if "async_dqn" in command[:-1]:
        job = command[command.index("async_dqn") + 1]
        index = next((part.partition("=")[2] for part in command if part.startswith("--task_index=")), "")
        return "launcher" if job == "local" else f"{job} {index}".strip()
    return next((Path(part).stem for part in command if part.endswith(".py")), "another")
