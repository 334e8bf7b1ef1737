"""A run of several processes on this machine: starts every ps and worker, watches them, shows one progress.

With `--store=shared_memory` there is no ps: the workers inherit the file that holds what they share.
"""

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from async_dqn.base.background import Background
from async_dqn.base.errors import RunError
from async_dqn.base.files import write_json
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.run.csv_log import rows
from async_dqn.run.directory import COMPLETE, RunDirectory
from async_dqn.run.progress import Progress, count
from async_dqn.run.supervise import supervise_cluster
from async_dqn.run.watch import Watch
from async_dqn.settings.config import Config
from async_dqn.store.shared_memory import SharedMemoryStore
from async_dqn.system import signals
from async_dqn.system.private_network import PrivateNetwork
from async_dqn.system.program import own_command
from async_dqn.system.task import INTERRUPTED, Task


class _Meeting(NamedTuple):
    """How the processes of a run come together.

    Attributes:
      flags, inherited: for every process.
      enter: called in every process before its program.
      look: called again and again with the workers.
      what: they share, as a person is told.
    """

    flags: Sequence[str]
    inherited: Sequence[int]
    enter: Callable[[], None]
    look: Callable[[Sequence[Task]], None]
    what: str


def _program(job: str, index: int) -> list[str]:
    return own_command(job, f"--task_index={index}")


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
    memory: SharedMemoryStore | None = None,
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
      memory: what the workers share with `--store=shared_memory`; None: they share parameter servers.
      program: the command of a job and task index, before the flags.

    Raises:
      RunError: a private network is always asked for, but not possible.
    """
    progress = Progress(plain=plain)
    run.create()
    run.logs.mkdir(exist_ok=True)
    progress.say(f"run directory: {run.path}")
    verdict = run.new_exit_reason()  # of this run, as its chief writes it down; not of one that it goes on from

    def make_task(job: str, index: int, meeting: _Meeting) -> Task:
        is_chief = (job, index) == ("worker", 0)
        news = [_news_of(run.worker(index) / name) for name in ("metrics.csv", "episodes.csv")]

        def is_final() -> bool:
            has_trained = any(has_more() for has_more in news)
            never_began = job == "worker" and task.code == 1 and not task.restarts and not has_trained
            return verdict().startswith("failed") or never_began or _is_full(run.path)

        def command(restarts: int) -> list[str]:
            goes_on = resume or (is_chief and restarts > 0 and run.config.exists())
            common = [*flags, *meeting.flags, f"--logdir={run.path}"]
            return [*program(job, index), *common, *(["--resume"] if goes_on else [])]

        task = Task(
            f"{job} {index}",
            command,
            max_restarts=max_restarts,
            lease=config.lease,
            say=progress.say,
            log=run.logs / f"{job}-{index}.log",
            ask=signals.ASK,
            inherited=[*inherited, *meeting.inherited],
            enter=meeting.enter,
            is_final=is_final,
            is_done=lambda: is_chief and verdict() in COMPLETE,
        )
        return task

    meet = _in_memory(memory, config.mode) if memory else _on_servers(config, run.path, private_network, progress.say)
    with meet as meeting:
        servers = [make_task("ps", index, meeting) for index in range(config.num_ps)]
        workers = [make_task("worker", index, meeting) for index in range(config.num_workers)]
        watch = Watch(run, servers, workers, progress, config)

        def look() -> None:
            meeting.look(workers)
            watch.look()

        progress.say(f"starting {count(config.num_workers, 'worker')} on {meeting.what} (logs in {run.logs})")
        code = supervise_cluster(servers, workers, should_stop, look)
    watch.report(has_summary=bool(verdict()))
    was_killed = code == INTERRUPTED and verdict() == "running"  # before worker 0 had saved the end
    return 1 if was_killed else code


def _news_of(path: Path) -> Callable[[], bool]:
    """What says from now on whether a CSV file has a row that it does not have now."""
    found = rows(path, 1)
    return lambda: rows(path, 1) != found


def _is_full(folder: Path) -> bool:
    """Whether nothing can be written there."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**16))
    except OSError:
        return True
    return False


@contextlib.contextmanager
def _on_servers(config: Config, folder: Path, network: str, say: Callable[[str], None]) -> Iterator[_Meeting]:
    """On parameter servers, on free ports of the run's network."""
    spec_file = folder / "cluster.json"
    spec = ClusterSpec.local(config.num_ps, config.num_workers)
    write_json(spec_file, spec.to_dict())
    with _network(network, folder, say) as enter:
        yield _Meeting([f"--cluster_spec={spec_file}"], [], enter, lambda workers: None, f"{config.num_ps} ps")


@contextlib.contextmanager
def _in_memory(memory: SharedMemoryStore, mode: str) -> Iterator[_Meeting]:
    """In memory that they inherit. What a worker had claimed goes back to the budget once its process has ended."""

    told = set()
    thread = Background("evictions")  # a frozen worker may hold the lock: it is this process that ends it then

    def look(workers: Sequence[Task]) -> None:
        for index, worker in enumerate(workers):
            starts = memory.starts(index)
            if not worker.is_running and starts is not None and (index, starts) not in told:
                told.add((index, starts))
                thread.submit(memory.lose, index, starts)

    yield _Meeting([f"--memory={memory.descriptor}"], [memory.descriptor], lambda: None, look, f"shared memory, {mode}")
    thread.close()


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
