"""Memory that a worker shares with the parameter servers of its own host, so that big arrays stay out of the sockets.

Otherwise a round trip between two processes of one host sends the network through gRPC twice, which costs more
processor time than the rest of the round trip. The worker makes a `Segment` for each shard and names it in every step.
The step's graph runs on the parameter server. There `PyFunc` operations call functions that `serve` has registered:
`take` reads an update where the worker has written it, `give` writes parameters where the worker reads them. The graph
decides what to do with either, and when.
"""

import contextlib
import functools
import os
import secrets
import stat
import threading
import weakref
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.system.memory import Shapes, anonymous_file, file_bytes, map_arrays

_NUM_BUFFERS = 2
_REACHES, _TAKE, _GIVE = "pyfunc_0", "pyfunc_1", "pyfunc_2"  # TensorFlow names functions in the order they come in


class _Arrays(NamedTuple):
    number: np.ndarray  # [1] uint64, never 0
    update: np.ndarray  # [n] float32
    pulled: list[np.ndarray]  # _NUM_BUFFERS of [n] float32


def _shapes(size: int) -> Shapes:
    buffers: Shapes = {f"pulled/{index}": ((size,), np.float32) for index in range(_NUM_BUFFERS)}
    return {"number": ((1,), np.uint64), "update": ((size,), np.float32), **buffers}


def _map(descriptor: int, size: int) -> _Arrays:
    number, update, *pulled = map_arrays(descriptor, _shapes(size)).values()
    return _Arrays(number, update, pulled)


class Segment:
    """Memory for one shard: an update on its way out, and two buffers for parameters on their way in.

    It has no name in any file system, so nothing is left of it when the processes that use it have ended.

    Attributes:
      address: what a parameter server finds it by.
      pulled: arrays [n] float32, one for each buffer index.

    Raises:
      OSError: at construction, where the system gives no such memory.
    """

    def __init__(self, size: int):
        descriptor = anonymous_file()
        self._let_go = weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, file_bytes(_shapes(size)))
        arrays = _map(descriptor, size)
        arrays.number[0] = number = secrets.randbits(63) | 1
        self._update, self.pulled = arrays.update, arrays.pulled
        self._buffer = 0
        self.address = f"/proc/{os.getpid()}/fd/{descriptor} {size} {number}"

    def put(self, update: np.ndarray) -> int:
        """Writes an update [n] that no step is reading; gives the index of the buffer to pull into."""
        np.copyto(self._update, update)
        return self.turn()

    def turn(self) -> int:
        """The index of the next buffer to pull into."""
        self._buffer = (self._buffer + 1) % _NUM_BUFFERS
        return self._buffer

    def close(self) -> None:
        """Nobody finds it any more; who has found it before, or holds an array, keeps the memory."""
        self._let_go()


# On a parameter server.


class _Found(NamedTuple):
    arrays: _Arrays
    path: str
    inode: int


class _Segments:
    """Those that steps have named, each mapped once."""

    def __init__(self) -> None:
        self._found: dict[bytes, _Found] = {}
        self._lock = threading.Lock()

    def find(self, address: bytes) -> _Arrays:
        """The arrays at an address. Raises OSError where that is not on this host, or not this user's."""
        with self._lock:
            if address not in self._found:
                self._found = {known: one for known, one in self._found.items() if _is_there(one)}
                self._found[address] = _open(address)
            return self._found[address].arrays


def _is_there(segment: _Found) -> bool:
    with contextlib.suppress(OSError):
        return os.stat(segment.path).st_ino == segment.inode
    return False


def _open(address: bytes) -> _Found:
    path, size, number = address.decode().split()
    # On another host, or in another container, the path may be anything, a device too.
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size != file_bytes(_shapes(int(size))):
        raise FileNotFoundError(f"{path} is something else")
    descriptor = os.open(path, os.O_RDWR)
    try:
        arrays = _map(descriptor, int(size))
    finally:
        os.close(descriptor)
    if arrays.number[0] != int(number):
        raise FileNotFoundError(f"{path} is another segment")
    return _Found(arrays, path, found.st_ino)


_SEGMENTS = _Segments()


def _reaches(address: bytes) -> np.bool_:
    with contextlib.suppress(OSError):
        _SEGMENTS.find(address)
        return np.True_
    return np.False_


def _take(address: bytes) -> np.ndarray:
    return _SEGMENTS.find(address).update if address else np.zeros(0, np.float32)


def _give(address: bytes, buffer: np.int64, value: np.ndarray) -> np.int64:
    if value.size:
        np.copyto(_SEGMENTS.find(address).pulled[buffer], value)
    return buffer


@functools.cache
def serve() -> tf.Graph:
    """Registers in this process, a parameter server's, what the operations below call there.

    Returns:
      A graph, with which the registration would go.

    Raises:
      RuntimeError: something else was registered before.
    """
    with tf.Graph().as_default() as graph:
        address, buffer, value = map(tf.compat.v1.placeholder, (tf.string, tf.int64, tf.float32))
        for token, call, inputs, output in (
            (_REACHES, _reaches, [address], tf.bool),
            (_TAKE, _take, [address], tf.float32),
            (_GIVE, _give, [address, buffer, value], tf.int64),
        ):
            found = tf.numpy_function(call, inputs, output).op.get_attr("token").decode()
            if found != token:
                raise RuntimeError(f"{call.__name__} is {found}, not {token}: something else was registered before")
    return graph


# In a worker's graph, on the device of a parameter server.


def reaches(address: tf.Tensor) -> tf.Tensor:
    """Whether the server finds the segment, a scalar bool."""
    return tf.raw_ops.PyFunc(input=[address], token=_REACHES, Tout=[tf.bool])[0]


def take(address: tf.Tensor) -> tf.Tensor:
    """The segment's update [n] float32 in place; [0] for no address. It must not change before the step is over."""
    return tf.raw_ops.PyFunc(input=[address], token=_TAKE, Tout=[tf.float32])[0]


def give(address: tf.Tensor, buffer: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Writes a value [n] float32 to the segment's buffer of that index; nothing where it is empty. Gives the index."""
    return tf.raw_ops.PyFunc(input=[address, buffer, value], token=_GIVE, Tout=[tf.int64])[0]
