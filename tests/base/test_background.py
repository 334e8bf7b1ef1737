"""Tests of async_dqn.base.background: calls in order, in a thread that keeps nothing of them."""

import gc
import threading
import weakref

import numpy as np
import pytest
from cluster_helpers import wait_until

from async_dqn.base.background import Background

SOON = 30.0


def test_calls_are_made_one_after_another_and_give_what_they_gave_or_raised():
    made = []
    calls = Background("test-calls")
    futures = [calls.submit(made.append, number) for number in range(100)]
    failed = calls.submit(lambda: 1 // 0)
    assert calls.submit(pow, 2, 5).result(SOON) == 32
    assert made == list(range(100)) and {future.result() for future in futures} == {None}
    with pytest.raises(ZeroDivisionError):
        failed.result(SOON)
    calls.close()


def test_closing_ends_the_thread_after_the_calls_so_far():
    release = threading.Event()
    calls = Background("test-closing")
    slow, last = calls.submit(release.wait), calls.submit(lambda: "made")
    calls.close()
    (thread,) = (one for one in threading.enumerate() if one.name == "test-closing")
    release.set()
    assert slow.result(SOON) and last.result(SOON) == "made"
    thread.join(SOON)
    assert not thread.is_alive()


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_call_is_kept_once_it_is_made(fails):
    calls = Background("test-keeping")
    array = np.zeros(9)
    kept = weakref.ref(array)
    future = calls.submit((lambda given: 1 // 0) if fails else len, array)
    assert (future.exception(SOON) is not None) == fails
    del array, future

    def is_gone():
        gc.collect()
        return kept() is None

    wait_until(is_gone, SOON, "the array is gone")
    calls.close()
