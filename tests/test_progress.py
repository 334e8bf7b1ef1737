"""The progress line, and where it is written."""

import io

import pytest

from async_dqn import progress
from async_dqn.progress import Progress, format_seconds, progress_line


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
