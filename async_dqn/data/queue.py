"""The queue by which experience crosses from the processes that act to the one that learns."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np


class Item(NamedTuple):
    """What was put into the queue."""

    sender: int  # which worker
    stream: tuple[int, int]  # grows whenever a sender begins anew, as another process or after its parameters were lost
    number: int  # from 0 in each stream of each sender
    data: np.ndarray  # [bytes] uint8


class ExperienceQueue(Protocol):
    """A bounded queue of many senders and one receiver. Neither method waits; both may raise `Outage`."""

    def put(self, number: int, data: np.ndarray) -> bool:
        """Puts this process's item `number` of its stream in, once however often it is tried. False: there is no room.

        An item that is not newer than the last one of this sender is left out, and True.
        """

    def take(self) -> Item | None:
        """The oldest item, or None where there is none. The receiver's.

        None as well where another process has taken the receiver's place.
        """


class CountedQueue:
    """A queue whose bytes are counted where they pass.

    Args:
      count: takes the bytes of each item that went in or came out.
    """

    def __init__(self, inner: ExperienceQueue, count: Callable[[int], None]):
        self._inner, self._count = inner, count

    def put(self, number: int, data: np.ndarray) -> bool:
        has_room = self._inner.put(number, data)
        if has_room:
            self._count(data.nbytes)
        return has_room

    def take(self) -> Item | None:
        item = self._inner.take()
        if item is not None:
            self._count(item.data.nbytes)
        return item
