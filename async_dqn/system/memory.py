"""How much memory there is, and memory that processes share."""

import ctypes
import errno
import os
from pathlib import Path

import psutil

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # FALLOC_FL_..., which Python does not name
_CLOSE_ON_EXEC = 1  # MFD_CLOEXEC, which os.memfd_create sets by itself


def available_bytes() -> int:
    """Memory that this process may still take: the machine's, or its control group's where that is less."""
    available = psutil.virtual_memory().available
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return min(available, limit - used)


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


def free(descriptor: int, begin: int, size: int) -> None:
    """Gives back the memory of a part of such a file, which is zeros then."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(begin), ctypes.c_int64(size))
