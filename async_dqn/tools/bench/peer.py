"""Stable-Baselines3 on the same work, in a Python environment of its own that is made on first use."""

import functools
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from async_dqn.base.errors import RunError, one_line
from async_dqn.run.progress import count
from async_dqn.settings.config import ReplaySettings
from async_dqn.tools.bench.programs import LOG, Program, Row, measure
from async_dqn.tools.bench.work import Case, Plan, config

NAME = "Stable-Baselines3"
TITLES = {"nature": f"{NAME} DQN", "a2c": f"{NAME} A2C"}  # by work
SCRIPT = Path(__file__).parent / "peers" / "sb3.py"
VERSIONS = {
    "stable-baselines3": "2.9.2",
    "torch": "2.13.0",
    "gymnasium": "1.4.0",
    "ale-py": "0.12.1",
    "opencv-python-headless": "5.0.0.93",
    "numpy": "2.2.6" if sys.version_info < (3, 11) else "2.4.6",
}
_REQUIREMENTS = [f"{name}=={version}" for name, version in VERSIONS.items()]


def cases(python: Path, plan: Plan) -> list[Case]:
    """The peer with as many environments as ours; its DQN also with one, as most use it."""
    work = config(plan)
    numbers, more = [work.envs_per_worker], []
    if isinstance(work, ReplaySettings):
        numbers += [] if plan.is_quick else [1]
        more = [work.replay_capacity, work.warmup_steps]
    made = {f"{TITLES[plan.work]}, {count(n, 'environment')}": program(python, plan.work, n, *more) for n in numbers}
    return [Case("programs", name, functools.partial(measure, one, plan.seconds)) for name, one in made.items()]


def program(python: Path, work: str, *numbers: int) -> Program:
    """The peer on a work: its environments, and for DQN transitions in replay and agent steps before it trains."""
    return Program(
        command=lambda folder: [str(python), "-I", str(SCRIPT), work, *map(str, numbers)],
        rows=lambda folder: read_rows(folder / LOG),
    )


def read_rows(path: Path) -> list[Row]:
    """The whole lines of the peer's output that are JSON objects; none where there is no file."""
    lines = path.read_text(errors="replace").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines if line.startswith("{")]


def ensure_environment(cache: Path, say: Callable[[str], None]) -> Path:
    """The Python of the peer's environment below `cache`, which is made where it is missing or unfinished.

    Args:
      say: takes a line before anything that takes long.

    Raises:
      RunError: it could not be made; names the reason and the log.
    """
    wanted = zlib.crc32("\n".join([sys.version, sys.prefix, str(cache), *_REQUIREMENTS]).encode())
    folder = cache / f"sb3-{wanted:08x}"
    python, stamp, log = folder / "bin" / "python", folder / "finished", cache / f"{folder.name}.log"
    if stamp.exists():
        return python
    say(f"setting up {NAME} in {folder} (one time, some minutes)")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with open(log, "w", encoding="utf-8") as output:
            for command in (
                [sys.executable, "-m", "venv", "--clear", str(folder)],
                [str(python), "-m", "pip", "--no-input", "install", *_REQUIREMENTS],
            ):
                environ = os.environ | {"PIP_USER": "0"}
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, check=True)
        stamp.touch()
        return python
    except (OSError, subprocess.SubprocessError) as error:
        lines = log.read_text("utf-8", "replace").splitlines() if log.is_file() else []
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), error)
        raise RunError(f"{NAME} cannot be set up: {one_line(reason)} (see {log})") from error
