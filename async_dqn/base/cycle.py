"""Where the time of a worker's cycle goes."""

import time
from collections.abc import Callable

PARTS = (
    "acting",
    "environment",
    "experience",
    "gradient",
    "copying",  # parameters and updates, from and for the parameter servers
    "waiting",  # for the parameter servers
    "other",
)


class CycleClock:
    """Every moment of one thread belongs to one part of its cycle, so that the parts add up to all of its time.

    It reads a clock at each change of part, some ten times in a step of all environments: microseconds of milliseconds.

    Args:
      now: seconds on a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self._now = now
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._part, self._since = "other", now()

    def enter(self, part: str) -> str:
        """From here on time belongs to `part`, one of `PARTS`, else ValueError. Gives the one before it."""
        if part not in self._seconds:
            raise ValueError(f"{part!r} is none of {', '.join(PARTS)}")
        now, left = self._now(), self._part
        self._seconds[left] += now - self._since
        self._part, self._since = part, now
        return left

    def seconds(self) -> dict[str, float]:
        """Seconds spent in each part since the beginning."""
        self.enter(self._part)
        return dict(self._seconds)
