"""Tests of slopes and verdicts on made-up series."""

import numpy as np
import pytest

from async_dqn.tools.bench.trend import Slope, slope, verdict

HOURS = np.arange(360) / 360  # an hour, a point every 10 s


def noise(seed: int, size: float) -> np.ndarray:
    return size * np.random.default_rng(seed).standard_normal(len(HOURS))


def test_the_slope_of_a_line_is_known_exactly():
    found = slope(HOURS, 500 + 30 * HOURS)
    assert found == pytest.approx(Slope(30, 30, 30))


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_is_found_under_noise_and_noise_is_no_leak(seed):
    leak = slope(HOURS, 500 + 60 * HOURS + noise(seed, 10))
    assert leak.value == pytest.approx(60, abs=10)
    assert verdict(leak, 20) == "grows"
    assert verdict(slope(HOURS, 500 + noise(seed, 10)), 20) == "steady"


def test_limits_hold_the_slope_about_as_often_as_they_say():
    found = [slope(HOURS, 40 * HOURS + noise(seed, 10)) for seed in range(300)]
    share = np.mean([one.low <= 40 <= one.high for one in found])
    assert 0.90 < share < 0.99


def test_peaks_and_steps_are_no_leak():
    peaks = np.where(np.arange(len(HOURS)) % 12 == 0, 900.0, 500.0)  # as while a checkpoint is written
    assert verdict(slope(HOURS, peaks), 1) == "steady"
    late = np.where(HOURS > 0.8, 530.0, 500.0)
    assert verdict(slope(HOURS, late), 1) == "steady"


def test_a_quarter_of_the_points_may_be_anything():
    values = 500 + 60 * HOURS
    values[: len(HOURS) // 4] = 0
    assert slope(HOURS, values).low >= 59
    values = np.full(len(HOURS), 500.0)
    values[-len(HOURS) // 4 :] = 0
    assert slope(HOURS, values).value == 0


def test_whole_numbers_that_stay_have_no_slope():
    values = 40 + np.random.default_rng(0).integers(0, 2, len(HOURS))
    assert slope(HOURS, values).value == 0


def test_one_descriptor_a_checkpoint_is_found():
    values = 40 + np.floor(HOURS * 30)  # one every two minutes
    found = slope(HOURS, values)
    assert found.value == pytest.approx(30, rel=0.1) and verdict(found, 1) == "grows"


def test_a_slow_leak_over_a_short_time_is_unclear_and_not_steady():
    minute = HOURS / 60
    found = slope(minute, 500 + 40 * minute + noise(1, 5))
    assert found.low < 20 < found.high
    assert verdict(found, 20) == "unclear"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [((20.1, 40), "grows"), ((20, 40), "unclear"), ((-3, 20.1), "unclear"), ((-3, 20), "steady"), ((-9, -5), "steady")],
)
def test_the_limits_decide(limits, expected):
    assert verdict(Slope(20.05, *limits), 20) == expected


def test_growth_within_the_noise_is_unclear():
    assert verdict(Slope(30, 25, 35), 20, noise=40) == "unclear"
    assert verdict(Slope(50, 45, 55), 20, noise=40) == "grows"
    assert verdict(Slope(10, 5, 15), 20, noise=40) == "steady"


def test_what_has_no_slope_is_refused():
    with pytest.raises(ValueError, match="^7 points are too few for a slope: at least 8 are needed$"):
        slope(range(7), range(7))
    with pytest.raises(ValueError, match="^times must grow$"):
        slope([0, 1, 1, 2, 3, 4, 5, 6, 7], range(9))
