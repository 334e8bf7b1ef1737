"""Learning curves reduced to a number: every case gets the same seeds, and what is not reached says so."""

import pytest

from async_dqn.base.errors import RunError
from async_dqn.tools.bench import learning
from async_dqn.tools.bench.work import Plan


def test_all_cases_get_the_same_seeds_one_each_repetition(monkeypatch):
    asked = []
    monkeypatch.setattr(learning, "learn", lambda job, settings, seed: asked.append((job, seed)) or {})
    cases = learning.cases(Plan())
    for _ in range(3):
        for case in cases:
            case.measure()
    assert [seed for _, seed in asked] == [seed for seed in range(3) for _ in cases]
    assert [job for job, _ in asked] == ["baseline", *["local"] * (len(cases) - 1)] * 3


def test_the_cluster_is_the_plan_s(monkeypatch):
    asked = []
    monkeypatch.setattr(learning, "learn", lambda job, settings, seed: asked.append(settings) or {})
    for case in learning.cases(Plan(num_ps=2, num_workers=3)):
        case.measure()
    assert asked[0] == {}
    sizes = [(one["num_ps"], one["num_workers"]) for one in asked[1:]]
    assert sizes == [(2, 3)] * (len(sizes) - 1) + [(2, 6)]  # the last is on twice the workers
    assert {one["local_steps"] for one in asked[1:]} >= {0, 4, 8}


def test_settings_of_the_plan_are_everyone_s_but_for_what_a_case_changes(monkeypatch):
    asked = []
    monkeypatch.setattr(learning, "learn", lambda job, settings, seed: asked.append(settings) or {})
    for case in learning.cases(Plan(overrides={"compute_dtype": "bfloat16", "wire_dtype": "float32"})):
        case.measure()
    assert {one["compute_dtype"] for one in asked} == {"bfloat16"}
    assert sorted({one["wire_dtype"] for one in asked}) == ["bfloat16", "float32"]


def test_a_goal_that_was_not_reached_counts_as_the_whole_budget():
    found = learning.learn("baseline", {}, seed=0, total_steps=1_100)
    assert found["steps to 195"] == 1_100
    assert found["% of seeds that reached it"] == 0
    assert found["seconds to 195"] > 0


def test_a_goal_that_was_reached_counts_from_when_it_was(monkeypatch):
    monkeypatch.setattr(learning, "GOAL", 5.0)  # any policy's
    found = learning.learn("baseline", {}, seed=0, total_steps=20_000)
    assert found["% of seeds that reached it"] == 100
    assert 100 * 5 <= found["steps to 5"] < 20_000


def test_a_run_that_fails_says_why():
    with pytest.raises(RunError, match=r"seed 3: exit code 2: .*unknown command 'nothing'"):
        learning.learn("nothing", {}, seed=3)
