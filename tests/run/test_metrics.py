"""Trackers by hand, and what writers write."""

import json
import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from async_dqn.run import metrics
from async_dqn.run.metrics import EpisodeTracker, RateTracker, TensorBoardWriter
from async_dqn.store.base import Counters, EpisodeReport


def add(tracker, returns, first_step=0):
    """Adds one game per second and step, with these returns."""
    for index, episode_return in enumerate(returns, start=first_step):
        tracker.add(EpisodeReport(0, episode_return, 10, index, 0.0), wall_seconds=float(index))


def test_no_games_have_no_mean():
    tracker = EpisodeTracker(goal=1.0)
    assert math.isnan(tracker.mean)
    assert math.isnan(tracker.best)
    assert tracker.solved_at is None


def test_mean_before_100_games_is_that_of_all_and_no_best_yet():
    tracker = EpisodeTracker(goal=1.0)
    add(tracker, [1.0, 2.0, 6.0])
    assert tracker.mean == (1 + 2 + 6) / 3
    assert math.isnan(tracker.best)
    assert tracker.solved_at is None  # although the mean is above the goal


def test_mean_is_that_of_the_last_100_games():
    tracker = EpisodeTracker(goal=math.inf)
    add(tracker, [1000.0] * 30 + list(range(100)))
    assert tracker.mean == sum(range(100)) / 100


def test_best_is_the_best_mean_of_100_games():
    tracker = EpisodeTracker(goal=math.inf)
    add(tracker, [1.0] * 100)
    assert tracker.best == 1.0
    add(tracker, [3.0] * 50)
    assert tracker.best == (50 * 1 + 50 * 3) / 100
    add(tracker, [-5.0] * 100)
    assert (tracker.mean, tracker.best) == (-5.0, 2.0)


def test_solved_at_the_first_time_that_the_mean_of_100_reaches_the_goal():
    tracker = EpisodeTracker(goal=2.0)
    add(tracker, [1.0] * 100)
    add(tracker, [3.0] * 49, first_step=100)
    assert tracker.solved_at is None
    add(tracker, [3.0], first_step=149)  # (50 * 1 + 50 * 3) / 100 == 2
    assert tracker.solved_at == (149.0, 149)
    add(tracker, [0.0] * 100 + [9.0] * 100, first_step=150)
    assert tracker.solved_at == (149.0, 149)


@pytest.mark.parametrize("returns", [[], [1.0, 2.0], [2.0] * 100 + [0.0] * 20], ids=["none", "few", "solved"])
def test_tracker_round_trip_through_json(returns):
    tracker, restored = EpisodeTracker(goal=2.0), EpisodeTracker(goal=2.0)
    add(tracker, returns)
    restored.restore(json.loads(json.dumps(tracker.state(), allow_nan=False)))
    for each in (tracker, restored):
        add(each, [4.0] * 90)
    np.testing.assert_equal(
        (restored.mean, restored.best, restored.solved_at), (tracker.mean, tracker.best, tracker.solved_at)
    )


@pytest.mark.parametrize(("goal", "solved"), [(2.0, True), (3.0, False), (math.inf, False)])
def test_another_goal_is_still_to_be_reached(goal, solved):
    tracker, restored = EpisodeTracker(goal=2.0), EpisodeTracker(goal=goal)
    add(tracker, [2.0] * 100)
    state = json.loads(json.dumps(tracker.state(), allow_nan=False))
    restored.restore(state)
    assert (restored.solved_at == tracker.solved_at) == (restored.solved_at is not None) == solved
    del state["goal"]  # as versions before have it
    restored.restore(state)
    assert restored.solved_at == tracker.solved_at


def test_tensorboard_gets_every_finite_number_as_a_scalar(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.write({"loss": 0.5, "episodes": 3, "mean": float("nan"), "left": float("inf"), "note": "x"}, step=40)
    writer.close()
    found = EventAccumulator(str(tmp_path)).Reload()  # what TensorBoard itself reads with
    assert set(found.Tags()["tensors"]) == {"loss", "episodes"} == set(found.PluginTagToContent("scalars"))
    values = {
        tag: [(event.step, float(make_ndarray(event.tensor_proto)))]
        for tag in ("loss", "episodes")
        for event in found.Tensors(tag)
    }
    assert values == {"loss": [(40, 0.5)], "episodes": [(40, 3.0)]}


class Clock:
    """In place of the module's `time`."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(metrics, "time", clock)
    return clock


def test_rates_are_per_second_since_the_last_look(clock):
    tracker = RateTracker(Counters(env_steps=1_000, minibatches=100, updates=50, staleness_sum=7, received=9))
    clock.now += 4.0
    now = Counters(env_steps=1_800, minibatches=300, updates=90, staleness_sum=67, received=19, age_sum=40)
    assert tracker.rates(now) == {
        "steps_per_second": (1_800 - 1_000) / 4,
        "minibatches_per_second": (300 - 100) / 4,
        "updates_per_second": (90 - 50) / 4,
        "staleness_mean": (67 - 7) / (90 - 50),
        "data_age_mean": 40 / (19 - 9),
    }
    clock.now += 0.5
    later = tracker.rates(now._replace(env_steps=1_900))
    assert later["steps_per_second"] == (1_900 - 1_800) / 0.5
    assert later["updates_per_second"] == 0
    assert math.isnan(later["staleness_mean"])  # no update, no staleness


def test_staleness_is_that_of_a_gradient_where_several_make_an_update(clock):
    rates = RateTracker(Counters(), per_update=4).rates(Counters(updates=10, staleness_sum=60))
    assert rates["staleness_mean"] == 60 / (10 * 4)


def test_rates_at_once_are_finite(clock):
    rates = RateTracker(Counters()).rates(Counters(env_steps=1, updates=1, received=1))
    assert all(math.isfinite(rate) for rate in rates.values())
