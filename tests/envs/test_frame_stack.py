"""Stacks that the agent acts on: zeros before an episode, oldest first, the same as the replay returns."""

import numpy as np
import pytest

from async_dqn.data.replay import Replay
from async_dqn.envs.frame_stack import FrameStack


def observe(*values: int) -> np.ndarray:
    """One observation of shape [1] for each environment."""
    return np.array(values, np.uint8)[:, None]


def test_frames_before_the_episode_are_zeros_and_the_newest_is_last():
    frames = FrameStack(num_envs=2, stack=3, observation_shape=(1,), dtype=np.uint8)
    neither = np.array([False, False])

    assert frames.reset(observe(1, 11))[..., 0].tolist() == [[0, 0, 1], [0, 0, 11]]
    assert frames.push(observe(2, 12), neither)[..., 0].tolist() == [[0, 1, 2], [0, 11, 12]]
    assert frames.push(observe(3, 13), neither)[..., 0].tolist() == [[1, 2, 3], [11, 12, 13]]
    assert frames.push(observe(4, 14), neither)[..., 0].tolist() == [[2, 3, 4], [12, 13, 14]]


def test_a_new_episode_clears_only_its_own_environment():
    frames = FrameStack(num_envs=2, stack=3, observation_shape=(1,), dtype=np.uint8)
    frames.reset(observe(1, 11))
    stacked = frames.push(observe(2, 12), np.array([False, True]))
    assert stacked[..., 0].tolist() == [[0, 1, 2], [0, 0, 12]]
    assert frames.reset(observe(3, 13))[..., 0].tolist() == [[0, 0, 3], [0, 0, 13]]


def test_what_was_returned_is_never_written_again():
    frames = FrameStack(num_envs=1, stack=2, observation_shape=(1,), dtype=np.uint8)
    returned = frames.reset(observe(1))
    frames.push(observe(2), np.array([False]))
    assert returned[..., 0].tolist() == [[0, 1]]


def test_a_stack_of_one_is_the_observation():
    frames = FrameStack(num_envs=2, stack=1, observation_shape=(3,), dtype=np.float32)
    observation = np.arange(6, dtype=np.float32).reshape(2, 3)
    stacked = frames.reset(observation)
    assert stacked.dtype == np.float32
    np.testing.assert_array_equal(stacked, observation[:, None])


@pytest.mark.parametrize(("num_envs", "stack"), [(0, 1), (1, 0)])
def test_refuses_sizes_below_one(num_envs, stack):
    with pytest.raises(ValueError, match=f"got {num_envs} and {stack}"):
        FrameStack(num_envs, stack, (1,), np.uint8)


def test_refuses_a_shape_that_would_broadcast():
    frames = FrameStack(num_envs=2, stack=2, observation_shape=(3,), dtype=np.uint8)
    with pytest.raises(ValueError, match=r"\(3,\)"):
        frames.push(np.zeros(3, np.uint8), np.array([True, True]))
    with pytest.raises(ValueError, match=r"first \(1,\)"):
        frames.push(np.zeros((2, 3), np.uint8), np.array([True]))


def test_a_restored_stack_goes_on_as_the_saved_one():
    frames, restored = (FrameStack(num_envs=2, stack=3, observation_shape=(1,), dtype=np.uint8) for _ in range(2))
    frames.reset(observe(1, 11))
    saved = frames.push(observe(2, 12), np.array([False, False]))
    restored.reset(observe(7, 7))
    assert restored.restore(saved.copy()).tolist() == saved.tolist()
    first = np.array([False, True])
    expected = frames.push(observe(3, 13), first)
    assert expected[..., 0].tolist() == [[1, 2, 3], [0, 0, 13]]
    np.testing.assert_array_equal(restored.push(observe(3, 13), first), expected)


def test_what_was_restored_is_never_written():
    frames = FrameStack(num_envs=1, stack=2, observation_shape=(1,), dtype=np.uint8)
    stacked = np.array([[[1], [2]]], np.uint8)
    frames.restore(stacked)
    frames.push(observe(3), np.array([False]))
    assert stacked[..., 0].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "stacked",
    [np.zeros((1, 3, 1), np.uint8), np.zeros((2, 2, 1), np.uint8), np.zeros((2, 3), np.uint8), np.zeros((2, 3, 1))],
    ids=["environments", "stack", "observation", "type"],
)
def test_restore_refuses_another_shape_or_type_and_changes_nothing(stacked):
    frames = FrameStack(num_envs=2, stack=3, observation_shape=(1,), dtype=np.uint8)
    frames.reset(observe(1, 11))
    with pytest.raises(ValueError, match=r"stacked \(.*\) .* must be \(2, 3, 1\)"):
        frames.restore(stacked)
    pushed = frames.push(observe(2, 12), np.array([False, False]))
    assert pushed[..., 0].tolist() == [[0, 1, 2], [0, 11, 12]]


def test_equals_what_the_replay_returns_for_the_same_stream():
    num_envs, stack, steps = 3, 4, 60
    rng = np.random.default_rng(0)
    frames = FrameStack(num_envs, stack, (2, 2), np.uint8)
    replay = Replay(
        num_envs=num_envs,
        capacity=num_envs * 2 * steps,  # nothing is overwritten
        observation_shape=(2, 2),
        observation_dtype=np.uint8,
        stack=stack,
        n_step=1,
        discount=0.99,
    )
    acted_on: list[list[np.ndarray]] = [[] for _ in range(num_envs)]
    arrived_at: list[list[np.ndarray]] = [[] for _ in range(num_envs)]
    observation = rng.integers(1, 256, (num_envs, 2, 2), np.uint8)
    stacked = frames.reset(observation)
    for _ in range(steps):
        following = rng.integers(1, 256, observation.shape, np.uint8)
        terminated, truncated = rng.random((2, num_envs)) < 0.1
        for i in range(num_envs):
            acted_on[i].append(stacked[i])
            arrived_at[i].append(np.concatenate([stacked[i, 1:], following[i : i + 1]]))
        zeros = np.zeros(num_envs, int)
        replay.add(observation, zeros, zeros, terminated, truncated, following)
        ended = terminated | truncated
        fresh = rng.integers(1, 256, observation.shape, np.uint8)
        observation = np.where(ended[:, None, None], fresh, following)
        stacked = frames.push(observation, ended)

    env, index = replay.valid_starts()
    batch = replay.gather(env, index, replay.make_batch(len(env)))
    for i in range(num_envs):
        count = (env == i).sum()  # all steps, but for a newest one whose next observation is still to come
        assert count >= steps - 1
        np.testing.assert_array_equal(batch.s_tm1[env == i], acted_on[i][:count])
        np.testing.assert_array_equal(batch.s_t[env == i], arrived_at[i][:count])
