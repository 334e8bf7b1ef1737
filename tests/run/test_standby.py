"""Tests of async_dqn.run.standby, on a store whose copies are told in advance."""

import threading

import numpy as np
import pytest

from async_dqn.base.errors import Outage
from async_dqn.run.standby import Standby
from async_dqn.store.base import Counters, counter_state, saved_counters


class TellingStore:
    """Gives these copies one after another: parameters and target refreshes; None: others were at work.

    Or a function that gives one of these.
    """

    def __init__(self, *copies):
        self.copies = list(copies)
        self.asked = []

    def _state(self, whole):
        found = self.copies.pop(0)
        if callable(found):
            found = found()
        if found is None or isinstance(found, Exception):
            if found:
                raise found
            return None
        online, refreshes = found
        state = counter_state(Counters(updates=int(online), target_refreshes=refreshes))
        state["q/online"] = np.float32([online])
        return state | ({"q/target": np.float32([online])} if whole else {})

    def copy(self, *, whole):
        self.asked.append("whole" if whole else "online")
        return self._state(whole)

    def state(self):
        self.asked.append("hold")
        return self._state(True)


@pytest.fixture
def make(monkeypatch):
    """Gives a standby on such copies; everything of it is due at once."""
    monkeypatch.setattr("async_dqn.run.standby._PERIOD", 0.0)
    monkeypatch.setattr("async_dqn.run.standby._LONGEST_PERIOD", 0.0)
    said = []

    def make(*copies):
        store = TellingStore(*copies)
        moments = iter(range(100))
        standby = Standby(store, lambda: {"moment": next(moments)}, said.append)

        def tick():
            standby.tick()
            standby.settle(10)
            return standby.newest()

        return store, standby, tick

    make.said = said
    return make


def arrays(copy):
    return float(copy.state["q/online"][0]), float(copy.state["q/target"][0])


def test_it_takes_targets_and_slots_once_and_then_the_parameters(make):
    store, standby, tick = make((1, 0), (2, 0))
    assert standby.newest() is None
    assert arrays(tick()) == (1, 1)
    newest = tick()
    assert arrays(newest) == (2, 1) and newest.values == {"moment": 1}
    assert saved_counters(newest.state).updates == 2
    assert newest.whole_at < newest.at
    assert newest.ages(newest.at + 1).startswith("1.0 s old, optimizer and targets ")
    assert store.asked == ["whole", "online"]


def test_it_takes_them_again_once_they_are_old(make, monkeypatch):
    store, _, tick = make((1, 0), (2, 0))
    tick()
    monkeypatch.setattr("async_dqn.run.standby._WHOLE_PERIOD", 0.0)
    assert arrays(tick()) == (2, 2)
    assert store.asked == ["whole", "whole"]


def test_parameters_are_not_put_together_with_targets_that_were_refreshed_since(make):
    store, _, tick = make((1, 0), (2, 1), (3, 1))
    tick()
    assert arrays(tick()) == (3, 3)
    assert store.asked == ["whole", "online", "whole"]


def test_others_are_held_up_where_they_are_always_at_work(make):
    store, _, tick = make(*[None] * 5, (7, 0))
    assert arrays(tick()) == (7, 7)
    assert store.asked == ["whole"] * 5 + ["hold"]


def test_a_copy_that_fails_leaves_the_one_before(make):
    _, _, tick = make((1, 0), Outage("ps 0 has ended"), (3, 0))
    tick()
    assert arrays(tick()) == (1, 1)
    assert arrays(tick()) == (3, 1)


def test_what_a_checkpoint_was_made_of_is_the_newest(make):
    _, standby, tick = make((1, 0))
    tick()
    standby.keep({"q/online": np.float32([9]), "q/target": np.float32([8])}, {"moment": "saved"})
    assert arrays(standby.newest()) == (9, 8) and standby.newest().values == {"moment": "saved"}


def test_parameters_that_are_not_finite_are_no_copy_to_restore(make):
    _, standby, tick = make((1, 0))
    tick()
    standby.keep({"q/online": np.float32([np.nan])}, {})
    assert standby.newest() is None
    assert "not finite" in make.said[0]


def test_what_is_read_for_a_checkpoint_meanwhile_is_newer_than_the_copy(make):
    def overtaken():
        standby.keep({"q/online": np.float32([9]), "q/target": np.float32([9])}, {})
        return (1, 0)

    _, standby, tick = make(overtaken)
    assert arrays(tick()) == (9, 9)


def test_no_copy_is_begun_while_one_is_under_way(make):
    end = threading.Event()
    store, standby, tick = make(lambda: end.wait(10) and (1, 0), (2, 0))
    standby.tick()
    standby.tick()
    end.set()
    standby.settle(10)
    assert arrays(standby.newest()) == (1, 1) and store.asked == ["whole"]


def test_copies_take_a_hundredth_of_the_time_and_are_as_old_as_their_beginning(make, monkeypatch):
    now = [100.0]

    def taking(seconds, *copy):
        def found():
            now[0] += seconds
            return copy or None

        return found

    monkeypatch.setattr("async_dqn.run.standby._PERIOD", 1.0)
    monkeypatch.setattr("async_dqn.run.standby._LONGEST_PERIOD", 5.0)
    monkeypatch.setattr("async_dqn.run.standby.time.monotonic", lambda: now[0])
    held = [*[taking(0.25)] * 5, taking(0.5, 4, 0)]
    store, _, tick = make(taking(0.0, 1, 0), taking(0.03, 2, 0), taking(0.5, 3, 0), *held)
    for wait, online, whole in ((1.0, 1, 1), (3.0, 2, 1), (5.0, 3, 1), (5.0, 4, 4)):
        begin = now[0]
        newest = tick()
        assert arrays(newest) == (online, whole)
        assert newest.at == begin + (1.25 if online == 4 else 0.0)
        assert (newest.whole_at == newest.at) == (online == whole)
        now[0] += wait - 0.01
        tick()
        now[0] += 0.02
    assert not store.copies
