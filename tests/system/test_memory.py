"""Arrays in files that processes share."""

import os

import numpy as np
import pytest

from async_dqn.system import memory
from async_dqn.system.memory import anonymous_file, available_bytes, file_bytes, map_arrays

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


def test_a_control_group_s_limit_holds_but_for_what_is_cached(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_CONTROL_GROUP", tmp_path)
    everything = available_bytes()
    files = {
        "memory.max": "1000000",
        "memory.current": "900000",
        "memory.stat": "anon 300000\nfile 600000\nactive_file 200000\ninactive_file 350000\nshmem 50000",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert available_bytes() == 100_000 + 550_000
    (tmp_path / "memory.max").write_text("max\n")  # there is no limit
    assert available_bytes() > 0.5 * everything


def test_what_is_no_such_file_is_refused():
    descriptor = anonymous_file()
    os.ftruncate(descriptor, SIZE - 1)
    with pytest.raises(ValueError, match="greater than file size"):
        map_arrays(descriptor, SHAPES)
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        map_arrays(descriptor, SHAPES)
