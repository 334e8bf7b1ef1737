"""Whether a series of measurements grows: a robust slope, how sure it is, and a bound to hold it against."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_NUM_BLOCKS = 30
_MIN_POINTS = 8
_QUANTILE = 1.96  # of the normal distribution: limits hold the slope in 95 of 100 cases


class Slope(NamedTuple):
    """Change for each unit of time, and the limits between which it lies in 95 of 100 cases."""

    value: float
    low: float
    high: float


def slope(times: Sequence[float], values: Sequence[float]) -> Slope:
    """The median of the slopes between all pairs of points (Theil 1950), with limits by their ranks (Sen 1968).

    Up to 29 % of the points may be anything. Points are drawn together to the medians of up to 30 stretches before:
    what neighbours have in common would otherwise pass for certainty.

    Raises:
      ValueError: fewer than 8 points, or times that do not grow.
    """
    if len(times) < _MIN_POINTS:
        raise ValueError(f"{len(times)} points are too few for a slope: at least {_MIN_POINTS} are needed")
    if not (np.diff(times) > 0).all():
        raise ValueError("times must grow")
    x, y = (_block_medians(np.asarray(series, float)) for series in (times, values))
    first, second = np.triu_indices(len(x), 1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first]))
    n = len(x)
    spread = _QUANTILE * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((len(slopes) - spread) / 2) - 1)  # ranks count from 1
    high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


def _block_medians(series: np.ndarray) -> np.ndarray:
    return np.array([np.median(block) for block in np.array_split(series, min(_NUM_BLOCKS, len(series)))])


def verdict(slope: Slope, bound: float, noise: float = 0.0) -> str:
    """Whether a series grows by more than `bound` in a unit of time: "grows", "steady", or "unclear" between these.

    Growth of up to `noise` in a unit of time is unclear, too.
    """
    if slope.low > max(bound, noise):
        return "grows"
    return "steady" if slope.high <= bound else "unclear"
