"""Schedules at their ends, between and beyond."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.base.schedules import constant, linear


@pytest.mark.parametrize("step", [0, 1, 10**9])
def test_constant(step):
    assert constant(0.3)(step) == 0.3


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 1.0),
        (100, 1.0),
        (101, 1.0 + 1 / 50 * (0.1 - 1.0)),
        (125, 1.0 + 25 / 50 * (0.1 - 1.0)),
        (150, 0.1),
        (151, 0.1),
        (10**9, 0.1),
    ],
    ids=["at zero", "at the beginning", "one step in", "in the middle", "at the end", "after it", "long after it"],
)
def test_linear(step, expected):
    assert linear(1.0, 0.1, begin=100, steps=50)(step) == pytest.approx(expected)


def test_linear_in_one_step():
    schedule = linear(0.0, 4.0, begin=3, steps=1)
    assert [schedule(step) for step in (2, 3, 4, 5)] == [0.0, 0.0, 4.0, 4.0]


@settings(deadline=None)
@given(st.floats(-5, 5), st.floats(-5, 5), st.integers(0, 50), st.integers(1, 50), st.integers(0, 200))
def test_linear_moves_one_way_and_stays_between_its_ends(start, end, begin, steps, step):
    schedule = linear(start, end, begin=begin, steps=steps)
    now, later = schedule(step), schedule(step + 1)
    assert min(start, end) - 1e-9 <= now <= max(start, end) + 1e-9
    assert (later - now) * (end - start) >= -1e-9


@pytest.mark.parametrize("steps", [0, -1])
def test_linear_without_steps_is_refused(steps):
    with pytest.raises(ValueError, match=f"at least one step, not {steps}"):
        linear(1.0, 0.0, begin=0, steps=steps)
