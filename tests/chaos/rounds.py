"""One round: a whole run, what happens to it, and what is seen of it meanwhile."""

import contextlib
import json
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from cluster_helpers import Command, Commands, is_port_free, processes_naming

from async_dqn.cluster.spec import ClusterSpec
from async_dqn.run.csv_log import rows
from async_dqn.run.directory import RunDirectory
from chaos.proxy import Proxy

LEASE = 6.0
_POLL_PERIOD = 0.02  # seconds
_SEEN_PERIOD = 0.1
_GONE = 10.0  # seconds in which everything of a run ends, once its command has
_SYNC = ["--update_mode=sync"]
_MODES: tuple[list[str], ...] = (
    ["--nooverlap", "--local_steps=4"],
    ["--nooverlap", "--local_steps=4"],
    ["--nooverlap", "--local_steps=0"],
    ["--overlap", "--local_steps=0"],
    ["--overlap", "--local_steps=4"],
    _SYNC,
    ["--update_mode=accumulate", "--accumulate=3"],
    ["--replay=global"],
)
_SHARED_MODES: tuple[list[str], ...] = (  # without parameter servers
    ["--store=shared_memory", "--update_mode=hogwild"],
    ["--store=shared_memory", "--update_mode=locked"],
    ["--store=shared_memory", "--update_mode=sync"],
)


class Settings(NamedTuple):
    """What the rounds of one harness have in common."""

    env: str = "CartPole-v1"
    total_steps: int = 7_001
    flags: Sequence[str] = ()
    deadline: float = 900.0  # seconds a command may take before it counts as hanging
    disk_bytes: int = 6 << 20  # of the small disk that a run is given where the disk is the fault
    shared_length: float = 8.0  # budget of a run in shared memory, relative to that of one with parameter servers
    sync_length: float = 0.5  # the same of a run whose workers wait for each other

    @classmethod
    def of(cls, env: str) -> "Settings":
        """Those for an environment: CartPole learns in seconds, a game of frames takes minutes."""
        if env == cls().env:
            return cls(flags=["--warmup_steps=500"])
        flags = ["--warmup_steps=2000", "--replay_capacity=20000"]
        return cls(env, 12_007, flags, disk_bytes=600 << 20, shared_length=1.0)


class Hang(Exception):
    """Something did not end in time."""


class Seen(NamedTuple):
    """What metrics.csv said at some time."""

    at: float
    env_steps: int
    num_bytes: int


