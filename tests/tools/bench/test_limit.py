"""Tests of the learner-only limit: on CartPole, with real processes."""

import os

import pytest

from async_dqn.settings.config import PRESETS
from async_dqn.tools.bench import child, limit
from async_dqn.tools.bench.work import Plan, config

CARTPOLE = {"env": "CartPole-v1", **PRESETS["cartpole"]}


def test_there_is_a_case_for_all_workers_and_one_for_a_single_process():
    names = [case.name for case in limit.cases(Plan(num_workers=3))]
    assert names[:2] == ["learner only, 3 processes, float32", "learner only, 1 process, all threads, float32"]
    assert len(set(names)) == len(names)
    assert {case.section for case in limit.cases(Plan())} == {"limit"}


def test_processes_and_threads_are_as_named_and_rates_add_up(monkeypatch):
    asked = []

    def measure_together(function, settings, num_children, *, num_threads, seconds):
        asked.append((num_children, num_threads, settings, seconds))
        return [{"minibatches/s": 30.0}] * num_children

    monkeypatch.setattr(child, "measure_together", measure_together)
    plan = Plan(num_workers=3, is_quick=True)
    results = [case.measure() for case in limit.cases(plan)[:2]]
    assert results == [
        {"minibatches/s": 90.0, "agent steps/s": 90.0 * 4},  # one minibatch for 4 agent steps
        {"minibatches/s": 30.0, "agent steps/s": 30.0 * 4},
    ]
    num_cores = len(os.sched_getaffinity(0))
    assert [(count, threads) for count, threads, *_ in asked] == [(3, max(1, num_cores // 3)), (1, num_cores)]
    assert asked[0][2] == config(plan) and asked[0][3] < limit_seconds(is_quick=False)


def limit_seconds(*, is_quick: bool) -> float:
    return limit.cases(Plan(is_quick=is_quick))[0].measure.args[-1]


@pytest.mark.cluster
def test_real_processes_compute_minibatches():
    case = limit.cases(Plan(is_quick=True, overrides=CARTPOLE))[0]
    values = case.measure()
    assert values["minibatches/s"] > 1
    assert values["agent steps/s"] == values["minibatches/s"] * CARTPOLE["train_period"]
