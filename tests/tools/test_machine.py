"""What figures depend on."""

import os
import re

import psutil
import pytest

from async_dqn.tools import machine


def test_a_description_names_what_figures_depend_on():
    found = machine.describe()
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["memory GB"] > 0 and found["cpu"]
    assert re.fullmatch(r"(family \d+, model \d+, stepping \d+)?", found["cpu model"])
    assert {"python", "tensorflow", "numpy", "gymnasium", "ale-py"} <= found["versions"].keys()


@pytest.mark.parametrize(("load", "num_lines"), [(0.5, 0), (3.04, 1)])
def test_a_busy_machine_is_told(monkeypatch, load, num_lines):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    lines = machine.busy()
    assert len(lines) == num_lines and all("3.0" in line for line in lines)


@pytest.mark.parametrize(
    ("cores", "own", "share"),
    [
        ([8.0, 2.0], 9.0, 0.05),  # of 20 seconds that two cores have in 10
        ([8.0, 2.0], 0.0, 0.5),
        ([8.0, 2.0], 11.0, 0.0),  # clocks that do not tick together
        ([8.0, 2.0, 9.0], 9.0, 0.05),  # the third is not this process's
    ],
)
def test_what_others_take_is_the_work_of_these_cores_less_one_s_own(monkeypatch, cores, own, share):
    some, clocks = psutil.cpu_times(percpu=True)[0], iter([0.0, 10.0])
    zero = some._make(0.0 for _ in some)
    looks = iter([[zero for _ in cores], [zero._replace(user=seconds, idle=99.0) for seconds in cores]])
    times = iter([(0.0, 0.0, 0.0, 0.0, 0.0), (own / 2, 0.0, own / 4, own / 4, 7.0)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clocks))
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(looks))
    monkeypatch.setattr(os, "times", lambda: next(times))
    assert machine.Others().share() == pytest.approx(share)
