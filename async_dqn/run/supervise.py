"""Keeps the processes of a cluster up until their run is over, and ends them in order."""

import time
from collections.abc import Callable, Sequence
from threading import Event

from async_dqn.system.task import INTERRUPTED, POLL_PERIOD, Task, kill, wait

GRACE = 10.0  # seconds in which the others may end by themselves once one has ended the run
END_DEADLINE = 10.0  # seconds between the first signal and force
_PS_GRACE = 3.0  # seconds in which a ps may end by itself once no worker runs
_PS_DEADLINE = 1.0  # seconds that a ps is left to end after a signal, at least


def supervise_cluster(
    servers: Sequence[Task], workers: Sequence[Task], should_stop: Event, look: Callable[[], None]
) -> int:
    """Starts all tasks, keeps them up until the run is over, and ends them. Gives the exit code of the run.

    Args:
      workers: the chief is the first.
      should_stop: set when the user interrupts.
      look: called again and again meanwhile, and at the end.
    """
    tasks = [*servers, *workers]
    try:
        for task in tasks:
            task.start()
        while (code := _outcome(servers, workers, should_stop)) is None:
            time.sleep(POLL_PERIOD)  # not should_stop.wait: a signal handler that sets what is waited for may deadlock
            for task in tasks:
                task.poll()
            look()
        if code not in (1, 2):
            for task in tasks:
                task.stay_down()
            wait(tasks, GRACE, should_stop.is_set)
    finally:
        _end(servers, workers)
        look()
    could_not_save = code == INTERRUPTED and workers[0].code == 1
    return 1 if could_not_save else code


def _outcome(servers: Sequence[Task], workers: Sequence[Task], should_stop: Event) -> int | None:
    """The exit code of the run, or None while it goes on. It does without a worker, worker 0 apart, that has failed."""
    tasks, chief = [*servers, *workers], workers[0]
    if should_stop.is_set():
        return INTERRUPTED
    if chief.is_over and chief.code == 0:
        return 0
    if any(task.was_refused for task in tasks):
        return 2
    if any(task.has_failed for task in (*servers, chief)):
        return 1
    return INTERRUPTED if any(task.was_interrupted for task in tasks) else None


def _end(servers: Sequence[Task], workers: Sequence[Task]) -> None:
    """Ends what still runs: workers first, so that they save and signal, then each ps that does not end by itself."""
    deadline = time.monotonic() + END_DEADLINE

    def left() -> float:
        return deadline - time.monotonic()

    for task in (*servers, *workers):
        task.stay_down()
    if any(task.is_running for task in workers):
        for task in workers:
            task.terminate()
        wait(workers, left() - _PS_DEADLINE)
        kill(workers)
        wait(servers, min(_PS_GRACE, left() - _PS_DEADLINE))
    for task in servers:
        task.terminate()
    wait(servers, left())
    kill(servers)
