"""Tests of async_dqn.run.provenance."""

import subprocess

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
    (tmp_path / "provenance.py").touch()
    for command in (["init", "-q"], ["add", "file"], ["commit", "-qm", "first"], ["tag", "v1"]):
        subprocess.run([*git, *command], check=True)
    assert provenance.git_revision() is None  # of somebody else's checkout
    for command in (["add", "provenance.py"], ["commit", "-qm", "second"], ["tag", "v2"]):
        subprocess.run([*git, *command], check=True)
    revision = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert provenance.git_revision() == revision
    (tmp_path / "file").write_text("changed")
    assert provenance.git_revision() == f"{revision}-dirty"
