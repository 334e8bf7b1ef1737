"""The progress line, and where it is written."""

import io
import os
import re
import threading

import pytest

from async_dqn.run import progress
from async_dqn.run.progress import Progress, count, format_seconds, progress_line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00"),
        (59.99, "0:59"),
        (60, "1:00"),
        (59 * 60 + 59, "59:59"),
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


@pytest.mark.parametrize(
    ("change", "needed", "left"),
    [
        ({}, (310_000, 850_000), "likely 1:00 to 10:00"),
        ({}, (310_000, 310_000), "likely about 1:00"),
        ({"env_steps": 400_000}, (310_000, 850_000), "likely up to 7:30"),
        ({"env_steps": 850_000}, (310_000, 850_000), "at most 2:30"),
        ({}, (310_000, 2_000_000), "likely 1:00 to 12:30"),  # the budget ends it
        ({}, (1_000_000, 2_000_000), "at most 12:30"),
        ({"updates": 0}, (310_000, 850_000), "at most 12:30"),  # it is as fast as it is without learning
        ({"steps_per_second": 0.0}, (310_000, 850_000), "at most -"),
    ],
)
def test_a_line_says_when_the_goal_is_likely_where_past_runs_tell(change, needed, left):
    line = progress_line(ROW | {"updates": 9} | change, 1_000_000, 18.0, needed)
    assert line.endswith(f" | 4:10 gone, {left} left")
    assert len(line) < len(progress_line(ROW, 1_000_000, 18.0)) + 10


def test_a_line_shows_what_the_agent_and_the_store_have():
    ppo = {name: value for name, value in ROW.items() if name not in ("epsilon", "staleness_mean")} | {"entropy": 1.234}
    line = progress_line(ppo, 1_000_000)
    assert "entropy 1.23" in line.split(" | ")
    assert "epsilon" not in line and "staleness" not in line
    assert "epsilon" not in progress_line(ROW | {"epsilon": float("nan")}, 1_000_000)  # as in a row read from a file


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """In place of the module's `time`."""

    now = 100.0

    def monotonic(self):
        return self.now


def screen(text):
    """What a terminal shows of it, line by line."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\d*[AJ]|[\r\n]|[^\r\n\x1b]+", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part.endswith("A") and part[0] == "\x1b":
            row -= int(part[2:-1])
        elif part == "\x1b[J":
            lines[row:] = [lines[row][:column]]
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
    return lines


def test_elsewhere_than_on_a_terminal_one_whole_line_a_period(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    stream = io.StringIO()
    shown = Progress(stream, plain_period=30.0)
    for seconds, line in [(0, "a"), (29.5, "b"), (0.5, "c"), (1, "d"), (30, "e")]:
        clock.now += seconds
        shown.show(line, ["below"])
    shown.say("saved")
    assert stream.getvalue() == "a\nc\ne\nsaved\n"


def test_plain_rewrites_nothing_on_a_terminal_either():
    stream = Terminal()
    shown = Progress(stream, plain=True)
    assert not shown.is_in_place
    shown.show("running", ["below"])
    shown.say("saved")
    assert stream.getvalue() == "running\nsaved\n"


def test_a_terminal_that_can_move_no_cursor_gets_whole_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert not Progress(Terminal()).is_in_place


def test_what_somebody_else_writes_stands_below_the_line():
    stream = Terminal()
    shown = Progress(stream)
    for _ in range(2):
        Progress.leave()  # nothing is shown
    shown.show("running")
    Progress.leave()
    stream.write("an error\n")
    shown.show("on")
    assert screen(stream.getvalue()) == ["running", "an error", "on"]
    shown.say("saved")
    Progress.leave()
    assert screen(stream.getvalue()) == ["running", "an error", "saved", ""]


def test_what_another_one_says_stands_below_the_line():
    stream = Terminal()
    Progress(stream).show("running")
    Progress(stream).say("finished")
    assert screen(stream.getvalue()) == ["running", "finished", ""]


def test_on_a_terminal_the_line_is_rewritten_and_what_is_said_stays_above_it():
    stream = Terminal()
    shown = Progress(stream)
    shown.say("first")
    shown.show("long line")
    shown.show("short")
    assert screen(stream.getvalue()) == ["first", "short"]
    shown.say("saved")
    shown.show("on")
    assert screen(stream.getvalue()) == ["first", "saved", "on"]


def test_on_a_terminal_lines_below_are_rewritten_with_the_one_above_them():
    stream = Terminal()
    shown = Progress(stream)
    shown.show("running", ["one", "two"])
    assert screen(stream.getvalue()) == ["running", "one", "two"]
    shown.show("on", ["three"])
    assert screen(stream.getvalue()) == ["on", "three"]
    shown.say("saved")
    shown.show("on", ["four"])
    shown.show("alone")
    assert screen(stream.getvalue()) == ["saved", "alone"]


def test_lines_are_cut_to_the_terminal_and_left_out_where_it_is_too_low(monkeypatch):
    monkeypatch.setattr(progress.shutil, "get_terminal_size", lambda: os.terminal_size((5, 3)))
    stream = Terminal()
    shown = Progress(stream)
    shown.show("running", ["longer", "b"])
    assert screen(stream.getvalue()) == ["runn", "long", "b"]
    shown.show("running", ["a", "b", "c"])
    assert screen(stream.getvalue()) == ["runn"]


def test_a_line_that_another_thread_says_meanwhile_waits_for_the_lines_shown():
    class Slow(Terminal):
        def write(self, text):
            super().write(text)
            if "running" in text:
                is_writing.set()
                is_said.wait(0.3)  # in vain, where lines wait for each other

    is_writing, is_said = threading.Event(), threading.Event()
    stream = Slow()
    shown = Progress(stream)

    def say():
        is_writing.wait()
        shown.say("saved")
        is_said.set()

    thread = threading.Thread(target=say)
    thread.start()
    shown.show("running", ["one"])
    thread.join()
    shown.show("on", ["two"])
    assert screen(stream.getvalue()) == ["saved", "on", "two"]
