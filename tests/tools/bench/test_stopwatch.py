"""Tests of timing, on a clock that moves when told."""

import pytest

from async_dqn.base.errors import RunError
from async_dqn.tools.bench.stopwatch import median_seconds, rate


class Clock:
    """Seconds that pass when told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_median_is_of_single_calls_and_leaves_the_slow_first_ones_out():
    clock = Clock()
    costs = iter([50.0] * 5 + [1.0, 9.0, 2.0, 3.0, 2.0] + [2.0] * 100)
    calls = []

    def call():
        cost = next(costs)
        calls.append(cost)
        clock.now += cost

    assert median_seconds(call, 17.0, clock) == 2.0
    assert calls == [50.0] * 5 + [1.0, 9.0, 2.0, 3.0, 2.0], "warm-up, then as many as fit"


def test_few_slow_calls_are_still_some():
    clock = Clock()

    def call():
        clock.now += 60.0

    assert median_seconds(call, 0.0, clock) == 60.0


def test_the_rate_is_of_events_in_the_window_only():
    times = [9.0, 9.9, 10.5, 11.0, 11.5, 12.0, 12.1, 30.0]
    assert rate(times, 10.0, 12.05) == (4 - 1) / (12.0 - 10.5)


@pytest.mark.parametrize("times", [[], [10.5], [9.0, 10.5, 12.0]])
def test_one_event_has_no_rate(times):
    with pytest.raises(RunError, match=f"^{int(10.5 in times)} in 1 s, too few to tell a rate"):
        rate(times, 10.0, 11.0)
