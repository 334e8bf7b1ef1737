"""The queue by which experience crosses from the processes that act to the one that learns."""

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
