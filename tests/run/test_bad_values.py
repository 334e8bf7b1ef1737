"""bad_values.py: what is said, and how often."""

import math

from async_dqn.base.types import BadValue
from async_dqn.run.bad_values import BadValues


def test_the_first_are_told_at_once_and_then_one_now_and_then():
    lines: list[str] = []
    now = [0.0]
    values = BadValues("My-v0", lines.append, clock=lambda: now[0])
    values.take([BadValue(3, 12, "reward", math.nan), BadValue(4, 0, "observation[1]", math.inf)])
    assert lines == [
        "warning: My-v0, environment 3: reward is nan at step 12 of its game; its game ends before this step, and does "
        "not count",
        "warning: My-v0, environment 4: observation[1] is inf at the start of a game; another game begins",
    ]
    for _ in range(10):
        values.take([BadValue(0, 1, "reward", math.nan)])
        now[0] += 4
    assert len(lines) == 4  # the third, and one after 30 seconds
    assert lines[-1].endswith("(7 others since the last such line)")
    values.take([])
    assert len(lines) == 4
