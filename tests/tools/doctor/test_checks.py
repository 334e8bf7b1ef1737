"""Checks beside each other: their lines, their errors, the deadline."""

import io
import re
import threading
import time

import pytest
from doctor_helpers import IN_TIME

from async_dqn.tools.doctor import checks
from async_dqn.tools.doctor.checks import Result, run_checks


def run(*checks, seconds=IN_TIME, output=None):
    """Exit code and lines of checks that are given as functions."""
    output = output or io.StringIO()
    named = [(f"check {index}", check) for index, check in enumerate(checks)]
    code = run_checks(named, time.monotonic() + seconds, output)
    return code, output.getvalue().splitlines()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_columns_are_aligned_and_counted():
    code, lines = run(
        lambda: [Result("ok", "disk", "1 GB free")],
        lambda: [Result("warning", "load", "2 on\n 1 core", "wait")],
    )
    assert code == 0
    assert lines == [
        "ok       disk     1 GB free",
        "warning  load     2 on 1 core -> wait",
        "1 ok, 1 warning, 0 failures",
    ]


def test_a_failure_is_exit_code_1_and_the_others_are_told_all_the_same():
    code, lines = run(
        lambda: [Result("failure", "a", "found", "remedy")],
        lambda: [Result("warning", "b", "found", "remedy"), Result("warning", "c", "found", "remedy")],
    )
    assert code == 1
    assert lines[-1] == "0 ok, 2 warnings, 1 failure"
    assert len(lines) == 4


@pytest.mark.parametrize("error", [RuntimeError("it broke"), TimeoutError("it broke"), SystemExit("it broke")])
def test_an_exception_in_a_check_is_its_failure_line(error):
    def check():
        yield Result("ok", "a", "before")
        raise error

    code, lines = run(check, lambda: [Result("ok", "b", "found")])
    assert code == 1
    assert lines[0].startswith(f"failure  check 0  {type(error).__name__}: it broke -> ")
    assert lines[-1] == "1 ok, 0 warnings, 1 failure"


def test_a_check_that_hangs_is_given_up_and_holds_up_no_other():
    forever = threading.Event()
    started = time.monotonic()
    code, lines = run(forever.wait, lambda: [Result("ok", "b", "found")], seconds=0.2)
    forever.set()
    assert time.monotonic() - started < 5
    assert code == 0
    assert lines[0].startswith("warning  check 0  did not finish in time -> ")
    assert lines[1] == "ok       b        found"


def test_a_machine_that_gives_no_threads_is_a_failure(monkeypatch):
    def refuse(name):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(checks, "Background", refuse)
    code, lines = run(lambda: [])
    assert code == 1
    assert "RuntimeError: can't start new thread" in lines[0]


@pytest.mark.parametrize(
    ("output", "environ", "colored"),
    [
        (Terminal, {"TERM": "xterm"}, True),
        (Terminal, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal, {"TERM": "dumb"}, False),
        (io.StringIO, {"TERM": "xterm"}, False),
    ],
)
def test_only_a_terminal_that_allows_it_gets_colors(output, environ, colored, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    plain = ["ok       a        found", "1 ok, 0 warnings, 0 failures"]
    _, lines = run(lambda: [Result("ok", "a", "found")], output=output())
    assert (lines != plain) == colored
    assert [re.sub("\033\\[[0-9]*m", "", line) for line in lines] == plain
