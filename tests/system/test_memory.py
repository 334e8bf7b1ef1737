"""Arrays in files that processes share."""

import os

import numpy as np
import pytest

from async_dqn.system.memory import anonymous_file, file_bytes, map_arrays

SHAPES = {"a": ((3,), np.uint8), "b": ((2, 5), np.float32), "c": ((1,), np.int64)}
SIZE = 3 * 64  # a row for each


def test_arrays_of_a_file_are_seen_by_all_who_map_it_each_in_rows_of_its_own():
    descriptor = anonymous_file()
    assert file_bytes(SHAPES) == SIZE
    os.ftruncate(descriptor, SIZE)
    ours, theirs = (map_arrays(descriptor, SHAPES) for _ in range(2))
    os.close(descriptor)
    for value, name in enumerate(SHAPES, 1):
        ours[name][...] = value
    for value, (name, (shape, dtype)) in enumerate(SHAPES.items(), 1):
        assert (theirs[name].shape, theirs[name].dtype) == (shape, dtype)
        assert (theirs[name] == value).all() and theirs[name].ctypes.data % 64 == 0


def test_what_is_no_such_file_is_refused():
    descriptor = anonymous_file()
    os.ftruncate(descriptor, SIZE - 1)
    with pytest.raises(ValueError, match="greater than file size"):
        map_arrays(descriptor, SHAPES)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        map_arrays(descriptor, SHAPES)
