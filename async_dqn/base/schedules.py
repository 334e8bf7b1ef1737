"""Schedules over the global count of agent steps, so that N workers together follow one."""

from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(value: float) -> Schedule:
    """The same value at every step."""
    return lambda step: value


def falling(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` in the first `steps` agent steps; constant where `end` is negative."""
    return constant(start) if end < 0 else linear(start, end, begin=0, steps=steps)


def linear(start: float, end: float, *, begin: int, steps: int) -> Schedule:
    """From `start` to `end` in `steps` agent steps after step `begin`; constant before and after."""
    if steps <= 0:
        raise ValueError(f"a linear schedule takes at least one step, not {steps}")

    def value(step: int) -> float:
        fraction = min(max((step - begin) / steps, 0.0), 1.0)
        return start + fraction * (end - start)

    return value
