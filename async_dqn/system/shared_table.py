"""A table that processes of one host share, every change of which is made as a whole or not at all."""

import contextlib
import fcntl
import threading
from collections.abc import Iterator

import numpy as np


class FileLock:
    """A lock between processes, and between the threads of each. The system takes it back however its holder ends.

    Args:
      descriptor: of the file that it belongs to.
    """

    def __init__(self, descriptor: int):
        # A description of its own: a lock belongs to that, and all who inherit a descriptor share one.
        self._file = open(f"/proc/self/fd/{descriptor}", "r+b", buffering=0)  # noqa: SIM115
        self._among_threads = threading.Lock()

    def __enter__(self) -> None:
        self._among_threads.acquire()
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._among_threads.release()


class SharedTable:
    """The table is there twice. A change is written beside the one that counts.

    Then one number that says which of the two counts is raised by 1. So a process that is killed has changed all or
    nothing.

    Args:
      version: [1] int64 in shared memory; the table that counts is the one of its last bit.
      tables: [2, ...] int64 there.
    """

    def __init__(self, version: np.ndarray, tables: np.ndarray, lock: FileLock):
        self._version, self._tables, self._lock = version, tables, lock

    def now(self) -> np.ndarray:
        """The table that counts: to look at under the lock, or for a number that may be on its way."""
        return self._tables[self._version[0] & 1]

    def read(self) -> np.ndarray:
        """A copy of the table that counts."""
        with self._lock:
            return self.now().copy()

    @contextlib.contextmanager
    def change(self) -> Iterator[np.ndarray]:
        """The next table, under the lock; it counts once the block is through."""
        with self._lock:
            rows = self._tables[(self._version[0] + 1) & 1]
            rows[:] = self.now()
            yield rows
            self._version[0] += 1
