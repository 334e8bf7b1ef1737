"""A cluster on this machine: starts every ps and worker as a process of its own, watches them, shows one progress."""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from async_dqn.base.errors import RunError
from async_dqn.base.files import write_atomically
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.roles.supervisor import INTERRUPTED, POLL_PERIOD, Task, kill, wait
from async_dqn.run.csv_log import METRIC_FIELDS
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress, count, format_seconds, progress_line
from async_dqn.run.worker_table import read_worker, worker_table
from async_dqn.settings.config import Config
from async_dqn.system import signals
from async_dqn.system.private_network import PrivateNetwork

_GRACE = 10.0  # seconds in which the others may end by themselves once one has ended the run
_END_DEADLINE = 10.0  # seconds between the first signal and force
_PS_GRACE = 3.0  # seconds in which a ps may end by itself once no worker runs
_PS_DEADLINE = 1.0  # seconds that a ps is left to end after a signal, at least


def _program(job: str, index: int) -> list[str]:
    return [sys.executable, "-m", "async_dqn", job, f"--task_index={index}"]


def run_local(
    config: Config,
    run: RunDirectory,
    flags: Sequence[str],
    *,
    resume: bool,
    max_restarts: int,
    private_network: str,
    plain: bool,
    should_stop: threading.Event,
    inherited: Sequence[int] = (),
    program: Callable[[str, int], Sequence[str]] = _program,
) -> int:
    """Runs the whole cluster to its end. Gives the exit code: 0 once worker 0 has ended well, whatever it took.

    Args:
      config, run: settings and run directory, both checked already.
      flags: the settings as flags, passed on to every process.
      resume: go on from the run directory's newest checkpoint.
      max_restarts: how often each process is started again when it fails or freezes.
      plain: show progress as lines that stay, on a terminal too.
      private_network: whether only this run's processes can reach its ports: always, never, or auto: if possible.
      should_stop: set when the user interrupts.
      inherited: descriptors that every process keeps open.
      program: the command of a job and task index, before the flags.

    Raises:
      RunError: a private network is always asked for, but not possible.
    """
    progress = Progress(plain=plain)
    run.create()
    run.logs.mkdir(exist_ok=True)
    progress.say(f"run directory: {run.path}")
    spec = ClusterSpec.local(config.num_ps, config.num_workers)
    spec_file = run.path / "cluster.json"
    write_atomically(spec_file, json.dumps(spec.to_dict(), indent=2).encode() + b"\n")
    common = [*flags, f"--cluster_spec={spec_file}", f"--logdir={run.path}"]

    verdict = run.new_exit_reason()  # of this run, as its chief writes it down; not of one that it goes on from

    def make_task(job: str, index: int) -> Task:
        def command(restarts: int) -> list[str]:
            goes_on = resume or (restarts > 0 and (job, index) == ("worker", 0) and run.config.exists())
            return [*program(job, index), *common, *(["--resume"] if goes_on else [])]

        return Task(
            f"{job} {index}",
            command,
            max_restarts=max_restarts,
            lease=config.lease,
            say=progress.say,
            log=run.logs / f"{job}-{index}.log",
            ask=signals.ASK,
            inherited=inherited,
            enter=enter,
            is_final=lambda: verdict().startswith("failed"),
            is_done=lambda: (job, index) == ("worker", 0) and verdict() in ("finished", "solved"),
        )

    with _network(private_network, run.path, progress.say) as enter:
        servers = [make_task("ps", index) for index in range(config.num_ps)]
        workers = [make_task("worker", index) for index in range(config.num_workers)]
        progress.say(f"starting {config.num_ps} ps and {count(config.num_workers, 'worker')} (logs in {run.logs})")
        watch = _Watch(run, servers, workers, progress, config)
        code = _supervise(servers, workers, watch, should_stop)
    for task in (*servers, *workers):
        restarts = f" after {count(task.restarts, 'restart')}" if task.restarts else ""
        progress.say(f"{task.name}: exit code {task.code}{restarts}")
    for task in (*servers, *workers):
        if task.has_failed and task.log:
            progress.say(f"{task.name} failed: {task.last_words()} (see {task.log})")
    if verdict():
        _report(run, progress)
    else:
        progress.say("no summary was written")
    return code


