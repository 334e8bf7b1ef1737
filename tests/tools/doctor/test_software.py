"""What is installed, with versions and programs made up."""

import importlib.metadata
import sys
import time

import pytest
from doctor_helpers import CARTPOLE, IN_TIME, only

from async_dqn.settings.config import Config
from async_dqn.tools.doctor import software


@pytest.mark.parametrize(
    ("version", "status"), [((3, 9), "failure"), ((3, 10), "ok"), ((3, 13), "ok"), ((3, 14), "warning")]
)
def test_python_is_held_against_its_range(version, status):
    assert only(software.check_python(version)).status == status


def test_the_oldest_python_is_that_of_the_package():
    assert importlib.metadata.metadata("async-dqn")["Requires-Python"] == ">=3.10"


LOCK = """\
# comment==1
absl-py==2.5.1
numpy==2.2.6 ; python_version < "3.11"
numpy==2.4.6 ; python_version >= "3.11" and python_version < "3.12"
numpy==2.5.5 ; python_version >= "3.12"
"""


@pytest.mark.parametrize(("python", "numpy"), [((3, 10), "2.2.6"), ((3, 11), "2.4.6"), ((3, 13), "2.5.5")])
def test_the_lock_is_read_for_one_python(python, numpy):
    assert software._read_lock(LOCK, python) == {"absl-py": "2.5.1", "numpy": numpy}


@pytest.mark.parametrize(
    ("installed", "locked", "status", "text"),
    [
        ("2.5", "2.5", "ok", "1 as in requirements.lock"),
        ("2.10", "2.5", "warning", "thing is 2.10, 2.5 is tested"),
        ("1.9", "2.5", "failure", "thing is 1.9, at least 2.1 is needed"),
        (None, "2.5", "failure", "thing is missing"),
        ("2.10", None, "ok", "1 new enough"),
    ],
)
def test_packages_are_held_against_setup_and_lock(installed, locked, status, text, tmp_path, monkeypatch):
    def version(name):
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(importlib.metadata, "version", version)
    lock = tmp_path / "requirements.lock"
    if locked:
        lock.write_text(f"thing=={locked}\n")
    result = only(software.check_packages(["thing>=2.1", 'other>=9; extra == "gpu"', 'ruff; extra == "dev"'], lock))
    assert (result.status, result.found) == (status, text)
    assert bool(result.remedy) == (status != "ok")


def test_a_checkout_that_is_not_installed_is_told(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert only(software.check_packages()).status == "warning"


@pytest.mark.parametrize(
    ("program", "status", "text"),
    [
        ('print(\'{"version": "2.0", "gpus": 3, "sum": 512.0}\')', "ok", "2.0 imports and computes"),
        ('print(\'{"version": "2.0", "gpus": 3, "sum": 511.0}\')', "failure", "sums to 511.0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "failure", "illegal instruction"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "failure", "killed by SIGKILL: no output"),
        ("raise ImportError('no such library')", "failure", "exit code 1: ImportError: no such library"),
    ],
)
def test_tensorflow_is_tried_in_a_process_of_its_own(program, status, text):
    result, gpus = software.probe_tensorflow(True, time.monotonic() + IN_TIME, program)
    assert result.status == status
    assert text in result.found
    assert gpus == (3 if status == "ok" else None)


def test_a_tensorflow_that_hangs_is_given_up():
    started = time.monotonic()
    result, gpus = software.probe_tensorflow(True, started + 0.3, "import time; time.sleep(60)")
    assert time.monotonic() - started < 10
    assert (result.status, gpus) == ("warning", None)


def test_the_probe_hides_gpus_that_are_not_wanted():
    program = "import json, os; n = int(os.environ['CUDA_VISIBLE_DEVICES']);" + (
        "print(json.dumps({'version': '', 'gpus': n, 'sum': 512}))"
    )
    assert software.probe_tensorflow(False, time.monotonic() + IN_TIME, program)[1] == -1


@pytest.mark.parametrize(
    ("env", "status", "text"),
    [
        ("pong", "ok", "ALE/Pong-v5, protocol classic, 6 actions, observations 84x84"),
        ("CartPole-v1", "ok", "CartPole-v1, 2 actions, observations 4"),
        ("pongo", "failure", "--env=pongo is unknown"),
    ],
)
def test_environment(env, status, text):
    result = only(software.check_environment(Config(env=env)))
    assert result.status == status
    assert text in result.found


def test_an_emulator_that_is_missing_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "async_dqn.envs.registry", None)
    monkeypatch.delattr("async_dqn.envs.registry", raising=False)
    assert only(software.check_environment(CARTPOLE)).status == "failure"
