"""The run directory: where everything of a run lies, and what made it."""

import contextlib
import fcntl
import json
import math
import os
import platform
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import psutil

from async_dqn.agents.table import config_from_dict
from async_dqn.base.errors import UserError, one_line
from async_dqn.base.files import json_object, read_regular, write_json
from async_dqn.run import provenance
from async_dqn.settings.config import Config
from async_dqn.system import processor

FORMAT = 2  # of run directories; 1 had one network without a name, and counters by position
_ENDING = 20.0  # seconds that processes may take to end once the command that started them was killed

COMPLETE = ("finished", "solved")  # the exit reasons of a run that has trained to its end


def is_over(exit_reason: str) -> bool:
    """Whether a run has trained to its end, or failed in a way that going on would not mend."""
    return exit_reason in COMPLETE or exit_reason.startswith("failed")


def default_folder(name: str) -> Path:
    """runs/NAME-TIME in the current folder, with a time in milliseconds: several may be begun in one second."""
    seconds, milliseconds = divmod(time.time_ns() // 1_000_000, 1_000)
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(seconds))}-{milliseconds:03}"


def default_logdir(env: str, agent: str) -> Path:
    """runs/ENV-AGENT-TIME in the current folder."""
    return default_folder(f"{re.sub(r'[^A-Za-z0-9.-]+', '_', env.removeprefix('ALE/'))}-{agent}")


