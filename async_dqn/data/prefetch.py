"""Minibatches drawn from replay while others are learned from."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar

from async_dqn.base.background import Background

Buffer = TypeVar("Buffer")


class Prefetch(Generic[Buffer]):
    """Draws several minibatches one after another, each in a thread while its caller works on the one before.

    They are those that drawing them all beforehand would give: nothing may change what is drawn from in the meantime,
    and the thread stands still between two calls.

    Args:
      draw: fills a buffer and gives it back.
      buffers: two of them, used in turn: a minibatch may be overwritten once the next but one is asked for.
      in_thread: false: draws each when it is asked for, in the caller's thread.
    """

    def __init__(self, draw: Callable[[Buffer], Buffer], buffers: tuple[Buffer, Buffer], *, in_thread: bool):
        self._draw, self._buffers = draw, buffers
        self._thread = Background("prefetch") if in_thread else None

    def take(self, count: int) -> Iterator[Buffer]:
        """The next `count` minibatches."""
        if self._thread is None or count < 2:
            for _ in range(count):
                yield self._draw(self._buffers[0])
            return
        drawing: Future = self._thread.submit(self._draw, self._buffers[0])
        try:
            for number in range(1, count):
                batch = drawing.result()
                drawing = self._thread.submit(self._draw, self._buffers[number % 2])
                yield batch
            yield drawing.result()
        finally:  # where the caller gives up, its replay and its random numbers are its own again
            drawing.exception()

    def close(self) -> None:
        """Ends the thread."""
        if self._thread:
            self._thread.close()
