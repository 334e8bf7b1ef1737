"""The progress line, and where it is written."""

import io
import os

import pytest

from async_dqn.run import progress
from async_dqn.run.progress import Progress, count, format_seconds, progress_line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (5.9, "0:05"),
        (59.99, "0:59"),
        (60, "1:00"),
        (2 * 60 + 3, "2:03"),
        (59 * 60 + 59, "59:59"),
        (3600, "1:00:00"),
        (1 * 3600 + 2 * 60 + 3, "1:02:03"),
        (100 * 3600, "100:00:00"),
        (float("inf"), "-"),
        (float("nan"), "-"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("number", "what", "text"),
    [(1, "restart", "1 restart"), (2, "restart", "2 restarts"), (0, "row", "0 rows"), (3, "process", "3 processes")],
)
def test_counts_are_in_words(number, what, text):
    assert count(number, what) == text


ROW = {
    "env_steps": 250_000,
    "steps_per_second": 1_000.0,
    "updates_per_second": 62.4,
    "mean_return_100": -20.26,
    "episodes": 37,
    "epsilon": 0.754,
    "staleness_mean": 1.04,
    "wall_seconds": 250.0,
}


def test_line():
    assert progress_line(ROW, 1_000_000).split(" | ") == [
        "250,000/1,000,000 steps (25%)",
        "1000 steps/s",
        "62 updates/s",
        "return -20.3 (37 games)",
        "epsilon 0.75",
        "staleness 1.0",
        "4:10 gone, 12:30 left",  # 250 s; 750,000 steps at 1,000 a second
    ]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"mean_return_100": float("nan"), "episodes": 0}, "return -"),
        ({"episodes": 1_234}, "return -20.3 (100 games)"),
        ({"staleness_mean": float("nan")}, "staleness -"),
        ({"steps_per_second": 0.0}, "4:10 gone, - left"),
        ({"env_steps": 1_000_000}, "4:10 gone, 0:00 left"),
        ({"env_steps": 1_000_000}, "1,000,000/1,000,000 steps (100%)"),
    ],
)
def test_line_where_something_is_not_known_or_done(change, part):
    assert part in progress_line(ROW | change, 1_000_000).split(" | ")


def test_a_line_names_the_goal_that_may_end_the_run_early():
    parts = progress_line(ROW, 1_000_000, 18.0).split(" | ")
    assert "return -20.3 of 18 (37 games)" in parts
    assert "4:10 gone, at most 12:30 left" in parts
    assert "return - of 18" in progress_line(ROW | {"mean_return_100": float("nan")}, 1_000_000, 18.0).split(" | ")


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """In place of the module's `time`."""

    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_elsewhere_than_on_a_terminal_one_whole_line_a_period(clock):
    stream = io.StringIO()
    shown = Progress(stream, plain_period=30.0)
    for seconds, line in [(0, "a"), (29.5, "b"), (0.5, "c"), (1, "d"), (30, "e")]:
        clock.now += seconds
        shown.show(line)
    assert stream.getvalue() == "a\nc\ne\n"


def test_elsewhere_than_on_a_terminal_there_are_no_control_characters(clock):
    stream = io.StringIO()
    shown = Progress(stream)
    shown.show("running")
    shown.say("saved")
    assert stream.getvalue() == "running\nsaved\n"


def test_on_a_terminal_the_line_is_rewritten_and_a_longer_one_wiped(clock):
    stream = Terminal()
    shown = Progress(stream)
    shown.show("long line")
    shown.show("short")
    assert stream.getvalue() == "\rlong line" + "\rshort" + " " * (len("long line") - len("short"))


def test_on_a_terminal_what_is_said_stays_above_the_line(clock):
    stream = Terminal()
    shown = Progress(stream)
    shown.say("first")
    shown.show("running")
    shown.say("saved")
    shown.show("on")
    assert stream.getvalue() == "first\n" + "\rrunning" + "\r" + " " * len("running") + "\rsaved\n" + "\ron"


def test_on_a_terminal_lines_below_are_wiped_with_the_one_above_them(clock):
    stream = Terminal()
    shown = Progress(stream)
    shown.show("running", ["one", "two"])
    shown.show("on", ["three"])
    shown.say("saved")
    shown.show("alone")
    up_two, up_one = "\r\x1b[2A\x1b[J", "\r\x1b[1A\x1b[J"
    assert stream.getvalue() == f"\rrunning\none\ntwo{up_two}\ron\nthree{up_one}saved\n\ralone"


def test_lines_below_go_once_there_are_none(clock):
    stream = Terminal()
    shown = Progress(stream)
    shown.show("running", ["one"])
    shown.show("on")
    shown.show("x")
    assert stream.getvalue() == "\rrunning\none\r\x1b[1A\x1b[J\ron\rx "


def test_lines_are_cut_to_the_terminal_and_left_out_where_it_is_too_low(clock, monkeypatch):
    monkeypatch.setattr(progress.shutil, "get_terminal_size", lambda: os.terminal_size((5, 3)))
    stream = Terminal()
    shown = Progress(stream)
    shown.show("running", ["longer", "b"])
    shown.show("running", ["a", "b", "c"])
    assert stream.getvalue() == "\rrunn\nlong\nb\r\x1b[2A\x1b[J\rrunn"


def test_plain_rewrites_nothing_on_a_terminal_either(clock):
    stream = Terminal()
    shown = Progress(stream, plain=True)
    assert not shown.is_in_place
    shown.show("running", ["below"])
    shown.say("saved")
    assert stream.getvalue() == "running\nsaved\n"
