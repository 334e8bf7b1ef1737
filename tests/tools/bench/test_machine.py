"""What figures depend on."""

import os

import pytest

from async_dqn.tools.bench import machine


def test_a_description_names_what_figures_depend_on():
    found = machine.describe()
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["memory GB"] > 0 and found["cpu"]
    assert {"python", "tensorflow", "numpy", "gymnasium", "ale-py"} <= found["versions"].keys()


@pytest.mark.parametrize(("load", "num_lines"), [(0.5, 0), (3.04, 1)])
def test_a_busy_machine_is_told(monkeypatch, load, num_lines):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    lines = machine.busy()
    assert len(lines) == num_lines and all("3.0" in line for line in lines)
