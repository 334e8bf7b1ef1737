"""Tests of async_dqn.run.provenance."""

import platform
import subprocess
from pathlib import Path

from async_dqn.run import provenance


def test_a_package_that_is_missing_has_no_version(monkeypatch):
    monkeypatch.setattr(provenance, "PACKAGES", ("no-such-package", "numpy"))
    found = provenance.versions()
    assert found["no-such-package"] is None
    assert found["numpy"] and found["python"]


def test_a_revision_tells_of_local_changes(monkeypatch, tmp_path):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    assert provenance.git_revision() is None
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-C", str(tmp_path)]
    (tmp_path / "file").touch()
    for command in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"], ["tag", "v1"]):
        subprocess.run([*git, *command], check=True)
    revision = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert provenance.git_revision() == revision
    (tmp_path / "file").write_text("changed")
    assert provenance.git_revision() == f"{revision}-dirty"


def test_the_processor_is_what_the_system_says_of_the_first_core(monkeypatch):
    cores = ["processor\t: 0\nmodel name\t: Fast (R) 3\nflags\t\t: fma avx2", "processor\t: 1\nmodel name\t: Slow"]
    monkeypatch.setattr(Path, "read_text", lambda path: "\n\n".join(cores))
    assert provenance.cpu_info() == {"processor": "0", "model name": "Fast (R) 3", "flags": "fma avx2"}
    assert provenance.cpu_name() == "Fast (R) 3"


def test_without_its_file_the_processor_is_the_machine_s_kind(monkeypatch):
    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert provenance.cpu_info() == {}
    assert provenance.cpu_name() == platform.machine()
