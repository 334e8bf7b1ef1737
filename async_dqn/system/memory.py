"""How much memory there is, and memory that processes share."""

import contextlib
import ctypes
import errno
import math
import mmap
import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import psutil

from async_dqn.system.control_groups import control_groups

Shapes = Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]  # of arrays, by name

_ROW = 64  # bytes, to which every array in a file is aligned
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # FALLOC_FL_..., which Python does not name
_CLOSE_ON_EXEC = 1  # MFD_CLOEXEC, which os.memfd_create sets by itself


def available_bytes() -> int:
    """Memory that this process may still take: the machine's, or its control group's where that is less."""
    available = [psutil.virtual_memory().available]
    for group in control_groups():
        with contextlib.suppress(OSError, ValueError, KeyError):  # no limit reads "max"
            limit = int((group / "memory.max").read_text())
            used = int((group / "memory.current").read_text())
            counted = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            cached = sum(int(counted[kind]) for kind in ("active_file", "inactive_file"))  # given up where it is needed
            available.append(limit - used + cached)
    return min(available)


def anonymous_file() -> int:
    """A descriptor of a file that has no name. Raises OSError where the system has none (all but Linux)."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("async-dqn")
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "memfd_create"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    descriptor = libc.memfd_create(b"async-dqn", _CLOSE_ON_EXEC)  # Pythons built on an old system, as conda's are
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(descriptor)


def file_bytes(shapes: Shapes) -> int:
    """The size of a file for these arrays, in bytes."""
    return sum(_num_bytes(*one) for one in shapes.values())


def map_arrays(descriptor: int, shapes: Shapes) -> dict[str, np.ndarray]:
    """The arrays that lie in a file, by name, in the memory that all who map it share.

    Raises OSError where the descriptor is of no file, ValueError where the file is too small.
    """
    memory = mmap.mmap(descriptor, file_bytes(shapes))  # unmapped with the last array
    arrays, begin = {}, 0
    for name, (shape, dtype) in shapes.items():
        arrays[name] = np.frombuffer(memory, dtype, math.prod(shape), begin).reshape(shape)
        begin += _num_bytes(shape, dtype)
    return arrays


def _num_bytes(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Of one array, up to where the next one begins."""
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // _ROW) * _ROW


def free(descriptor: int, begin: int, size: int) -> None:
    """Gives back the memory of a part of such a file, which is zeros then."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(size))
