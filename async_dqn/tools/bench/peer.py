"""Programs of others on the same work, each in an environment of its own that is made on first use."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from async_dqn.base.errors import RunError, UserError, one_line
from async_dqn.tools.bench.case import Case
from async_dqn.tools.bench.programs import LOG, Program, case
from async_dqn.tools.bench.window import read_json_rows
from async_dqn.tools.bench.work import Plan

_STAMP = "setup.stamp"
_PROBE = """
import importlib.metadata, json, platform, sys
versions = {name: importlib.metadata.version(name) for name in sys.argv[1:]}
print(json.dumps({"python": platform.python_version()} | versions))
"""


class Peer(NamedTuple):
    """Somebody else's program.

    Attributes:
      title: what reports call it.
      name: of its environment; another one for other requirements.
      requirements: exact versions for pip.
      script: what runs it; takes --envs and prints rows as JSON.
    """

    title: str
    name: str
    requirements: tuple[str, ...]
    script: Path

    @property
    def packages(self) -> list[str]:
        """Names of what is required."""
        return list(dict.fromkeys(line.partition("==")[0] for line in self.requirements))


PEERS = {
    "sb3": Peer(
        title="Stable-Baselines3 DQN",
        name="sb3-2.9.2",
        requirements=(
            "stable-baselines3==2.9.2",
            "torch==2.13.0",
            "gymnasium==1.4.0",
            "ale-py==0.12.1",
            "opencv-python-headless==5.0.0.93",
            'numpy==2.2.6 ; python_version < "3.11"',
            'numpy==2.4.6 ; python_version >= "3.11"',
        ),
        script=Path(__file__).parent / "peers" / "sb3_dqn.py",
    )
}


def cases(peer: Peer, python: Path, plan: Plan) -> list[Case]:
    """The peer with eight environments, as ours, and with one, as most use it."""
    counts = {8: "8 environments", 1: "1 environment"}
    return [
        case(f"{peer.title}, {words}", _program(peer, python, num_envs), plan)
        for num_envs, words in counts.items()
        if num_envs == 8 or not plan.is_quick
    ]


def _program(peer: Peer, python: Path, num_envs: int) -> Program:
    return Program(
        command=lambda folder: [str(python), "-I", str(peer.script), f"--envs={num_envs}"],
        rows=lambda folder: read_json_rows(folder / LOG),
    )


def default_folder(peer: Peer, environ: Mapping[str, str] = os.environ) -> Path:
    """Where its environment lies, in the user's cache."""
    cache = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "async-dqn" / "peers" / peer.name


def ensure_environment(peer: Peer, folder: Path, say: Callable[[str], None]) -> Path:
    """The Python of the peer's environment, which is made where it is missing, unfinished or another one's.

    Args:
      folder: where it lies.
      say: takes a line before anything that takes long.

    Raises:
      RunError: it could not be made; names the reason and the log.
    """
    python, log = folder / "bin" / "python", folder.with_name(f"{folder.name}.log")
    wanted = "\n".join([sys.version, sys.base_prefix, str(folder), *peer.requirements])
    stamp = folder / _STAMP
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_name(f"{folder.name}.lock"), say):
            if stamp.exists() and stamp.read_text("utf-8") == wanted:
                return python
            say(f"setting up {peer.title} in {folder} (one time, some minutes)")
            shutil.rmtree(folder, ignore_errors=True)
            with open(log, "w", encoding="utf-8") as output:
                for command in (
                    [sys.executable, "-m", "venv", str(folder)],
                    [str(python), "-m", "pip", "--no-input", "install", *peer.requirements],
                ):
                    environ = os.environ | {"PIP_USER": "0"}
                    subprocess.run(
                        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, check=True
                    )
            stamp.write_text(wanted, "utf-8")
            return python
    except OSError as error:
        raise RunError(f"{peer.title} cannot be set up in {folder}: {one_line(error)}") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()] or [str(error)]
        telling = [line for line in lines if line.startswith("ERROR")] or lines
        raise RunError(
            f"{peer.title} cannot be set up: {one_line(telling[-1])} (the whole log is {log}); "
            f"--peer_python=PATH uses a Python that has it"
        ) from error


@contextlib.contextmanager
def _lock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Held by one process at a time; however that ends, the kernel lets go of it."""
    with open(path, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that holds {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def versions(peer: Peer, python: Path) -> dict[str, str]:
    """What a Python has of the packages that the peer needs. Raises UserError where it does not run or lacks one."""
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _PROBE, *peer.packages],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        reason = one_line((error.stderr.splitlines() or [f"exit code {error.returncode}"])[-1])
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = one_line(error)
    raise UserError(f"--peer_python={python}: cannot run {peer.title}: {reason}; it needs {', '.join(peer.packages)}")
