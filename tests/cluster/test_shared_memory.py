"""Tests of async_dqn.cluster.shared_memory: what is found at an address, and that nothing is left of it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from async_dqn.cluster import shared_memory
from async_dqn.cluster.shared_memory import Segment
from async_dqn.system import memory

pytestmark = pytest.mark.usefixtures("no_garbage")

SIZE = 37  # not a multiple of a row


@pytest.fixture
def segment():
    segment = Segment(SIZE)
    yield segment
    segment.close()


@pytest.fixture
def found():
    return shared_memory._Segments()


def mapped():
    """How many segments this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:async-dqn")


def test_both_sides_have_the_same_memory(segment, found):
    arrays = found.find(segment.address.encode())
    for number in range(1, 6):
        update = np.arange(SIZE, dtype=np.float32) * number
        buffer = segment.put(update)
        np.testing.assert_array_equal(arrays.update, update)
        arrays.pulled[buffer][:] = update + 1
        np.testing.assert_array_equal(segment.pulled[buffer], update + 1)
        np.testing.assert_array_equal(arrays.update, update)  # the arrays do not overlap


def test_what_was_pulled_stays_until_the_next_pull_but_one(segment, found):
    arrays = found.find(segment.address.encode())
    pulled = []
    for number in range(4):
        buffer = segment.put(np.zeros(SIZE, np.float32))
        arrays.pulled[buffer][:] = number
        pulled.append(segment.pulled[buffer])
        assert [array[0] for array in pulled[-2:]] == [number - 1, number][-len(pulled) :]


def test_arrays_begin_where_tensors_may(segment, found):
    arrays = found.find(segment.address.encode())
    for array in (arrays.update, *arrays.pulled, *segment.pulled):
        assert array.ctypes.data % 64 == 0
        assert (array.shape, array.dtype) == ((SIZE,), np.float32)


def test_another_process_finds_it(segment):
    code = f"""
from async_dqn.cluster.shared_memory import _Segments
arrays = _Segments().find({segment.address.encode()!r})
arrays.pulled[1][:] = arrays.update + 1
"""
    assert segment.put(np.full(SIZE, 6, np.float32)) == 1
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=Path(__file__).parents[2])
    np.testing.assert_array_equal(segment.pulled[1], np.full(SIZE, 7))


def changed(address, *, path=None, size=None, number=None):
    old_path, old_size, old_number = address.split()
    return f"{path or old_path} {size or old_size} {number or old_number}".encode()


@pytest.mark.parametrize(
    "change",
    [{"path": "/proc/self/fd/987654"}, {"path": "/dev/null"}, {"path": "/"}, {"size": SIZE + 16}, {"number": 12}],
    ids=["nothing", "a device", "a folder", "another size", "another number"],
)
def test_what_lies_there_instead_is_left_alone(segment, found, change):
    with pytest.raises(OSError):
        found.find(changed(segment.address, **change))
    assert not shared_memory._reaches(changed(segment.address, **change))
    assert shared_memory._reaches(segment.address.encode())


def test_a_pipe_in_its_place_does_not_block(segment, found):
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match="is something else"):
            found.find(changed(segment.address, path=f"/proc/self/fd/{reading}"))
    finally:
        os.close(reading)
        os.close(writing)


def test_a_closed_one_is_not_found_and_its_successor_at_the_same_path_is(found):
    first = Segment(SIZE)
    old = found.find(first.address.encode())
    old.update[:] = 5
    first.close()
    second = Segment(SIZE)
    assert second.address.split()[0] == first.address.split()[0]  # the descriptor is free again
    assert found.find(second.address.encode()).update[0] == 0
    with pytest.raises(OSError, match="is another segment"):
        found.find(first.address.encode())
    assert old.update[0] == 5  # a step that still reads it can go on
    second.close()


def test_nothing_is_left_of_those_that_are_gone(found):
    descriptors, maps = len(os.listdir("/proc/self/fd")), mapped()
    for _ in range(20):
        segment = Segment(SIZE)
        found.find(segment.address.encode())
        segment.close()
    del segment
    # The last one is kept until another is asked for, with the descriptor that Python keeps for a mapping.
    assert (len(os.listdir("/proc/self/fd")), mapped()) == (descriptors + 1, maps + 1)


def test_a_segment_that_is_dropped_closes_itself(found):
    descriptors = len(os.listdir("/proc/self/fd"))
    segment = Segment(SIZE)
    assert len(os.listdir("/proc/self/fd")) > descriptors
    del segment
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.cluster
def test_operations_call_the_functions_of_the_process_that_runs_them():
    """In a process of its own, as TensorFlow numbers functions in the order in which they are registered."""
    code = """
import numpy as np
import tensorflow as tf
from async_dqn.cluster import shared_memory

shared_memory.serve()
assert shared_memory.serve() is shared_memory.serve()  # registered once
segment, other = shared_memory.Segment(5), shared_memory.Segment(7)
buffer = segment.put(np.arange(5, dtype=np.float32))
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    address = tf.constant(segment.address)
    assert session.run(shared_memory.reaches(address))
    assert not session.run(shared_memory.reaches(tf.constant("/nowhere 5 1")))
    taken = shared_memory.take(address)
    assert session.run(shared_memory.give(address, tf.constant(buffer, tf.int64), taken * 2)) == buffer
np.testing.assert_array_equal(segment.pulled[buffer], [0, 2, 4, 6, 8])
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=Path(__file__).parents[2])


def test_functions_that_come_too_late_are_refused():
    code = """
import tensorflow as tf
from async_dqn.cluster import shared_memory

with tf.Graph().as_default():
    tf.numpy_function(len, [tf.constant([1])], tf.int64)
    shared_memory.serve()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert done.returncode == 1
    assert "_reaches is pyfunc_1, not pyfunc_0" in done.stderr


@pytest.mark.parametrize("has_it", [True, False], ids=["new", "old"])
def test_a_python_built_on_an_old_system_has_segments_too(monkeypatch, has_it):
    if not has_it:
        monkeypatch.delattr(os, "memfd_create")
    segment = Segment(5)
    descriptor = int(segment.address.split()[0].rpartition("/")[2])
    assert not os.get_inheritable(descriptor)
    segment.put(np.arange(5, dtype=np.float32))
    np.testing.assert_array_equal(shared_memory._open(segment.address.encode()).arrays.update, np.arange(5))


def test_a_system_without_it_is_an_oserror(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda *_, **__: object())
    with pytest.raises(OSError, match="not implemented"):
        Segment(5)
