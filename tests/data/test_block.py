"""Blocks: what goes in comes out, and no observation is there twice."""

import numpy as np
import pytest
from experience_queue_helpers import random_steps

from async_dqn.data.block import BlockWriter, decode, encode, steps

HEADS = {"logits": 3, "value": 1}


def written(rng, length, num_steps, *, is_rollout, shape=(5,), num_envs=3):
    """The steps that went into a block, and the writer."""
    writer = BlockWriter(length, is_rollout=is_rollout)
    given = list(random_steps(rng, num_steps, num_envs, shape, 2, HEADS))
    for step in given:
        writer.add(step, num_envs)
    return given, writer


@pytest.mark.parametrize("is_rollout", [False, True])
@pytest.mark.parametrize("num_steps", [1, 5, 20])
def test_steps_come_out_as_they_went_in(is_rollout, num_steps):
    given, writer = written(np.random.default_rng(num_steps), 20, num_steps, is_rollout=is_rollout)
    assert writer.is_full == (num_steps == 20)
    found = decode(encode(writer.block(version=12)))
    assert (found.version, found.num_steps, found.counted.tolist()) == (12, 3 * num_steps, [3] * num_steps)
    taken = list(steps(found))
    assert len(taken) == num_steps
    for t, (step, expected) in enumerate(zip(taken, given, strict=True)):
        for name in ("observation", "action", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(step, name), getattr(expected, name))
            assert getattr(step, name).dtype == getattr(expected, name).dtype
        known = np.ones(3, bool)
        if t == num_steps - 1 and not is_rollout:  # where the last step led is in the next block
            known = expected.terminated | expected.truncated
        np.testing.assert_array_equal(step.next_observation[known], expected.next_observation[known])
        assert step.outputs.keys() == (HEADS.keys() if is_rollout else set())
        for name, values in step.outputs.items():
            np.testing.assert_array_equal(values, expected.outputs[name])


def test_what_is_sent_for_replay_holds_each_observation_once():
    given, writer = written(np.random.default_rng(1), 16, 16, is_rollout=False, shape=(84, 84), num_envs=2)
    num_ends = sum(int((step.terminated | step.truncated).sum()) for step in given)
    frames = 2 * 16 + num_ends
    assert 0 <= len(encode(writer.block(0))) - frames * 84 * 84 < 1_500


def test_only_the_first_block_of_a_stream_says_what_came_before_it():
    given, writer = written(np.random.default_rng(2), 4, 4, is_rollout=True)
    np.testing.assert_array_equal(writer.block(0).stacked, given[0].stacked)
    writer.next()
    assert writer.is_empty
    writer.add(given[0], 3)
    assert writer.block(0).stacked.size == 0
    writer.truncate()
    assert writer.is_empty
    writer.add(given[1], 3)
    np.testing.assert_array_equal(writer.block(0).stacked, given[1].stacked)


def test_actions_and_outputs_may_have_any_shape():
    writer = BlockWriter(2, is_rollout=True)
    (step,) = random_steps(np.random.default_rng(3), 1, 2, (4,), 1, {"mean": 3})
    step = step._replace(action=np.array([[0.5, -1.0], [2.0, 3.0]], np.float32))
    for _ in range(2):
        writer.add(step, 2)
    (found, _) = steps(decode(encode(writer.block(0))))
    np.testing.assert_array_equal(found.action, step.action)
