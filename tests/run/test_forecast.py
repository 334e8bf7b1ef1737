"""When the goal is likely, said once."""

import itertools

import pytest

from async_dqn.run.forecast import Forecast


def rows(rate, warmup_rows=3, warmup_rate=2_000, first=0):
    """A row every two seconds: warm-up without learning, which is faster, then learning."""
    steps = first
    for number in itertools.count(1):
        is_warmup = number <= warmup_rows
        steps += 2 * (warmup_rate if is_warmup else rate)
        yield {"wall_seconds": 2.0 * number, "env_steps": steps, "updates": 0 if is_warmup else number}


def said(forecast, made, number=40):
    return [line for row in itertools.islice(made, number) if (line := forecast.line(row, 18.0))]


def test_it_is_said_once_by_the_speed_of_learning_alone():
    (line,) = said(Forecast((300_000, 900_000)), rows(rate=500))
    # 12,000 agent steps in 6 seconds of warm-up, then 500 a second.
    assert "18 is likely after 9:42 to 29:42" in line and "at 500 steps/s" in line
    assert "past runs needed 300,000 to 900,000 agent steps" in line


def test_a_single_run_is_told_as_one():
    (line,) = said(Forecast((300_000, 300_000)), rows(rate=500))
    assert "after about 9:42: a past run needed 300,000 agent steps" in line


@pytest.mark.parametrize(
    ("needed", "first"), [(None, 0), ((300_000, 900_000), 400_000)], ids=["not known", "past the least of them"]
)
def test_nothing_is_said_where_it_would_say_nothing(needed, first):
    assert said(Forecast(needed), rows(rate=500, first=first)) == []
