"""Runs checks at once, each until one common deadline, and prints a line for each thing they find.

Every check has a thread of its own, so that a name server, a driver or a file system that hangs costs one line and not
the answer.
"""

import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout  # another class than the builtin one before Python 3.11
from typing import Any, NamedTuple, TextIO

from async_dqn.base.background import Background

_COLORS = {"ok": "32", "warning": "33", "failure": "31"}


class Result(NamedTuple):
    """One line: `status` is ok, warning or failure; a remedy for the last two."""

    status: str
    thing: str
    found: str
    remedy: str = ""


Check = Callable[[], Iterable[Result]]


def run_checks(checks: Sequence[tuple[str, Check]], end: float, output: TextIO) -> int:
    """Runs all checks at once and prints their lines in order. Gives the exit code.

    Args:
      checks: (what is checked, the check) each.
      end: the time, by `time.monotonic`, when what has not finished is given up.
    """
    is_terminal = output.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = max(len(thing) for thing, _ in checks)
    running = [(thing, start(functools.partial(_all, check))) for thing, check in checks]
    counts: Counter[str] = Counter()
    for thing, future in running:
        for result in _results(thing, future, end):
            counts[result.status] += 1
            print(format_line(result, width, color=is_terminal), file=output, flush=True)
    many = {name: counted(counts[name], name) for name in ("warning", "failure")}
    print(f"{counts['ok']} ok, {many['warning']}, {many['failure']}", file=output, flush=True)
    return 1 if counts["failure"] else 0


def format_line(result: Result, width: int, *, color: bool) -> str:
    """One result as a line: status, thing, what was found, and the remedy behind an arrow."""
    status = f"{result.status:<7}"
    if color:
        status = f"\033[{_COLORS[result.status]}m{status}\033[0m"
    text = " ".join(f"{result.found} -> {result.remedy}".split() if result.remedy else result.found.split())
    return f"{status}  {result.thing:<{width}}  {text}"


def counted(count: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def start(function: Callable[[], Any]) -> Future:
    """The result of a call in a thread that keeps nothing from ending."""
    try:
        thread = Background("doctor")
    except RuntimeError as error:  # no thread can be had
        future: Future = Future()
        future.set_exception(error)
        return future
    future = thread.submit(function)
    thread.close()
    return future


def _all(check: Check) -> list[Result]:
    return list(check())


def _results(thing: str, future: Future, end: float) -> list[Result]:
    try:
        error = future.exception(max(0.0, end - time.monotonic()))
    except FutureTimeout:
        return [Result("warning", thing, "did not finish in time", "try again when the machine is less busy")]
    if error is None:
        return future.result()
    remedy = "an error of the check itself: please report it, with the command line"
    return [Result("failure", thing, f"{type(error).__name__}: {error}", remedy)]
