"""What is said of values from environments that nothing can be learned from."""

import math
import time
from collections.abc import Callable, Iterable

from async_dqn.base.types import BadValue

_FIRST = 3  # so many are told at once, each in a line
_PERIOD = 30.0  # seconds between two lines from then on


class BadValues:
    """Tells of bad values: the first few as they come, then one of them now and then.

    Args:
      env: the environment's id.
      say: takes a line.
      clock: seconds.
    """

    def __init__(self, env: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._env, self._say, self._clock = env, say, clock
        self._count = self._untold = 0
        self._told_at = -math.inf

    def take(self, values: Iterable[BadValue]) -> None:
        """Takes in those of one step."""
        for value in values:
            self._count += 1
            self._untold += 1
            if self._count > _FIRST and self._clock() - self._told_at < _PERIOD:
                continue
            others = f" ({self._untold - 1} others since the last such line)" if self._untold > 1 else ""
            effect = "its game ends before this step, and does not count" if value.step else "another game begins"
            self._say(f"warning: {value.described(self._env)}; {effect}{others}")
            self._untold, self._told_at = 0, self._clock()
