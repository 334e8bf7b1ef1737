"""The queue between processes of one host: an anonymous file that all of them have open.

It begins with a table: how many items were put in and taken out and where they lie, and for each worker the last item
that it has put in. Items follow one after the other, behind all that there ever were; what was taken is a hole in the
file, which takes no memory. An item is written before it counts. So one whose sender was killed meanwhile is not there,
and the next one is written in its place.
"""

import mmap
import os
from collections.abc import Callable

import numpy as np

from async_dqn.data.queue import Item
from async_dqn.system.memory import Shapes, anonymous_file, file_bytes, free, map_arrays
from async_dqn.system.shared_table import FileLock, SharedTable

_WIDTH = 4  # row 0: items put in, items taken out, where the first of those in it begins, and where the last one ends
_WORKERS = 1  # the row of worker 0; in each generation, joins and number of the worker's last item
_HEADER = 5  # int64 numbers before an item: sender, generation, joins, number, bytes


def _shapes(num_workers: int) -> Shapes:
    """Of the arrays of a `SharedTable`."""
    return {"version": ((1,), np.int64), "tables": ((2, _WORKERS + num_workers, _WIDTH), np.int64)}


def _begin(num_workers: int) -> int:
    """Where items begin: at a page of their own."""
    return -(-file_bytes(_shapes(num_workers)) // mmap.PAGESIZE) * mmap.PAGESIZE


def create(num_workers: int) -> int:
    """Makes an empty queue. Gives its descriptor, for processes to inherit."""
    descriptor = anonymous_file()
    os.truncate(descriptor, _begin(num_workers))
    return descriptor


class SharedQueue:
    """One process's end of the queue.

    Args:
      descriptor: of the file that `create` has made.
      worker: the sender, of `num_workers`; worker 0 is the receiver.
      size: items that may be in the queue.
      membership: (generation, joins) of this process: what it puts in is of this stream.

    Raises:
      OSError, ValueError: the descriptor is of no such file.
    """

    def __init__(
        self, descriptor: int, *, worker: int, num_workers: int, size: int, membership: Callable[[], tuple[int, int]]
    ):
        self._worker, self._size, self._membership = worker, size, membership
        self._descriptor, self._begin = descriptor, _begin(num_workers)
        self._table = SharedTable(**map_arrays(descriptor, _shapes(num_workers)), lock=FileLock(descriptor))

    def put(self, number: int, data: np.ndarray) -> bool:
        order = [*self._membership(), number]
        with self._table.change() as rows:
            num_put, num_taken, first, end = rows[0].tolist()
            own = rows[_WORKERS + self._worker]
            if order <= own[: len(order)].tolist():
                return True
            if num_put - num_taken >= self._size:
                return False
            item = np.array([self._worker, *order, data.size], np.int64).tobytes() + data.tobytes()
            _write(self._descriptor, item, self._begin + end)
            own[: len(order)] = order
            rows[0] = num_put + 1, num_taken, first, end + len(item)
            return True

    def take(self) -> Item | None:
        membership = list(self._membership())
        with self._table.change() as rows:
            num_put, num_taken, first, _ = rows[0].tolist()
            receiver = rows[_WORKERS]
            if receiver[: len(membership)].tolist() > membership or num_put == num_taken:
                return None
            header = _read(self._descriptor, _HEADER * np.dtype(np.int64).itemsize, self._begin + first)
            sender, generation, joins, number, size = np.frombuffer(header, np.int64).tolist()
            after = first + len(header)
            data = _read(self._descriptor, size, self._begin + after)
            receiver[: len(membership)] = membership
            rows[0, 1:3] = num_taken + 1, after + size
        free(self._descriptor, self._begin, after + size)
        return Item(sender, (generation, joins), number, np.frombuffer(data, np.uint8))


def _write(descriptor: int, data: bytes, begin: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], begin + written)


def _read(descriptor: int, size: int, begin: int) -> bytes:
    parts: list[bytes] = []
    while (missing := size - sum(map(len, parts))) > 0:
        parts.append(os.pread(descriptor, missing, begin + size - missing))
        assert parts[-1], "an item that counts is there"
    return b"".join(parts)
