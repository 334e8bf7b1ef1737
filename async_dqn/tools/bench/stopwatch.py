"""Times calls: how long one takes, and how many there are in a second."""

import statistics
import time
from collections.abc import Callable, Sequence

from async_dqn.base.errors import RunError

_MIN_CALLS = 5


def median_seconds(call: Callable[[], object], seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """The median time of one call, of all that are made in about `seconds`; a fifth as long before is warm-up."""
    _times(call, seconds / 5, clock)
    return statistics.median(_times(call, seconds, clock))


def _times(call: Callable[[], object], seconds: float, clock: Callable[[], float]) -> list[float]:
    times: list[float] = []
    now = begin = clock()
    while now - begin < seconds or len(times) < _MIN_CALLS:
        before = now
        call()
        now = clock()
        times.append(now - before)
    return times


def rate(times: Sequence[float], begin: float, end: float) -> float:
    """Events a second, from the first to the last one in the window: no fraction of an event is lost at its edges.

    Args:
      times: when each event was over, in order, in seconds.
      begin, end: the window.

    Raises:
      RunError: fewer than two events.
    """
    within = [moment for moment in times if begin <= moment <= end]
    if len(within) < 2:
        raise RunError(f"{len(within)} in {end - begin:g} s, too few to tell a rate")
    return (len(within) - 1) / (within[-1] - within[0])
