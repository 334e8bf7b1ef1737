"""Which cases each section has, without measuring any."""

import os

import pytest

from async_dqn.run.progress import count
from async_dqn.tools.bench import child, programs
from async_dqn.tools.bench.sections import SECTIONS
from async_dqn.tools.bench.work import Plan
from async_dqn.tools.report import studies


@pytest.fixture
def asked(monkeypatch):
    """What was asked of child processes, each of which measures 30 minibatches a second."""
    calls = []

    def measure(function, config, num_processes, num_threads, arguments):
        calls.append((function.rpartition(":")[2], config, num_processes, num_threads, arguments))
        return [{"minibatches/s": 30.0, "agent steps/s": 120.0}] * num_processes

    monkeypatch.setattr(child, "measure", measure)
    return calls


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_has_cases_of_its_own_name_and_fewer_for_a_quick_look(section):
    full, quick = SECTIONS[section](Plan()), SECTIONS[section](Plan(is_quick=True))
    names = [case.name for case in full]
    assert len(set(names)) == len(names) >= len(quick) > 0
    assert {case.section for case in [*full, *quick]} == {section}
    assert {case.name for case in quick} <= set(names)


def test_programs_are_those_in_one_process_and_the_clusters_of_the_plan():
    names = [case.name for case in SECTIONS["programs"](Plan(num_ps=2, num_workers=3))]
    assert names == ["baseline", "fast_dqn", "local, 2 ps + 3 workers", "local, shared memory, 3 workers"]


def test_fast_dqn_stands_beside_dqn_alone():
    names = [case.name for case in SECTIONS["programs"](Plan(work="a2c"))]
    assert names == ["baseline", "local, 1 ps + 2 workers", "local, shared memory, 2 workers"]


def test_every_part_is_a_process_of_its_own_with_one_thread(asked):
    cases = SECTIONS["parts"](Plan(overrides={"seed": 5}))
    for case in cases:
        case.measure()
    assert {"environment", "acting", "experience", "minibatch", "round_trips"} == {call[0] for call in asked}
    assert all((processes, threads) == (1, 1) for _, _, processes, threads, _ in asked)
    assert all(config.network == "nature" and config.seed == 5 for _, config, *_ in asked)
    assert [config.num_ps for name, config, *_ in asked if name == "round_trips"] == [1, 2]


def test_a_limit_is_the_sum_of_as_many_processes_as_there_are_workers(asked):
    results = [case.measure() for case in SECTIONS["limit"](Plan(num_workers=3))]
    assert results[:2] == [
        {"minibatches/s": 3 * 30.0, "agent steps/s": 3 * 120.0},
        {"minibatches/s": 30.0, "agent steps/s": 120.0},
    ]
    num_cores = len(os.sched_getaffinity(0))
    assert [call[2:4] for call in asked[:2]] == [(3, max(1, num_cores // 3)), (1, num_cores)]
    assert [call[4]["num_processes"] for call in asked[:2]] == [3, 1]


@pytest.mark.parametrize("cores, numbers", [(2, [1, 2, 3, 4]), (20, [1, 2, 3, 4, 8, 16])])
def test_scale_has_the_baseline_and_each_number_of_workers_once_up_to_the_cores(monkeypatch, cores, numbers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    names = [case.name for case in SECTIONS["scale"](Plan(num_workers=3))]
    assert names == ["baseline", *(f"1 ps + {count(number, 'worker')}" for number in numbers)]


def test_the_ways_to_share_are_those_of_the_study_on_the_work_of_the_plan(monkeypatch):
    asked = {}
    monkeypatch.setattr(programs, "ours", lambda job, config: (job, config))
    monkeypatch.setattr(programs, "measure", lambda program, seconds: asked.setdefault(len(asked), program))
    cases = SECTIONS["sharing"](Plan(num_workers=3))
    assert [case.name for case in cases] == [kind.name for kind in studies.kinds("sharing", quick=False, given={})]
    for case in cases:
        case.measure()
    found = {case.name: program for case, program in zip(cases, asked.values(), strict=True)}
    assert {config.network for _, config in found.values()} == {"nature"}
    assert {config.num_workers for job, config in found.values() if job == "local"} == {3}
    assert found["async, 2 ps"][1].num_ps == 2
    assert (found["hogwild"][1].store, found["locked"][1].update_mode) == ("shared_memory", "locked")
    assert found["fast_dqn, concurrent"][1].agent == "fast_dqn"
