"""Limits of control groups: a process's own and those of all above it."""

import os

import pytest

from async_dqn.system import control_groups, processor
from async_dqn.system.memory import available_bytes


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """The folder of all control groups, and that of this process, two below."""
    root, own = tmp_path / "cgroup", tmp_path / "cgroup" / "user" / "job"
    own.mkdir(parents=True)
    (tmp_path / "self").write_text("1:name=systemd:/else\n0::/user/job\n")
    monkeypatch.setattr(control_groups, "_ROOT", root)
    monkeypatch.setattr(control_groups, "_OWN", tmp_path / "self")
    return root, own


def test_they_are_its_own_and_those_above(groups):
    root, own = groups
    assert control_groups.control_groups() == [own, own.parent, root]
    (root.parent / "self").unlink()
    assert control_groups.control_groups() == [root]


@pytest.mark.parametrize("level", [0, 1])
def test_a_limit_of_memory_holds_but_for_what_is_cached(groups, level):
    everything = available_bytes()
    files = {
        "memory.max": "1000000",
        "memory.current": "900000",
        "memory.stat": "anon 300000\nfile 600000\nactive_file 200000\ninactive_file 350000\nshmem 50000",
    }
    for name, text in files.items():
        (groups[level] / name).write_text(f"{text}\n")
    assert available_bytes() == 100_000 + 550_000
    (groups[level] / "memory.max").write_text("max\n")  # there is no limit
    assert available_bytes() > 0.5 * everything


@pytest.mark.parametrize("level", [0, 1])
def test_a_limit_of_cores_holds(groups, monkeypatch, level):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert processor.usable_cores() == 8
    for text, cores in [("max 100000", 8), ("150000 100000", 1.5), ("900000 100000", 8)]:
        (groups[level] / "cpu.max").write_text(f"{text}\n")
        assert processor.usable_cores() == cores
