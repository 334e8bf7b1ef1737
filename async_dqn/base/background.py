"""Calls made one after another in a thread that never keeps a process from ending."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Background:
    """Like an executor with one thread, but a daemon: a call that never returns does not hold up the interpreter."""

    def __init__(self, name: str):
        self._calls: queue.SimpleQueue[tuple[Future, Callable[..., Any], tuple] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Queues a call; its result, or what it raised, comes through the future."""
        future: Future = Future()
        self._calls.put((future, function, arguments))
        return future

    def close(self) -> None:
        """Ends the thread once it has made all calls queued so far."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            _make(*call)
            del call  # it may hold megabytes, and the next one be minutes away


def _make(future: Future, function: Callable[..., Any], arguments: tuple) -> None:
    try:
        future.set_result(function(*arguments))
    except BaseException as error:  # it belongs to whoever waits for the result
        future.set_exception(error)
