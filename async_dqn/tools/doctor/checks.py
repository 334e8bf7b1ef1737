"""Runs checks at once, each in a thread of its own: what hangs costs one line, and not the answer."""

import importlib
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout  # another class than the builtin one before Python 3.11
from typing import Any, NamedTuple, TextIO

from async_dqn.base.background import Background


class Result(NamedTuple):
    """One line: ok, warning or failure; what was found; what to do, which is printed for the last two."""

    status: str
    found: str
    remedy: str = ""


Check = Callable[[], Iterable[Result]]
_IMPORTING = threading.Lock()


def start(function: Callable[[], Any]) -> Future:
    """The result of a call in a thread that keeps nothing from ending."""
    thread = Background("doctor")
    future = thread.submit(function)
    thread.close()
    return future


def preflight() -> types.ModuleType:
    """`run.preflight`, which needs what may be missing.

    Of two threads that import it at once, and fail, one would be told of a module that is half there, and not why.

    Raises:
      ImportError: of what is missing.
    """
    with _IMPORTING:
        return importlib.import_module("async_dqn.run.preflight")


def run_checks(checks: Sequence[tuple[str, Check]], end: float, output: TextIO) -> int:
    """Runs all checks at once and prints their lines in order. Gives the exit code: 1 if one has failed.

    Args:
      checks: (what is checked, the check) each.
      end: the time, by `time.monotonic`, when what has not finished is given up.
    """
    width = max(len(thing) for thing, _ in checks)
    running = [(thing, start(lambda check=check: list(check()))) for thing, check in checks]  # type: ignore[misc]
    counts: Counter[str] = Counter()
    for thing, future in running:
        for status, found, remedy in _results(future, end):
            counts[status] += 1
            text = " ".join(f"{found} -> {remedy}".split() if status != "ok" else found.split())
            print(f"{status:<7}  {thing:<{width}}  {text}", file=output, flush=True)
    print(f"ok: {counts['ok']}, warnings: {counts['warning']}, failures: {counts['failure']}", file=output, flush=True)
    return 1 if counts["failure"] else 0


def _results(future: Future, end: float) -> list[Result]:
    try:
        error = future.exception(max(0.0, end - time.monotonic()))
    except FutureTimeout:
        return [Result("warning", "did not finish in time", "try again when the machine is less busy")]
    if error is None:
        return future.result()
    return [Result("failure", f"{type(error).__name__}: {error}", "an error of the check itself: please report it")]
