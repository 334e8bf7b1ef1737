"""When a run is likely at its goal: from its own speed, and the agent steps that past runs needed."""

from collections.abc import Mapping
from typing import Any

from async_dqn.run.progress import format_seconds, likely

_SECONDS = 10.0  # of learning, after which the speed is known


class Forecast:
    """Says once when the goal is likely, as soon as the run has learned for some seconds.

    Args:
      needed: the least and the most agent steps that past runs needed; None: not known, and nothing is said.
    """

    def __init__(self, needed: tuple[int, int] | None):
        self._needed = needed
        self._first: tuple[float, int] | None = None  # wall seconds and agent steps when learning had begun

    def line(self, row: Mapping[str, Any], goal: float) -> str:
        """What there is to say with this row of global metrics; mostly nothing, which is ""."""
        if self._needed is None or not row["updates"] > 0:
            return ""
        wall, steps = row["wall_seconds"], row["env_steps"]
        self._first = self._first or (wall, steps)
        seconds = wall - self._first[0]
        if seconds < _SECONDS or steps <= self._first[1]:
            return ""
        (least, most), self._needed = self._needed, None
        rate = (steps - self._first[1]) / seconds
        if steps >= least:  # a run that was gone on with
            return ""
        ends = (wall + (end - steps) / rate for end in (least, most))
        past = f"past runs needed {least:,} to {most:,}" if least < most else f"a past run needed {least:,}"
        return (
            f"at {rate:.0f} steps/s a mean return of {goal:g} is likely after {likely(*map(format_seconds, ends))}: "
            f"{past} agent steps"
        )
