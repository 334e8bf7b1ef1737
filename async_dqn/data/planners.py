"""What crosses between the worker that acts and the planners: real steps one way, simulated minibatches the other."""

import time
from collections.abc import Callable, Mapping

import numpy as np

from async_dqn.data.block import BlockWriter, encode, pack, unpack
from async_dqn.data.experience import Step, StepTaker
from async_dqn.data.planning import DynaBatch, DynaExperience
from async_dqn.data.queue import ExperienceQueue

_COLUMNS = ("s_tm1", "a_tm1", "r_t", "discount_t", "s_t", "weight")  # of a simulated minibatch, as it crosses
_PAUSE = 0.01  # seconds until an empty queue is asked again: asking takes the time of a minibatch


def simulate(experience: DynaExperience, count: int, rng: np.random.Generator, version: int) -> np.ndarray:
    """So many simulated minibatches as one vector of bytes, [bytes] uint8.

    Args:
      version: updates in the model that they come from.
    """
    rows: dict[str, list[np.ndarray]] = {name: [] for name in _COLUMNS}
    for _ in range(count):
        experience.simulate(rng)
        for name, column in rows.items():
            column.append(getattr(experience.batch, name).copy())
    return pack({name: np.stack(column) for name, column in rows.items()}, version)


class ReceivedPlans:
    """The minibatches that planners simulate, as they come out of the queue.

    Args:
      queue: where they come from.
      version: gives the updates of the model until now.
    """

    def __init__(self, queue: ExperienceQueue, version: Callable[[], int]):
        self._queue, self._version = queue, version
        self._ask_at = 0.0
        self.clear()

    def clear(self) -> None:
        """Drops what is at hand."""
        self._columns: Mapping[str, np.ndarray] = {}  # [M, B, ...] each
        self._made_by = self._first = self._stop = 0  # those at hand are `first` ... `stop - 1`

    def at_hand(self, wanted: int) -> int:
        """How many there are without waiting, at most `wanted`; where there are none, the queue is looked at."""
        if wanted and self._first == self._stop and time.monotonic() >= self._ask_at:
            item = self._queue.take()
            if item is None:
                self._ask_at = time.monotonic() + _PAUSE
            else:
                self._columns, self._made_by = unpack(item.data)
                self._first, self._stop = 0, len(self._columns["a_tm1"])
        return min(wanted, self._stop - self._first)

    def fill(self, batch: DynaBatch) -> None:
        """Writes the next one, which is at hand, to a minibatch."""
        for name, column in self._columns.items():
            getattr(batch, name)[:] = column[self._first]
        batch.model_age[:] = max(0, self._version() - self._made_by)
        self._first += 1


class Broadcast:
    """A sink whose steps go to planners as well, a block at a time. What finds a queue full is lost: nothing waits.

    Args:
      sink: what the steps go into here.
      queue: the way to the planners.
      length: T, steps of a block.
      version: gives the updates in the parameters that are acted on.
    """

    def __init__(self, sink: StepTaker, queue: ExperienceQueue, *, length: int, version: Callable[[], int]):
        self._sink, self._queue, self._version = sink, queue, version
        self._writer = BlockWriter(length, is_rollout=False)
        self._number = 0  # of the block that is being gathered, in this stream

    def add(self, step: Step, num_steps: int) -> None:
        if self._writer.is_full:  # an outage kept it from being sent
            self._next()
        self._sink.add(step, num_steps)
        self._writer.add(step, num_steps)

    @property
    def has_block(self) -> bool:
        """Whether a block is to be sent before the next step."""
        return self._writer.is_full

    def send(self) -> None:
        """Sends the block to all planners whose queues have room."""
        self._queue.put(self._number, encode(self._writer.block(self._version())))
        self._next()

    def _next(self) -> None:
        """Begins the next block; the receiver sees by its number whether it had the one before."""
        self._number += 1
        self._writer.next()

    def truncate(self, envs: np.ndarray | None = None) -> None:
        """The environments, or these, start anew: what comes next follows from nothing."""
        self._sink.truncate(envs)
        self._writer.truncate(envs)

    def begin_stream(self) -> None:
        """Drops what was not sent: the parameters were put back to before it was gathered."""
        self._writer.truncate()
        self._number = 0
