"""Trackers by hand, and what writers write."""

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.python.summary.summary_iterator import summary_iterator

from async_dqn import metrics
from async_dqn.metrics import CsvWriter, EpisodeTracker, RateTracker, TensorBoardWriter
from async_dqn.parameters import Counters, EpisodeReport


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


def write_rows(path, *rows, fields=("env_steps", "loss", "note")):
    writer = CsvWriter(path, fields)
    for row in rows:
        writer.write(row)
    writer.close()
    return path.read_text().splitlines()


def test_csv_begins_with_its_fields_and_makes_its_folder(tmp_path):
    assert write_rows(tmp_path / "worker-0" / "metrics.csv") == ["env_steps,loss,note"]


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (1, "1"),
        (123456789, "123456789"),
        (0.5, "0.5"),
        (1 / 3, "0.333333"),
        (1234567.0, "1.23457e+06"),
        (float("nan"), ""),
        (float("inf"), "inf"),
        (np.float64("nan"), ""),
        ("a,b", '"a,b"'),
    ],
)
def test_csv_cells(tmp_path, value, cell):
    assert write_rows(tmp_path / "m.csv", {"env_steps": 0, "loss": value, "note": "x"})[1] == f"0,{cell},x"


def test_csv_is_appended_to_and_has_one_header(tmp_path):
    path = tmp_path / "m.csv"
    write_rows(path, {"env_steps": 1, "loss": 0.5, "note": ""})
    lines = write_rows(path, {"note": "x", "loss": 0.25, "env_steps": 2})  # in any order
    assert lines == ["env_steps,loss,note", "1,0.5,", "2,0.25,x"]


def test_csv_begins_an_empty_file_with_its_header(tmp_path):
    (tmp_path / "m.csv").touch()
    assert write_rows(tmp_path / "m.csv") == ["env_steps,loss,note"]


def test_csv_rows_are_there_to_read_before_the_file_is_closed(tmp_path):
    writer = CsvWriter(tmp_path / "m.csv", ["a"])
    writer.write({"a": 1})
    assert (tmp_path / "m.csv").read_text() == "a\n1\n"
    writer.close()


def test_csv_refuses_a_field_that_it_does_not_have(tmp_path):
    with pytest.raises(ValueError, match="losss"):
        write_rows(tmp_path / "m.csv", {"losss": 1.0})


def test_csv_cuts_off_a_last_line_that_a_crash_left_half_written(tmp_path):
    (tmp_path / "m.csv").write_text("env_steps,loss,note\n1,0.5,\n2,0.2")
    lines = write_rows(tmp_path / "m.csv", {"env_steps": 3, "loss": 0.75, "note": "x"})
    assert lines == ["env_steps,loss,note", "1,0.5,", "3,0.75,x"]


def test_csv_writes_a_half_written_header_anew(tmp_path):
    (tmp_path / "m.csv").write_text("env_st")
    assert write_rows(tmp_path / "m.csv") == ["env_steps,loss,note"]
    assert [path.name for path in tmp_path.iterdir()] == ["m.csv"]


def test_csv_moves_a_file_with_other_fields_aside(tmp_path):
    for count, content in enumerate(["env_steps,loss\n1,0.5\n", "\0\0\0\n", "loss,env_steps,note\n", "\n"], start=1):
        (tmp_path / "m.csv").write_text(content + "half")
        assert write_rows(tmp_path / "m.csv", {"note": "y"}) == ["env_steps,loss,note", ",,y"]
        assert (tmp_path / f"m.{count}.csv").read_text() == content
        assert len(list(tmp_path.iterdir())) == 1 + count


def test_csv_keeps_a_row_on_one_line(tmp_path):
    note = 'a\nb\r\nc\u2028d, "e"'
    assert len(write_rows(tmp_path / "m.csv", {"note": note}, {"note": "next"})) == 3
    assert [row["note"] for row in metrics.rows(tmp_path / "m.csv")] == ['a b c d, "e"', "next"]


def written(path, content):
    path.write_bytes(content)
    return path


