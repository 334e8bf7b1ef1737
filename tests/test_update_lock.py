"""requirements.lock, and the tool that writes it: what it makes of the answers of several Pythons."""

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "launch" / "update_lock.py"


def pins() -> list[Requirement]:
    lines = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("update_lock", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_version_that_all_share_is_one_line_and_the_project_itself_none(tool):
    resolved = {"3.10": {"numpy": "2", "async-dqn": "0.1"}, "3.11": {"numpy": "2", "async-dqn": "0.1"}}
    assert tool.merge(resolved) == ["numpy==2"]


def test_versions_that_differ_are_told_apart_by_markers(tool):
    resolved = {
        "3.10": {"b": "1", "old": "5"},
        "3.11": {"b": "2", "a": "9"},
        "3.12": {"b": "2"},
        "3.13": {"b": "3", "a": "9"},
    }
    assert tool.merge(resolved) == [
        'a==9 ; python_version >= "3.11" and python_version < "3.12"',
        'a==9 ; python_version >= "3.13"',
        'b==1 ; python_version < "3.11"',
        'b==2 ; python_version >= "3.11" and python_version < "3.13"',
        'b==3 ; python_version >= "3.13"',
        'old==5 ; python_version < "3.11"',
    ]


def test_the_lock_is_what_it_writes(tool, monkeypatch, tmp_path):
    """Reading requirements.lock back and merging it again gives its very lines, under its very header."""
    pythons = re.search(r"update_lock.py (.*)", (ROOT / "requirements.lock").read_text())[1].split()
    wanted = pins()

    def resolve(python):
        version = python.removeprefix("python")
        holds = [one for one in wanted if one.marker is None or one.marker.evaluate({"python_version": version})]
        return version, {one.name: str(one.specifier).removeprefix("==") for one in holds}

    monkeypatch.setattr(tool, "resolve", resolve)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    tool.main(pythons)
    assert (tmp_path / "requirements.lock").read_text() == (ROOT / "requirements.lock").read_text()


def test_without_a_python_it_says_how_it_is_called():
    called = subprocess.run([sys.executable, str(TOOL)], capture_output=True, text=True)
    assert called.returncode == 1
    assert "launch/update_lock.py python3.10 python3.11" in called.stderr


def test_lock_is_exact():
    for pin in pins():
        assert [specifier.operator for specifier in pin.specifier] == ["=="], pin
    for python in ("3.10", "3.11", "3.12", "3.13"):
        names = [pin.name for pin in pins() if not pin.marker or pin.marker.evaluate({"python_version": python})]
        assert len(names) == len(set(names))


def test_lock_covers_setup(monkeypatch):
    metadata: dict = {}
    monkeypatch.setattr(setuptools, "setup", lambda **keywords: metadata.update(keywords))
    runpy.run_path(str(ROOT / "setup.py"))
    for python in ("3.10", "3.11", "3.12", "3.13"):
        versions = {
            canonicalize_name(pin.name): next(iter(pin.specifier)).version
            for pin in pins()
            if not pin.marker or pin.marker.evaluate({"python_version": python})
        }
        for line in metadata["install_requires"] + metadata["extras_require"]["dev"]:
            requirement = Requirement(line)
            assert requirement.specifier.contains(versions[requirement.name]), (python, line)
