"""Minibatches drawn ahead are those that would be drawn one by one; events, not sleeps, say who works when."""

import threading

import numpy as np
import pytest

from async_dqn.data.prefetch import Prefetch
from async_dqn.data.replay import Replay

DEADLINE = 30.0


def filled_replay():
    replay = Replay(
        num_envs=3,
        capacity=300,
        observation_shape=(6, 6),
        observation_dtype=np.uint8,
        stack=2,
        n_step=2,
        discount=0.9,
    )
    rng = np.random.default_rng(1)
    for _ in range(80):
        ended = rng.random((2, 3)) < 0.05
        frames = rng.integers(0, 256, (2, 3, 6, 6), np.uint8)
        replay.add(frames[0], rng.integers(4, size=3), rng.normal(size=3), ended[0], ended[1] & ~ended[0], frames[1])
    return replay


def copies(batches):
    return [type(batch)(*(array.copy() for array in batch)) for batch in batches]


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("counts", [[0], [1], [2], [3, 1, 0, 4], [1, 1, 1]])
def test_gives_what_sampling_one_by_one_would_and_leaves_the_same_random_state(counts, in_thread):
    replay = filled_replay()
    rng, twin = np.random.default_rng(5), np.random.default_rng(5)
    minibatches = Prefetch(
        lambda out: replay.sample(8, rng, out), (replay.make_batch(8), replay.make_batch(8)), in_thread=in_thread
    )
    for count in counts:
        found = copies(minibatches.take(count))
        expected = [replay.sample(8, twin) for _ in range(count)]
        assert len(found) == count
        for ours, theirs in zip(found, expected, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(one, other)
        assert rng.bit_generator.state == twin.bit_generator.state
    minibatches.close()


def test_the_next_is_drawn_while_the_caller_works_on_one_and_never_into_the_same_buffer():
    drawn = [threading.Event() for _ in range(3)]
    numbers = iter(range(3))

    def draw(buffer):
        assert threading.current_thread() is not threading.main_thread()
        drawn[next(numbers)].set()
        return buffer

    minibatches = Prefetch(draw, ("first", "second"), in_thread=True)
    taken = []
    for number, batch in enumerate(minibatches.take(3)):
        taken.append(batch)
        if number < 2:
            assert drawn[number + 1].wait(DEADLINE)  # without being asked for
    assert taken == ["first", "second", "first"]
    minibatches.close()


def test_a_caller_that_gives_up_waits_for_the_draw_under_way():
    may_go_on, begun, done = threading.Event(), threading.Event(), threading.Event()

    def draw(buffer):
        if buffer == "second":
            begun.set()
            assert may_go_on.wait(DEADLINE)
            done.set()
        return buffer

    minibatches = Prefetch(draw, ("first", "second"), in_thread=True).take(2)
    assert next(minibatches) == "first"
    assert begun.wait(DEADLINE)
    threading.Timer(0.05, may_go_on.set).start()
    minibatches.close()
    assert done.is_set()


def test_an_error_of_a_draw_reaches_the_caller():
    def draw(buffer):
        if buffer == "second":
            raise ValueError("none of 0 slots")
        return buffer

    minibatches = Prefetch(draw, ("first", "second"), in_thread=True)
    batches = minibatches.take(3)
    assert next(batches) == "first"
    with pytest.raises(ValueError, match="none of 0 slots"):
        next(batches)
    assert next(minibatches.take(1)) == "first"  # and it can be asked again