def test_rows_are_those_with_all_cells(tmp_path):
    content = b'a,b\n1,2\n\n3\n4,5,6\n\0\0\0\n"7,8\n"9",10\r\n\xff,11\n12,1'
    rows = metrics.rows(written(tmp_path / "m.csv", content))
    assert rows == [{"a": "1", "b": "2"}, {"a": "9", "b": "10"}, {"a": "\ufffd", "b": "11"}]


@pytest.mark.parametrize("content", [None, b"", b"a,b", b"a,b\n", b"\n\n"])
def test_without_rows_there_are_none_and_none_are_cut_off(tmp_path, content):
    path = tmp_path / "m.csv"
    if content is not None:
        written(path, content)
    assert metrics.rows(path) == []
    assert metrics.rewind(path, lambda row: False) == 0
    assert path.exists() == (content is not None)


@pytest.mark.parametrize(
    ("content", "left", "dropped"),
    [
        ("n\n1\n2\n3\n", "n\n1\n2\n3\n", 0),
        ("n\n1\n2\n3\n4\n", "n\n1\n2\n3\n", 1),
        ("n\n1\n4\n2\n5\n", "n\n1\n", 3),  # from the first on, whatever follows
        ("n\n9\n", "n\n", 1),
        ("n\n1\n2", "n\n1\n", 0),  # half-written: it may have been 20
        ("n\n1\n9\n2", "n\n1\n", 1),
        ("n\n1\n\n1,2\n3\n", "n\n1\n\n1,2\n3\n", 0),  # what is no row is not judged
        ("n\n1\n1,2\n9\n1,2\n", "n\n1\n1,2\n", 1),
    ],
)
def test_rewind_cuts_off_everything_from_the_first_row_that_is_not_kept(tmp_path, content, left, dropped):
    path = written(tmp_path / "m.csv", content.encode())
    assert metrics.rewind(path, lambda row: int(row["n"]) <= 3) == dropped
    assert path.read_text() == left
    assert metrics.rewind(path, lambda row: int(row["n"]) <= 3) == 0  # twice is once
    assert path.read_text() == left


@settings(deadline=None, max_examples=100, derandomize=True)
@given(content=st.binary(max_size=200) | st.text('0123456789,"\r\n\0n', max_size=60).map(str.encode))
def test_any_content_can_be_read_rewound_and_gone_on_with(content):
    with tempfile.TemporaryDirectory() as name:
        path = written(Path(name) / "m.csv", content)
        before = metrics.rows(path)
        kept = len(before) // 2
        counted = iter(range(len(before)))
        assert metrics.rewind(path, lambda row: next(counted) < kept) == len(before) - kept
        assert metrics.rows(path) == before[:kept]
        assert content.startswith(path.read_bytes())
        assert write_rows(path, {"n": 1}, fields=["n"])[-1] == "1"
        assert metrics.rows(path)[-1] == {"n": "1"}


def test_tensorboard_gets_every_finite_number(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.write({"loss": 0.5, "episodes": 3, "mean": float("nan"), "left": float("inf"), "note": "x"}, step=40)
    writer.close()
    (path,) = tmp_path.iterdir()
    values = {
        value.tag: (event.step, float(tf.make_ndarray(value.tensor)))
        for event in summary_iterator(str(path))
        for value in event.summary.value
    }
    assert values == {"loss": (40, 0.5), "episodes": (40, 3.0)}


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
    tracker = RateTracker(Counters(env_steps=1_000, minibatches=100, updates=50, staleness_sum=7))
    clock.now += 4.0
    now = Counters(env_steps=1_800, minibatches=300, updates=90, staleness_sum=67)
    assert tracker.rates(now) == {
        "steps_per_second": (1_800 - 1_000) / 4,
        "minibatches_per_second": (300 - 100) / 4,
        "updates_per_second": (90 - 50) / 4,
        "staleness_mean": (67 - 7) / (90 - 50),
    }
    clock.now += 0.5
    later = tracker.rates(now._replace(env_steps=1_900))
    assert later["steps_per_second"] == (1_900 - 1_800) / 0.5
    assert later["updates_per_second"] == 0
    assert math.isnan(later["staleness_mean"])  # no update, no staleness


def test_rates_at_once_are_finite(clock):
    rates = RateTracker(Counters()).rates(Counters(env_steps=1, updates=1))
    assert all(math.isfinite(rate) for rate in rates.values())
