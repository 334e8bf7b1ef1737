"""The arithmetic of the counters, and how they are saved."""

import numpy as np
import pytest
from fakes import make_module
from hypothesis import given
from hypothesis import strategies as st

from async_dqn.nn import optimizers
from async_dqn.store.base import Counters, Stop, advance, check_state, counter_state, saved_counters
from async_dqn.store.local import LocalParameterStore


def test_advance_adds_everything_but_the_maxima():
    before = Counters(*range(10, 10 + len(Counters._fields)))._replace(claimed_steps=10, staleness_max=4, stopped=0)
    counts = Counters(*range(1, 1 + len(Counters._fields)))._replace(claimed_steps=16, staleness_max=2, stopped=0)
    after = advance(before, counts, 100)
    sums = {name: getattr(before, name) + getattr(counts, name) for name in Counters._fields}
    assert after == Counters(
        **sums | {"staleness_max": max(4, 2), "stopped": 0, "target_refreshes": before.target_refreshes}
    )
    assert after.claimed_steps == 10 + 16
    assert advance(after, Counters(staleness_max=9), 100).staleness_max == 9


@pytest.mark.parametrize(("first", "second"), [(Stop.SOLVED, Stop.INTERRUPTED), (Stop.INTERRUPTED, Stop.FAILED)])
def test_of_several_reasons_to_stop_the_gravest_counts(first, second):
    for one, other in ((first, second), (second, first)):
        stopped = advance(advance(Counters(), Counters(stopped=one), 100), Counters(stopped=other), 100).stopped
        assert stopped == second > first > 0


@pytest.mark.parametrize(
    ("claimed", "wanted", "stopped", "expected"),
    [
        (90, 16, 0, 100),
        (100, 16, 0, 100),
        (120, 16, 0, 120),
        (90, 5, 0, 90 + 5),
        (90, 5, 1, 90),
        (90, -5, 0, 90 - 5),
        (90, -5, 1, 90 - 5),
    ],
    ids=["the rest", "spent", "overspent already", "all", "stopped", "given back", "given back when stopped"],
)
def test_advance_keeps_within_a_budget_of_100(claimed, wanted, stopped, expected):
    before = Counters(claimed_steps=claimed, stopped=stopped)
    assert advance(before, Counters(claimed_steps=wanted), 100).claimed_steps == expected


def test_steps_are_not_granted_by_the_call_that_comes_after_a_stop():
    stopped = advance(Counters(claimed_steps=4), Counters(stopped=1), 100)
    assert advance(stopped, Counters(claimed_steps=8), 100).claimed_steps == 4


@given(st.integers(1, 200), st.lists(st.integers(0, 60), max_size=20))
def test_claims_never_exceed_the_budget_and_spend_it(budget, wanted):
    counters = Counters()
    for steps in wanted:
        before, counters = counters, advance(counters, Counters(claimed_steps=steps), budget)
        assert 0 <= counters.claimed_steps - before.claimed_steps <= steps
    assert counters.claimed_steps == min(budget, sum(wanted))


@given(st.integers(1, 9), st.lists(st.integers(0, 30), max_size=20))
def test_a_refresh_is_counted_once_whenever_the_minibatches_pass_a_multiple_of_the_period(period, counts):
    counters = Counters()
    for minibatches in counts:
        after = advance(counters, Counters(minibatches=minibatches), 100, period)
        passed = any(count % period == 0 for count in range(counters.minibatches + 1, after.minibatches + 1))
        assert after.target_refreshes == counters.target_refreshes + passed
        counters = after
    assert advance(counters, Counters(minibatches=100), 100).target_refreshes == counters.target_refreshes  # no period


def test_refreshes_are_the_store_s_alone_to_count():
    assert advance(Counters(target_refreshes=2), Counters(target_refreshes=5), 100).target_refreshes == 2


def test_counters_are_saved_by_name():
    counters = Counters(*range(len(Counters._fields)))
    state = counter_state(counters)
    assert saved_counters(state) == counters
    del state["counter/bad_values"]  # of a version that did not count it
    state["counter/moons"] = np.int64(7)  # of one that counts more
    assert saved_counters(state) == counters._replace(bad_values=0)


def test_saved_arrays_that_do_not_fit_are_named_one_of_them_with_both_shapes():
    wanted = [make_module(2, optimizer=optimizers.adam()), make_module(3, "observations")]
    state = LocalParameterStore(wanted, 100).state()
    check_state(state, wanted)
    for name, array, shapes in [
        ("observations/online", None, "online has the shape none, and (3,) is"),
        ("q/slot/m", np.zeros(5), "q/slot/m has the shape (5,), and (2,) is"),
        ("v/online", np.zeros(7), "v/online has the shape (7,), and none is"),
    ]:
        other = {key: one for key, one in state.items() if key != name} | ({} if array is None else {name: array})
        with pytest.raises(ValueError) as caught:
            check_state(other, wanted)
        assert shapes in str(caught.value) and len(str(caught.value)) < 250