@contextlib.contextmanager
def _network(wanted: str, folder: Path, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """What every process calls before its program, to be in the run's network."""
    network = "" if wanted == "never" else PrivateNetwork.create(folder)
    if isinstance(network, PrivateNetwork):
        say("private network: only this run's processes can reach its ports")
        with contextlib.closing(network):
            yield network.enter
        return
    if wanted == "always":
        raise RunError(f"--private_network=always: {network}")
    if network:
        say(f"warning: no private network, so that whoever reaches this machine's ports controls the run: {network}")
    yield lambda: None


def _supervise(
    servers: Sequence[Task],
    workers: Sequence[Task],
    watch: "_Watch",
    should_stop: threading.Event,
) -> int:
    """Starts all tasks, keeps them up until the run is over, and ends them. Gives the exit code of the run."""
    tasks = [*servers, *workers]
    try:
        for task in tasks:
            task.start()
        while (code := _outcome(servers, workers, should_stop)) is None:
            time.sleep(POLL_PERIOD)  # not should_stop.wait: a signal handler that sets what is waited for may deadlock
            for task in tasks:
                task.poll()
            watch.look()
        if code not in (1, 2):
            for task in tasks:
                task.stay_down()
            wait(tasks, _GRACE, should_stop.is_set)
        return code
    finally:
        _end(servers, workers)
        watch.look()


def _outcome(servers: Sequence[Task], workers: Sequence[Task], should_stop: threading.Event) -> int | None:
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
    deadline = time.monotonic() + _END_DEADLINE

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


class _Tail:
    """The whole lines that a file grows by; what it holds at the start is passed over.

    It may also be cut back, as metrics are when a run goes on from a checkpoint: then it is followed from its new end.
    """

    def __init__(self, path: Path):
        self._path = path
        self._position = os.path.getsize(path) if path.exists() else 0

    def read(self) -> list[str]:
        """The lines since the last call."""
        try:
            with open(self._path, "rb") as file:
                self._position = min(self._position, os.fstat(file.fileno()).st_size)
                file.seek(self._position)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.decode(errors="replace").splitlines()


class _Watch:
    """Shows on one terminal how the run stands, and what its processes have to say."""

    def __init__(
        self, run: RunDirectory, servers: Sequence[Task], workers: Sequence[Task], progress: Progress, config: Config
    ):
        self._run, self._workers = run, workers
        self._progress, self._config = progress, config
        self._rows = _Tail(run.metrics)
        self._logs = [(task.name, _Tail(task.log)) for task in (*servers, *workers) if task.log]

    def look(self) -> None:
        """Shows what is new."""
        for name, log in self._logs:
            for line in log.read():
                if line.startswith(f"{name}: ") and (line.startswith("worker") or "lost" in line):
                    self._progress.say(line)
        for line in self._rows.read():
            with contextlib.suppress(ValueError):  # the header, or half a line where the file was cut back
                row = [float(cell or "nan") for cell in line.split(",")]
                values = dict(zip(METRIC_FIELDS, row, strict=True))
                line = progress_line(values, self._config.total_steps, self._config.stop_at_return)
                self._progress.show(line, self._below() if self._progress.is_in_place else ())

    def _below(self) -> list[str]:
        """A line on each worker."""
        rows = [(task.name, _state(task), read_worker(self._run.path, i)) for i, task in enumerate(self._workers)]
        return worker_table(rows)


def _state(task: Task) -> str:
    if task.is_running:
        return "frozen" if task.is_frozen else "running"
    return f"ended ({task.code})" if task.is_over else "starts again"