class RunDirectory:
    """Paths of one run. Making one touches nothing on disk. Raises UserError where the current folder is gone."""

    def __init__(self, path: str | Path):
        try:
            self.path = Path(path).absolute()
        except FileNotFoundError as error:
            raise UserError(f"--logdir={path}: the current folder is gone; give a full path") from error
        self.config = self.path / "config.json"
        self.summary = self.path / "summary.json"
        self.metrics = self.path / "metrics.csv"
        self.episodes = self.path / "episodes.csv"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.tensorboard = self.path / "tensorboard"
        self.logs = self.path / "logs"

    def worker(self, index: int) -> Path:
        """The folder of one worker's own files."""
        return self.path / f"worker-{index}"

    def ps(self, index: int) -> Path:
        """The folder of one parameter server's own files."""
        return self.path / f"ps-{index}"

    def check(self, *, resume: bool) -> None:
        """Raises UserError where a new run would overwrite an old one, or there is none to resume."""
        self.check_path()
        holds_run = self.config.exists()
        if holds_run and not resume:
            raise UserError(
                f"--logdir={self.path} already holds a run; continue it with --resume, or give another folder"
            )
        if resume and not holds_run:
            raise UserError(f"--resume: --logdir={self.path} holds no run (no config.json); give the folder of one")

    def check_path(self) -> None:
        """Raises UserError where this process could not write there."""
        if "\0" in str(self.path):
            raise UserError(f"--logdir={str(self.path)!r}: no name holds a null character; give another folder")
        try:
            str(self.path).encode()
        except UnicodeEncodeError as error:
            raise UserError(f"--logdir={self.path}: the path is not UTF-8; give another folder") from error
        try:
            self.path.exists()
        except OSError as error:
            raise UserError(f"--logdir={self.path}: {error.strerror}; give another folder") from error
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--logdir={self.path} is a file; give a folder")
        above = self.path
        while not above.exists():
            above = above.parent
        if not above.is_dir():
            raise UserError(f"--logdir={self.path}: {above} is a file; give another folder")
        if not os.access(above, os.W_OK):
            raise UserError(f"--logdir={self.path}: {above} cannot be written to; give another folder")

    def create(self) -> None:
        """Makes the folder; it, and all that this process writes from now on, is for this user's eyes only.

        Raises UserError where none can be made: under a link that leads nowhere, on a full disk, in /proc.
        """
        os.umask(0o077)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            what = "a link that leads to no folder" if self.path.is_symlink() else error.strerror
            raise UserError(f"--logdir={self.path}: {what}; give another folder") from error

    @contextlib.contextmanager
    def claimed(
        self,
        say: Callable[[str], None] = lambda line: None,
        *,
        is_part: bool = False,
        patience: float = 0.0,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Sequence[int]]:
        """Keeps other commands from training in this folder meanwhile.

        Args:
          say: takes a line before it waits for what another command has left behind.
          is_part: this process may be a part of the command that started it, and so of its claim.
          patience: seconds to wait for a command on another host: that may be lost, and a shared file system takes back
            its locks after a while.
          should_stop: whether to give up waiting.

        Yields:
          Descriptors for the processes of this command to inherit: while one of them lives, the folder stays claimed.

        Raises:
          UserError: another command trains there.
          KeyboardInterrupt: it was told to stop while it waited.
        """
        with contextlib.ExitStack() as held:
            inherited = []
            try:
                lock = held.enter_context(open(self.path / ".lock", "a+"))
                self._lock(lock, say, is_part, patience, should_stop)
                inherited.append(lock.fileno())
            except OSError:  # a file system without locks
                pass
            yield inherited

    def _lock(
        self, lock: TextIO, say: Callable[[str], None], is_part: bool, patience: float, should_stop: Callable[[], bool]
    ) -> None:
        """Takes the lock, which the system takes back however its holders end. Raises as `claimed`, and OSError."""
        found, since = "", 0.0
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read()
                if is_part and holder == _holder(os.getppid()):
                    return
                who, longest = "another command is training in it", 0.0 if _is_here(holder) else patience
                if not _may_live(holder):
                    who, longest = "processes of a command that is gone still run there", _ENDING
                if who != found:
                    found, since = who, time.monotonic()
                    if longest:
                        say(f"--logdir={self.path} is in use: {who}; waiting up to {longest:g} s")
                if time.monotonic() - since >= longest:
                    raise UserError(f"--logdir={self.path} is in use: {who}") from None
                if should_stop():
                    raise KeyboardInterrupt from None
                time.sleep(0.1)
        lock.truncate(0)
        lock.write(_holder(os.getpid()))
        lock.flush()

    def next_id(self, *, resume: bool) -> int:
        """The id to go on under: a new one, or on resuming the one that the run has."""
        known = self.run_id() if resume else None
        return known or secrets.randbits(62) | 1

    def run_id(self) -> int | None:
        """The id that config.json gives the run that lies here, if there is one."""
        run_id = (json_object(self.config) or {}).get("run_id")
        return run_id if type(run_id) is int and 0 < run_id < 2**63 else None

    def agent_name(self) -> str | None:
        """The agent that config.json names, if there is one to be read."""
        settings = (json_object(self.config) or {}).get("config")
        return str(settings["agent"]) if isinstance(settings, dict) and "agent" in settings else None

    def has_failed(self) -> bool:
        """Whether the run that lies here has ended for a reason that going on with it as it is would not mend."""
        return self.exit_reason().startswith("failed")

    def has_trained(self) -> bool:
        """Whether the run that lies here has made agent steps and ended in order, which leaves a checkpoint."""
        summary = json_object(self.summary) or {}
        return summary.get("exit_reason") in (*COMPLETE, "interrupted") and bool(summary.get("env_steps"))

    def exit_reason(self) -> str:
        """What summary.json says on how the run ended; "" where there is none yet."""
        return str((json_object(self.summary) or {}).get("exit_reason") or "")

    def new_exit_reason(self) -> Callable[[], str]:
        """What says from now on how the run has ended; "" until then, whatever an earlier one has left here."""
        found = _identity(self.summary)
        return lambda: self.exit_reason() if _identity(self.summary) != found else ""

    def orphaned_replays(self, worker: int, num_workers: int) -> list[Path]:
        """The replays that one of `num_workers` takes over from workers that there are no longer."""
        matches = [re.fullmatch(r"worker-([0-9]{1,6})", path.name) for path in self.path.glob("worker-*")]
        orphans = sorted(index for match in matches if match and (index := int(match[1])) >= num_workers)
        return [self.worker(index) / "replay" for index in orphans if index % num_workers == worker]

    def write_config(self, config: Config, run_id: int, *, in_one_process: bool = False) -> None:
        """Writes config.json: every setting, and what is needed to tell where a result came from."""
        described = {
            "format": FORMAT,
            "run_id": run_id,
            "config": config.to_dict(),
            "in_one_process": in_one_process,
            "update_mode": config.mode,  # also where the setting is auto
            "versions": provenance.versions(),
            "host": {
                "name": platform.node(),
                "cpu": processor.name(),
                "cpu_model": processor.model(),
                "cores": os.cpu_count(),
                "system": platform.platform(),
            },
            "git_revision": provenance.git_revision(),
            "command": sys.argv,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        write_json(self.config, described)

    def read_config(self) -> Config:
        """The settings of the run that lies here. Raises UserError, in one line, where there is none to be read."""
        try:
            described = json.loads(read_regular(self.config))
            if not isinstance(described, dict) or not isinstance(described.get("config"), dict):
                raise ValueError('it holds no object "config"')
            return config_from_dict(_upgraded(described))
        except FileNotFoundError as error:
            raise UserError(f"--logdir={self.path} holds no run (no config.json); give the folder of one") from error
        except UserError as error:
            raise UserError(f"{self.config}: {one_line(error)}") from error
        except Exception as error:  # whatever json and the settings make of content that may be anything
            raise UserError(f"{self.config} cannot be read: {one_line(error)}") from error

    def check_resumable(self) -> None:
        """Raises UserError where the run here is of a format that can be played and exported, but not gone on with."""
        described = json_object(self.config)
        if described is None:  # `read_config` says what is wrong
            return
        number = described.get("format", 1)
        if number != FORMAT:
            raise UserError(
                f"--resume: {self.path} is a run directory of format {one_line(number, 50)}, and this version goes on "
                f"with format {FORMAT}; evaluate and export read it"
            )

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes summary.json, for which infinity and NaN are null."""
        write_json(self.summary, _finite(summary))


def _upgraded(described: dict[str, Any]) -> dict[str, Any]:
    """The settings in config.json, whatever format it has. Raises UserError for one of the future."""
    number = described.get("format", 1)
    if number not in (1, FORMAT):
        raise UserError(f"format {one_line(number, 50)}: this version reads run directories up to format {FORMAT}")
    settings = dict(described["config"])
    if number == 1 and settings.get("averages") == "auto":  # which there is no longer
        del settings["averages"]
    return settings


def _finite(value: Any) -> Any:
    """The same with None in place of what JSON cannot hold."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _identity(path: Path) -> tuple[int, int] | None:
    """Another one whenever the file is replaced."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _holder(pid: int) -> str:
    """What a process of this host writes into the lock that it holds."""
    return f"{pid} {_host()}"


def _host() -> str:
    """This host since its start, and its numbering of processes. Its name may change, or be that of others too."""
    with contextlib.suppress(OSError):
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{start} {os.stat('/proc/self/ns/pid').st_ino}"
    return platform.node()


def _is_here(holder: str) -> bool:
    """Whether the command that wrote this down ran on this host."""
    return holder.partition(" ")[2] == _host()


def _may_live(holder: str) -> bool:
    """Whether the command that wrote down its number and its host may still run: false where it surely does not."""
    pid = holder.partition(" ")[0]
    try:
        return not _is_here(holder) or psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except (ValueError, psutil.Error):
        return True
