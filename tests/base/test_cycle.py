"""The clock of a worker's cycle, by a clock that the test turns on."""

import pytest

from async_dqn.base.cycle import PARTS, CycleClock


class Hands:
    now = 100.0

    def __call__(self):
        return self.now


def test_every_second_belongs_to_one_part():
    hands = Hands()
    clock = CycleClock(hands)
    for part, seconds in [("acting", 2), ("gradient", 30), ("waiting", 5), ("gradient", 4)]:
        hands.now += 1  # of what was entered before
        clock.enter(part)
        hands.now += seconds
    assert clock.seconds() == {
        **dict.fromkeys(PARTS, 0.0),
        "other": 1,
        "acting": 2 + 1,
        "gradient": 30 + 1 + 4,
        "waiting": 5 + 1,
    }
    assert sum(clock.seconds().values()) == hands.now - 100


def test_what_enters_for_a_while_can_go_back():
    hands = Hands()
    clock = CycleClock(hands)
    clock.enter("gradient")
    part = clock.enter("waiting")
    assert part == "gradient"
    assert clock.enter(part) == "waiting"


def test_a_part_that_goes_on_is_counted_up_to_now():
    hands = Hands()
    clock = CycleClock(hands)
    clock.enter("experience")
    for seconds in (3, 7):
        hands.now += seconds
        before = clock.seconds()["experience"]
    assert before == 3 + 7


def test_unknown_parts_are_refused():
    with pytest.raises(ValueError, match="sleeping"):
        CycleClock(Hands()).enter("sleeping")
