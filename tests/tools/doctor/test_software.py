"""What is installed, with versions and programs made up."""

import importlib.metadata
import sys
import time

import pytest
from doctor_helpers import IN_TIME, only

from async_dqn.settings.config import Config
from async_dqn.tools.doctor import software


@pytest.mark.parametrize(
    ("installed", "locked", "status", "text"),
    [
        ("2.5", "2.5", "ok", "as needed"),
        ("2.10", "2.5", "warning", "thing is 2.10, ==2.5 is tested"),
        ("1.9", "2.5", "failure", "thing is 1.9, >=2.1 is needed"),
        (None, "2.5", "failure", "thing is missing"),
        ("2.10rc1", None, "ok", "as needed"),
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
        lines = [f'thing=={locked} ; python_version >= "3.1"', 'thing==9 ; python_version < "3.1"']
        lock.write_text("# comment==1\n" + "\n".join(lines) + "\n")
    result = only(software.check_packages(["thing>=2.1", 'other>=9; extra == "gpu"', 'ruff; extra == "dev"'], lock))
    assert result.status == status and text in result.found


def test_a_python_that_is_not_tested_and_a_checkout_that_is_not_installed_are_told(monkeypatch, tmp_path):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert only(software.check_packages([], tmp_path / "none")).status == "warning"
    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert only(software.check_packages()).status == "warning"


@pytest.mark.parametrize(
    ("program", "status", "text"),
    [
        ('print(\'{"version": "2.0", "gpus": 3}\')', "ok", "2.0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "failure", "instruction"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "failure", "no output"),
        ("raise ImportError('no such library')", "failure", "exit code 1: ImportError: no such library"),
    ],
)
def test_tensorflow_is_tried_in_a_process_of_its_own(program, status, text):
    result, gpus = software.probe_tensorflow(True, time.monotonic() + IN_TIME, program)
    assert result.status == status and text in result.found
    assert gpus == (3 if status == "ok" else None)


def test_a_tensorflow_that_hangs_is_given_up():
    started = time.monotonic()
    result, gpus = software.probe_tensorflow(True, started + 0.3, "import time; time.sleep(60)")
    assert time.monotonic() - started < 10
    assert (result.status, gpus) == ("warning", None)


@pytest.mark.parametrize(
    ("settings", "status", "text"),
    [
        ({"env": "pong"}, "ok", "ALE/Pong-v5, protocol classic, 6 actions, observations 84x84"),
        ({"env": "CartPole-v1"}, "ok", "CartPole-v1, 2 actions, observations 4"),
        ({"env": "pongo"}, "failure", "--env=pongo is unknown"),
        ({"env": "pong", "network": "mlp"}, "failure", "--network=mlp"),
        ({"env": "faulty_environments:Faulty/RaisingReset-v0"}, "failure", "FileNotFoundError in its first step: map"),
    ],
)
def test_environment(settings, status, text):
    result = only(software.check_environment(Config(**settings)))
    assert result.status == status and text in result.found
