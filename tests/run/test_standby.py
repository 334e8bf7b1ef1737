"""Tests of async_dqn.run.standby, on a store whose copies are told in advance."""

import numpy as np
import pytest

from async_dqn.base.errors import Outage
from async_dqn.run.standby import Standby
from async_dqn.store.base import Counters, counter_state, saved_counters


class TellingStore:
    """Gives these copies one after another: parameters and target refreshes; None: others were at work."""

    def __init__(self, *copies):
        self.copies = list(copies)
        self.asked = []

    def _state(self, whole):
        found = self.copies.pop(0)
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
