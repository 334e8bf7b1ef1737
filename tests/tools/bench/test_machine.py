"""Tests of async_dqn.tools.bench.machine."""

import os
import subprocess
import sys

import pytest
from cluster_helpers import wait_until

from async_dqn.tools.bench import machine


def test_a_description_names_what_figures_depend_on():
    found = machine.describe()
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["memory GB"] > 0 and found["cpu"]
    assert found["command"].startswith("async-dqn")
    assert {"async-dqn", "python", "tensorflow", "numpy", "gymnasium", "ale-py"} == found["versions"].keys()
    assert all(found["versions"].values())


@pytest.mark.parametrize(
    ("load", "cores", "lines"),
    [
        (0.5, {"quiet (1)": 0.1}, []),
        (0.6, {}, ["load average 0.6 when it began"]),
        (
            0.0,
            {"b (2)": 0.5, "a (1)": 1.25},
            ["a (1) took 1.2 cores when it began", "b (2) took 0.5 cores when it began"],
        ),
    ],
)
def test_a_busy_machine(load, cores, lines):
    assert machine.why_busy(load, cores) == lines


@pytest.fixture
def spin():
    """Starts a process that takes all it can of a core."""
    started = []

    def start():
        started.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_own_processes_do_not_disturb(spin):
    pid = spin()
    assert not any(f"({one})" in name for one in (pid, os.getpid()) for name in machine.Others().cores())


@pytest.mark.parametrize("is_new", [False, True])
def test_processes_of_others_are_seen(spin, monkeypatch, is_new):
    monkeypatch.setattr(machine, "_own", lambda: {os.getpid()})
    earlier = None if is_new else spin()
    others = machine.Others()
    pid = earlier or spin()

    def share():
        return sum(cores for name, cores in others.cores().items() if name.endswith(f"({pid})"))

    wait_until(lambda: share() > 0.01, 20, "its share is seen")
    assert share() < 2
