"""Checks of what is installed: Python, packages, TensorFlow, the environment."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from async_dqn.base.errors import UserError, one_line
from async_dqn.settings.config import Config
from async_dqn.system.program import python as own_python
from async_dqn.tools.doctor.checks import Result, preflight

_PYTHONS = ((3, 10), (3, 13))  # oldest and newest that requirements.lock is made for
_LOCK = Path(__file__).parents[3] / "requirements.lock"
_PROBE = """
import json, tensorflow as tf
gpus = len(tf.config.list_physical_devices("GPU"))
tf.config.set_visible_devices([], "GPU")  # so that none of their memory is taken
tf.ones([8, 8]) @ tf.ones([8, 8])
print(json.dumps({"version": tf.__version__, "gpus": gpus}))
"""


def check_packages(requirements: Sequence[str] | None = None, lock: Path = _LOCK) -> Iterable[Result]:
    """What setup.py asks for against what is installed, and that against requirements.lock where it is at hand."""
    python = ".".join(map(str, sys.version_info[:2]))
    try:
        needed = importlib.metadata.requires("async-dqn") or [] if requirements is None else requirements
    except importlib.metadata.PackageNotFoundError:
        yield Result("warning", "async-dqn itself is not installed", "use launch/*.sh, or pip install .")
        return
    lines = lock.read_text("utf-8").splitlines() if lock.exists() else []
    locked = _applying(line for line in lines if line and not line.startswith("#"))
    failures: list[str] = []
    warnings = [] if _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1] else [f"Python {python} is not tested"]
    for name, requirement in _applying(needed).items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            failures.append(f"{name} is missing")
            continue
        tested = locked.get(name, requirement).specifier
        if not requirement.specifier.contains(found, prereleases=True):
            failures.append(f"{name} is {found}, {requirement.specifier} is needed")
        elif not tested.contains(found, prereleases=True):
            warnings.append(f"{name} is {found}, {tested} is tested")
    status = "failure" if failures else "warning" if warnings else "ok"
    remedy = f"{sys.executable} -m pip install {f'-r {lock}' if locked else '--upgrade .'}"
    yield Result(status, "; ".join(failures + warnings) or f"as needed, on Python {python}", remedy)


def _applying(lines: Iterable[str]) -> dict[str, Requirement]:
    """The requirements that apply to this Python, without those of extras, by name."""
    found = [it for it in map(Requirement, lines) if it.marker is None or it.marker.evaluate({"extra": ""})]
    return {requirement.name.lower(): requirement for requirement in found}


def probe_tensorflow(wants_gpus: bool, end: float, program: str | None = None) -> tuple[Result, int | None]:
    """Imports TensorFlow and computes, in a process of its own, which an unfit CPU ends.

    Returns:
      The result, and how many GPUs TensorFlow sees; None where it does not work.
    """
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"} | ({} if wants_gpus else {"CUDA_VISIBLE_DEVICES": "-1"})
    seconds = max(0.1, end - time.monotonic())
    command = [*own_python(), "-c", program or _PROBE]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        remedy = "try again: the first import is slow; on a network file system put .venv on a local disk"
        return Result("warning", f"not imported within {seconds:.0f} s", remedy), None
    remedy = f'{sys.executable} -c "import tensorflow" shows all; if it is broken, remove .venv and set it up anew'
    if done.returncode:
        found = (done.stderr.strip().splitlines() or ["no output"])[-1][:300]
        if done.returncode == -signal.SIGILL:
            found = "this CPU lacks an instruction that TensorFlow is built with, such as AVX"
            remedy = "use a newer CPU, or give a virtual machine its host's CPU model"
        return Result("failure", f"exit code {done.returncode}: {found}", remedy), None
    said = json.loads(done.stdout.splitlines()[-1])
    return Result("ok", f"{said['version']} imports and computes"), said["gpus"]


def check_environment(config: Config) -> Iterable[Result]:
    """Whether environment, protocol and network go together, what they are, and whether a step can be played."""
    try:
        spec = preflight().resolve(config)
    except (ImportError, UserError) as error:
        yield Result("failure", str(error), "give another --env or --network, or install what it needs")
        return
    try:
        preflight().play_a_step(spec)
    except Exception as error:  # it may be anybody's code
        yield Result("failure", f"{type(error).__name__} in its first step: {one_line(error)}", "mend the environment")
        return
    protocol = f", protocol {spec.protocol}" if spec.is_atari else ""
    actions = f"{spec.num_actions or spec.action_shape[0]} {'continuous ' * spec.is_continuous}actions"
    shape = "x".join(map(str, spec.observation_shape))
    yield Result("ok", f"{spec.id}{protocol}, {actions}, observations {shape}")
