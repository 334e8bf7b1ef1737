"""Tests of which sizes are measured; a whole cluster is measured in the tests of programs."""

import pytest

from async_dqn.tools.bench import programs, scale
from async_dqn.tools.bench.case import Case
from async_dqn.tools.bench.scale import Size
from async_dqn.tools.bench.work import Plan


def test_one_number_at_a_time_is_another_and_no_size_comes_twice():
    found = scale.sizes(Plan(num_ps=1, num_workers=2))
    assert found[0] == Size(1, 2, 8), "the plan's own"
    assert {size.envs_per_worker for size in found} == {1, 4, 8, 16, 32}
    assert {size.num_workers for size in found} == {1, 2, 4}
    assert {size.num_ps for size in found} == {1, 2}
    for size in found:
        assert sum(own != other for own, other in zip(found[0], size, strict=True)) <= 1
    assert len(found) == len(set(found)) == 1 + 4 + 2 + 1


def test_a_quick_look_has_fewer_of_everything():
    quick, full = scale.cases(Plan(is_quick=True)), scale.cases(Plan())
    assert 0 < len(quick) < len(full)
    assert {case.name for case in quick} < {case.name for case in full}


def test_names_say_what_is_measured():
    names = [case.name for case in scale.cases(Plan())]
    assert "replay of 10,000" in names and "replay of 100,000" in names
    assert {"1 ps, 2 workers, 8 environments each", "1 ps, 1 worker, 8 environments"} < set(names)
    assert len(set(names)) == len(names)
    assert {case.section for case in scale.cases(Plan())} == {"scale"}


@pytest.mark.parametrize(("gigabytes", "fits"), [(7.0, False), (9.3, True)])
def test_a_replay_that_does_not_fit_is_left_out_and_said(monkeypatch, gigabytes, fits):
    monkeypatch.setattr(scale, "available_bytes", lambda: gigabytes * 1e9)
    said = []
    names = [case.name for case in scale.cases(Plan(say=said.append))]
    assert ("replay of 1,000,000" in names) == fits
    assert said == ([] if fits else ["no replay of 1,000,000: it does not fit into memory"])


def test_a_cluster_is_measured_at_the_size_that_is_named(monkeypatch):
    asked = []
    values = dict.fromkeys(["agent steps/s", "minibatches/s", "cores used", "resident MB", "resident MB: ps 0"], 7.0)

    def cases(plan):
        asked.append((plan.num_ps, plan.num_workers, dict(plan.overrides), plan.seconds))
        return [Case("programs", "baseline", dict), Case("programs", "local", lambda: values)]

    monkeypatch.setattr(programs, "cases", cases)
    plan = Plan(num_ps=2, num_workers=3, seconds=11.0, overrides={"double": True})
    case = next(case for case in scale.cases(plan) if case.name == "2 ps, 3 workers, 16 environments each")
    assert set(case.measure()) == {"agent steps/s", "minibatches/s", "cores used", "resident MB"}
    assert asked == [(2, 3, {"double": True, "envs_per_worker": 16}, 11.0)]
