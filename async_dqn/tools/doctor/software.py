"""Checks of what is installed: Python, packages, TensorFlow, the environment.

TensorFlow is tried in a process of its own first, because on an unfit CPU importing it ends the process.
"""

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from async_dqn.base.errors import UserError
from async_dqn.settings.config import Config
from async_dqn.tools.doctor.checks import Result

_PYTHONS = ((3, 10), (3, 13))  # oldest and newest that requirements.lock is made for

_PROBE = """
import json
import tensorflow as tf
gpus = len(tf.config.list_physical_devices("GPU"))
tf.config.set_visible_devices([], "GPU")  # so that none of their memory is taken
ones = tf.ones([8, 8])
print(json.dumps({"version": tf.__version__, "gpus": gpus, "sum": float(tf.reduce_sum(ones @ ones))}))
"""


def check_python(version: tuple[int, ...] = sys.version_info[:2]) -> Iterable[Result]:
    """The interpreter against those that the package is made for."""
    found, oldest, newest = (".".join(map(str, numbers)) for numbers in (version, *_PYTHONS))
    remedy = f"make .venv with Python {oldest} to {newest}; ASYNC_DQN_PYTHON names it to launch/*.sh"
    if version < _PYTHONS[0]:
        yield Result("failure", "Python", f"{found} is older than {oldest}", remedy)
    elif version > _PYTHONS[1]:
        yield Result("warning", "Python", f"{found} is newer than {newest}, the newest that is tested", remedy)
    else:
        yield Result("ok", "Python", found)


def check_packages(
    requirements: Sequence[str] | None = None,
    lock: Path = Path(__file__).parents[3] / "requirements.lock",
) -> Iterable[Result]:
    """What setup.py asks for against what is installed, and that against requirements.lock where it is at hand."""
    if requirements is None:
        try:
            requirements = importlib.metadata.requires("async-dqn") or []
        except importlib.metadata.PackageNotFoundError:
            yield Result(
                "warning", "packages", "async-dqn itself is not installed", "use launch/*.sh, or pip install ."
            )
            return
    locked = _read_lock(lock.read_text("utf-8")) if lock.exists() else {}
    failures, warnings, count = [], [], 0
    for requirement in requirements:
        match = re.fullmatch(r"([\w.-]+) *>= *([\d.]+)", requirement)
        if not match:  # one of an extra
            continue
        count += 1
        name, minimum = match.groups()
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            failures.append(f"{name} is missing")
            continue
        if _numbers(found) < _numbers(minimum):
            failures.append(f"{name} is {found}, at least {minimum} is needed")
        elif found != locked.get(name.lower(), found):
            warnings.append(f"{name} is {found}, {locked[name.lower()]} is tested")
    status = "failure" if failures else "warning" if warnings else "ok"
    text = "; ".join(failures + warnings) or f"{count} {'as in requirements.lock' if locked else 'new enough'}"
    what = f"-r {lock}" if locked else "--upgrade ."
    yield Result(status, "packages", text, f"{sys.executable} -m pip install {what}" if status != "ok" else "")


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version, for comparison: 2.21.0rc1 -> (2, 21, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _read_lock(text: str, python: tuple[int, ...] = sys.version_info[:2]) -> dict[str, str]:
    """The versions that the lines `name==version ; python_version < "3.11"` give this Python."""
    versions = {}
    for line in text.splitlines():
        pin, _, marker = line.partition(";")
        name, equal, version = pin.partition("==")
        bounds = [(operator, _numbers(bound)) for operator, bound in re.findall(r'(<|>=) "([\d.]+)"', marker)]
        if equal and not line.startswith("#") and all((python < b) == (operator == "<") for operator, b in bounds):
            versions[name.strip().lower()] = version.strip()
    return versions


def probe_tensorflow(wants_gpus: bool, end: float, program: str = _PROBE) -> tuple[Result, int | None]:
    """Imports TensorFlow and computes, in a process of its own.

    Returns:
      The result, and how many GPUs TensorFlow sees; None where it does not work.
    """
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"} | ({} if wants_gpus else {"CUDA_VISIBLE_DEVICES": "-1"})
    seconds = max(0.1, end - time.monotonic())
    command = [sys.executable, "-c", program]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        remedy = "try again: the first import is slow; on a network file system put .venv on a local disk"
        return Result("warning", "TensorFlow", f"not imported within {seconds:.0f} s", remedy), None
    if done.returncode == -signal.SIGILL:
        found = "illegal instruction: this CPU lacks one that TensorFlow is built with, such as AVX"
        remedy = "use a newer CPU, give a virtual machine its host's CPU model, or build TensorFlow for this one"
        return Result("failure", "TensorFlow", found, remedy), None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        ended = f"exit code {done.returncode}"
        if done.returncode < 0:
            ended = f"killed by {signal.Signals(-done.returncode).name}"
        remedy = f'{sys.executable} -c "import tensorflow" shows all; if it is broken, remove .venv and set it up anew'
        return Result("failure", "TensorFlow", f"{ended}: {lines[-1][:300] if lines else 'no output'}", remedy), None
    said = json.loads(done.stdout.splitlines()[-1])
    if said["sum"] != 8 * 8 * 8:
        found = f"{said['version']} sums to {said['sum']} what is 512"
        return Result("failure", "TensorFlow", found, "remove .venv and set it up anew"), None
    return Result("ok", "TensorFlow", f"{said['version']} imports and computes"), said["gpus"]


def check_environment(config: Config) -> Iterable[Result]:
    """Whether the environment can be made, and what it is."""
    try:
        from async_dqn.envs import registry

        spec = registry.resolve(config.env, config.protocol)
    except ImportError as error:
        yield Result("failure", "environment", str(error), "install what the line on packages says")
    except UserError as error:
        yield Result("failure", "environment", str(error), "give another --env, or install what it needs")
    else:
        protocol = f", protocol {spec.protocol}" if spec.is_atari else ""
        shape = "x".join(map(str, spec.observation_shape))
        yield Result("ok", "environment", f"{spec.id}{protocol}, {spec.num_actions} actions, observations {shape}")