class Round:
    """Everything of it is drawn from `seed`; all files are under `folder`.

    Args:
      seed: any text.
      settings: of the harness.
      folder: does not exist yet.
      num_ps, num_workers: at least.
      needs_servers: a parameter server has a part in what happens.
      length: budget, relative to that of the settings.
    """

    def __init__(
        self,
        seed: str,
        settings: Settings,
        folder: Path,
        *,
        num_ps: int = 1,
        num_workers: int = 2,
        length: float = 1.0,
        needs_servers: bool = True,
    ):
        self.rng = random.Random(seed)
        self.settings, self.folder = settings, folder
        self.num_ps = max(num_ps, self.rng.choice((1, 1, 2, 2, 3)))
        self.num_workers = max(num_workers, self.rng.choice((2, 2, 2, 3)))
        self.mode = self.rng.choice(_MODES if needs_servers else (*_MODES, *_SHARED_MODES))
        if self.mode in _SHARED_MODES:
            self.num_ps = 0
            length *= settings.shared_length
        elif self.mode is _SYNC:
            length *= settings.sync_length
        self.total = int(settings.total_steps * length * self.rng.uniform(0.9, 1.1)) // 30 * 30 + 1
        self.checkpoint_period = self.rng.choice((3, 4, 5))
        self.keep = self.rng.choice((2, 100))
        self.extra: list[str] = []
        self.environ: dict[str, str] = {}
        folder.mkdir(parents=True)
        self.run = RunDirectory(folder / "run")
        self.commands = Commands(folder)
        self.local: Command | None = None
        self.spec: ClusterSpec | None = None
        self.proxies: list[Proxy] = []
        self.links: dict[str, list[Proxy]] = {}  # by task: what all its connections go through
        self.by_hand: dict[str, Command] = {}
        self.seen: list[Seen] = []
        self.recoveries: list[float] = []
        self.notes: list[str] = []
        self.spoilt: dict[Path, bytes] = {}  # files whose content was changed, and what it is now
        self._mounted = contextlib.ExitStack()
        self._open_faults: list[tuple[Seen, int, bool]] = []
        self._deadline = 0.0

    # Starting.

    @property
    def flags(self) -> list[str]:
        """Settings of every command."""
        return [
            f"--env={self.settings.env}",
            f"--total_steps={self.total}",
            f"--lease={LEASE:g}",
            f"--checkpoint_period={self.checkpoint_period}",
            f"--keep_checkpoints={self.keep}",
            "--ps_deadline=60",
            "--log_period=0.5",
            *self.settings.flags,
            *self.mode,
            *self.extra,
            f"--logdir={self.run.path}",
        ]

    def start(self, *more: str) -> Command:
        """Starts `local`."""
        name = f"local-{len(self.commands.started)}"
        sizes = [f"--num_ps={self.num_ps}", f"--num_workers={self.num_workers}"]
        self.local = self.commands(name, "local", *sizes, *self.flags, *more, environ=self.environ)
        self._deadline = time.monotonic() + self.settings.deadline
        return self.local

    def start_by_hand(self, *more: str) -> Command:
        """Starts each ps and worker as a command of its own; their connections go through proxies. Gives worker 0."""
        self.spec = ClusterSpec.local(self.num_ps, self.num_workers)

        def proxy(address: str, *tasks: str) -> str:
            self.proxies.append(Proxy(address))
            for task in tasks:
                self.links.setdefault(task, []).append(self.proxies[-1])
            return self.proxies[-1].address

        names = [f"worker {index}" for index in range(self.num_workers)]
        back = [proxy(address, name) for address, name in zip(self.spec.worker, names, strict=True)]

        def begin(job: str, index: int, ps: Sequence[str], worker: Sequence[str]) -> None:
            file = self.folder / f"{job}-{index}.json"
            file.write_text(json.dumps(ClusterSpec(tuple(ps), tuple(worker)).to_dict()))
            flags = [f"--cluster_spec={file}", f"--task_index={index}", *self.flags, *more]
            self.by_hand[f"{job} {index}"] = self.commands(f"{job}-{index}", job, *flags)

        for index in range(self.num_ps):
            begin("ps", index, self.spec.ps, back)
        for index, name in enumerate(names):
            there = [proxy(address, name, f"ps {k}") for k, address in enumerate(self.spec.ps)]
            begin("worker", index, there, self.spec.worker)
        self._deadline = time.monotonic() + self.settings.deadline
        return self.by_hand["worker 0"]

    # Looking.

    def process(self, task: str) -> psutil.Process | None:
        """The living process of a task, as "ps 0"."""
        job, index = task.split()
        for process in processes_naming(self.run.path):
            with contextlib.suppress(psutil.Error, ValueError):
                line = process.cmdline()
                if line[line.index("async_dqn") + 1] == job and f"--task_index={index}" in line:
                    return process
        return None

    def env_steps(self) -> int:
        """The newest global count on disk."""
        return self._look().env_steps

    def summary(self) -> dict[str, Any]:
        """What summary.json says; nothing where there is none."""
        try:
            return json.loads(self.run.summary.read_text())
        except (OSError, ValueError):
            return {}

    def output(self) -> str:
        """All that was written by commands and processes."""
        texts = [command.out + command.err for command in self.commands.started]
        return "\n".join([*texts, *(self.log(path.stem) for path in sorted(self.run.logs.glob("*.log")))])

    def log(self, name: str) -> str:
        """What one process of `local` wrote, as "worker-0"."""
        try:
            return (self.run.logs / f"{name}.log").read_text(errors="replace")
        except OSError:
            return ""

    def _look(self) -> Seen:
        steps = size = 0
        with contextlib.suppress(OSError, ValueError):
            size = self.run.metrics.stat().st_size
            steps = next((int(row["env_steps"]) for row in rows(self.run.metrics, 1)), 0)
        return Seen(time.monotonic(), steps, size)

    def watch(self) -> None:
        """Takes a look: to be called all the time. Raises Hang once the time is over."""
        if not self.seen or time.monotonic() - self.seen[-1].at >= _SEEN_PERIOD:
            now = self._look()
            self.seen.append(now)
            still = []
            for fault, smallest, is_cut in self._open_faults:
                is_cut = is_cut or now.num_bytes < fault.num_bytes
                smallest = min(smallest, now.num_bytes)
                if now.env_steps > fault.env_steps or (is_cut and now.num_bytes > smallest):
                    self.recoveries.append(now.at - fault.at)
                else:
                    still.append((fault, smallest, is_cut))
            self._open_faults = still
        if time.monotonic() > self._deadline:
            raise Hang(f"not over after {self.settings.deadline:.0f} s")

    # Waiting.

    def wait_for(self, condition: Callable[[], Any], command: Command, period: float = _POLL_PERIOD) -> bool:
        """Until the condition holds, which is asked for every `period`; False where the command ends before."""
        while not condition():
            if not command.is_running():
                return False
            self.watch()
            time.sleep(period)
        return True

    def pause(self, seconds: float) -> None:
        """Lets time pass."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.watch()
            time.sleep(_POLL_PERIOD)

    def wait(self, command: Command) -> int:
        """The exit code."""
        self.wait_for(lambda: False, command)
        return command.process.returncode

    def wait_until_nothing_is_left(self, seconds: float = _GONE) -> list[str]:
        """What of the run is still there in the end: processes, ports."""
        end = time.monotonic() + seconds
        while (left := processes_naming(self.run.path)) and time.monotonic() < end:
            time.sleep(0.05)
        found = [f"process {process.pid} is left" for process in left]
        spec = self.spec
        if spec is None and (self.run.path / "cluster.json").exists():
            spec = ClusterSpec.load(self.run.path / "cluster.json")
        for address in (*spec.ps, *spec.worker) if spec and not left else ():
            while not is_port_free(address) and time.monotonic() < end:
                time.sleep(0.05)
            if not is_port_free(address):
                found.append(f"{address} is not free again")
        return found

    # Doing.

    def mark_fault(self) -> None:
        """From now on until the steps go on, the run recovers."""
        now = self._look()
        self._open_faults.append((now, now.num_bytes, False))

    def send(self, number: int, *tasks: str) -> bool:
        """Signals tasks, all at once. False where one is over already."""
        victims = [self.process(task) for task in tasks]
        for task, victim in zip(tasks, victims, strict=True):
            if victim is None:
                self.notes.append(f"{task} had ended before {signal.Signals(number).name}")
                continue
            with contextlib.suppress(psutil.Error):
                victim.send_signal(number)
        return None not in victims

    def mount(self, disk: contextlib.AbstractContextManager[None]) -> None:
        """Takes a disk until the round is closed."""
        self._mounted.enter_context(disk)

    def spoil(self, path: Path) -> None:
        """Flips some bytes of a file, or cuts it off, anywhere."""
        content = bytearray(path.read_bytes())
        if self.rng.random() < 0.3:
            del content[self.rng.randrange(len(content)) :]
        else:
            for _ in range(self.rng.choice((1, 3, 20))):
                content[self.rng.randrange(len(content))] ^= self.rng.randrange(1, 256)
        path.write_bytes(content)
        self.spoilt[path] = bytes(content)
        self.notes.append(f"spoilt {path.relative_to(self.run.path)}")

    def close(self) -> None:
        """Ends what is left and gives back what was taken."""
        self.commands.end()
        for process in processes_naming(self.run.path):
            with contextlib.suppress(psutil.Error):
                process.kill()
        for proxy in self.proxies:
            proxy.close()
        self._mounted.close()

    # Counting.

    def resumed_at(self) -> int:
        """What the counters were last set to."""
        name = self.log("worker-0") or (self.by_hand["worker 0"].out if self.by_hand else "")
        at = 0
        for match in re.finditer(
            r"(?:resumed|restored .*) at ([0-9,]+) agent steps|the run has no checkpoint yet", name
        ):
            at = int((match[1] or "0").replace(",", ""))
        return at

    def num_episode_rows(self) -> int:
        """Rows of the global episodes.csv."""
        return len(rows(self.run.episodes))

    def most_steps_within(self, seconds: float) -> int:
        """The most steps that were done in any such time."""
        most = first = 0
        for last in range(len(self.seen)):
            while self.seen[last].at - self.seen[first].at > seconds:
                first += 1
            most = max(most, self.seen[last].env_steps - self.seen[first].env_steps)
        return most
