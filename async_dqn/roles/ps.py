"""A parameter server: holds its shard until nobody is left to serve, then ends by itself."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from async_dqn.cluster import server
from async_dqn.cluster.done_queue import PsQueues
from async_dqn.cluster.eviction import Evictor
from async_dqn.cluster.leases import LeaseState, LeaseTable
from async_dqn.cluster.ledger import ANYONE
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.run.csv_log import CsvWriter
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.settings.config import Config
from async_dqn.system.process_meter import METER_FIELDS, ProcessMeter

_PERIOD = 0.2  # seconds between two looks at what came in; each costs a millisecond or two
_STOP_DEADLINE = 8.0  # seconds that the workers have to save and to end when this ps is interrupted


class _OwnTime:
    """Seconds in which this process ran. While it stood still, no message could reach it."""

    def __init__(self) -> None:
        self._seconds, self._read_at = 0.0, time.monotonic()

    def read(self) -> float:
        """The time, on by a second at most since the last call."""
        now = time.monotonic()
        self._seconds += min(now - self._read_at, 1.0)
        self._read_at = now
        return self._seconds


class _Metrics:
    """What this ps takes of the machine, in its own metrics.csv."""

    def __init__(self, folder: Path, period: float, say: Callable[[str], None]):
        self._writer = CsvWriter(folder / "metrics.csv", ("wall_seconds", *METER_FIELDS), say)
        self._meter = ProcessMeter()
        self._period = period
        self._started = self._logged_at = time.monotonic()

    def tick(self) -> None:
        """Writes a row where one is due."""
        if time.monotonic() - self._logged_at >= self._period:
            self.log()

    def log(self) -> None:
        """Writes a row."""
        self._logged_at = time.monotonic()
        self._writer.write({"wall_seconds": self._logged_at - self._started, **self._meter.read()})


def run_ps(
    config: Config, spec: ClusterSpec, task_index: int, run: RunDirectory | None, *, should_stop: threading.Event
) -> int:
    """Serves one shard. Gives the exit code: 0 if the run came to its end, or each worker to its own.

    Args:
      run: where to write how much of the machine it takes; None: nowhere.
    """
    session_config = server.session_config("ps", task_index, config.threads or 1)
    target = server.start_server(spec, "ps", task_index, session_config).target
    queues = PsQueues(target, session_config, task_index)
    evictor = Evictor(target, session_config, spec) if task_index == 0 else None
    clock = _OwnTime()
    leases = LeaseTable(
        spec.num_workers, config.lease, config.start_deadline, clock.read(), chief_grace=config.ps_deadline
    )

    say = Progress(name=f"ps {task_index}").say
    say(f"serving on {spec.address('ps', task_index)} for {spec.num_workers} workers")
    metrics = _Metrics(run.ps(task_index), config.log_period, say) if run else None
    stop_at, was_asked = None, False
    while not leases.is_over(now := clock.read()) and (stop_at is None or time.monotonic() < stop_at):
        for message in queues.take():
            if leases.hear(message, now) and evictor:
                evictor.evict(message.worker, message.token)
            if message.code == 130 and not was_asked and not leases.is_finished:
                was_asked = True  # it may have been asked to end before it could tell the others
                queues.ask_to_stop()
        for worker, token, state, is_lost in leases.expire(now):
            has_come = state is not LeaseState.EXPECTED
            if is_lost and has_come:
                say(f"worker {worker} counts as lost: nothing was heard from it for {config.lease:g} s (--lease)")
            elif is_lost:
                limit = f"{config.start_deadline:g} s (--start_deadline)"
                say(f"worker {worker} counts as lost: it has not come within {limit}")
            if evictor:  # who joined and was never heard of has a token that nobody here knows
                evictor.evict(worker, token if has_come else ANYONE)
        if evictor:
            evictor.tick()
        if metrics:
            metrics.tick()
        time.sleep(_PERIOD)
        if should_stop.is_set() and stop_at is None:
            say("interrupted; the workers are told to save and to end")
            queues.ask_to_stop()
            stop_at = time.monotonic() + _STOP_DEADLINE
    if metrics:
        metrics.log()
    return _verdict(leases, interrupted=should_stop.is_set(), say=say)


def _verdict(leases: LeaseTable, *, interrupted: bool, say: Callable[[str], None]) -> int:
    missing = leases.missing()
    names = ", ".join(map(str, missing))
    if interrupted:
        say(f"ended by a signal{f', before worker {names} was done' if missing else ''}")
        return 130
    if not missing:
        say("all workers are done")
        return 0
    if leases.is_finished:
        say(f"the run is finished, though worker {names} did not say that it was done")
        return 0
    say(f"work was cut short: worker {names} was lost")
    return 1
