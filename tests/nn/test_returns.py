"""Generalised advantages: by hand, and against the sum that the paper writes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.nn.returns import generalized_advantages


def column(*values):
    """A rollout of one environment, [T, 1]."""
    return np.array(values)[:, None]


def advantages(reward, value, next_value, terminated, truncated, discount=0.9, trace=0.5):
    """Advantages and returns [T] of one environment."""
    floats = (column(*values).astype(np.float32) for values in (reward, value, next_value))
    flags = (column(*values).astype(bool) for values in (terminated, truncated))
    advantage, return_ = generalized_advantages(*floats, *flags, discount, trace)
    return advantage[:, 0], return_[:, 0]


def test_a_rollout_within_one_episode():
    advantage, return_ = advantages([1, 2], [10, 20], [20, 30], [0, 0], [0, 0])
    last = 2 + 0.9 * 30 - 20
    first = 1 + 0.9 * 20 - 10 + 0.9 * 0.5 * last
    np.testing.assert_allclose(advantage, [first, last], rtol=1e-6)
    np.testing.assert_allclose(return_, [first + 10, last + 20], rtol=1e-6)


def test_a_terminated_step_bootstraps_from_0_and_cuts_the_trace():
    advantage, _ = advantages([1, 2], [10, 20], [99, 30], [1, 0], [0, 0])
    np.testing.assert_allclose(advantage, [1 + 0.9 * 0 - 10, 2 + 0.9 * 30 - 20], rtol=1e-6)


def test_a_truncated_step_bootstraps_from_its_last_observation_and_cuts_the_trace():
    advantage, _ = advantages([1, 2], [10, 20], [99, 30], [0, 0], [1, 0])
    np.testing.assert_allclose(advantage, [1 + 0.9 * 99 - 10, 2 + 0.9 * 30 - 20], rtol=1e-6)


def test_a_step_both_terminated_and_truncated_is_terminated():
    advantage, _ = advantages([1, 2], [10, 20], [99, 30], [1, 0], [1, 0])
    np.testing.assert_allclose(advantage[0], 1 + 0.9 * 0 - 10, rtol=1e-6)


def test_the_value_after_termination_may_be_anything():
    advantage, return_ = advantages([1, 2], [10, 20], [np.nan, np.inf], [1, 1], [0, 0])
    np.testing.assert_allclose(advantage, [1 - 10, 2 - 20])
    np.testing.assert_allclose(return_, [1, 2])


def test_with_trace_1_the_return_is_that_of_the_rewards():
    _, return_ = advantages([1, 2, 3], [10, 20, 30], [20, 30, 40], [0, 0, 0], [0, 0, 0], trace=1.0)
    np.testing.assert_allclose(return_[0], 1 + 0.9 * 2 + 0.9**2 * 3 + 0.9**3 * 40, rtol=1e-6)


def test_with_trace_0_it_is_the_one_step_error():
    advantage, _ = advantages([1, 2], [10, 20], [20, 30], [0, 0], [0, 0], trace=0.0)
    np.testing.assert_allclose(advantage, [1 + 0.9 * 20 - 10, 2 + 0.9 * 30 - 20], rtol=1e-6)


def slow_advantages(reward, value, next_value, terminated, truncated, discount, trace):
    """Equation 16 for every step on its own: the sum of (discount * trace)^l * delta_(t+l) to the episode's end."""
    advantage = np.zeros(reward.shape)
    for t, n in np.ndindex(*reward.shape):
        for later in range(t, len(reward)):
            bootstrap = 0.0 if terminated[later, n] else next_value[later, n]
            delta = reward[later, n] + discount * bootstrap - value[later, n]
            advantage[t, n] += (discount * trace) ** (later - t) * delta
            if terminated[later, n] or truncated[later, n]:
                break
    return advantage


@settings(deadline=None)
@given(
    st.integers(1, 8),
    st.integers(1, 3),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from([0.0, 0.2, 0.8]),
    st.integers(0, 2**32 - 1),
)
def test_agrees_with_the_sum_of_the_paper(length, num_envs, discount, trace, end_share, seed):
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, length, num_envs)).astype(np.float32)
    terminated, truncated = rng.random((2, length, num_envs)) < end_share
    advantage, return_ = generalized_advantages(reward, value, next_value, terminated, truncated, discount, trace)
    expected = slow_advantages(reward, value, next_value, terminated, truncated, discount, trace)
    np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(return_, expected + value, rtol=1e-4, atol=1e-5)
    assert advantage.dtype == return_.dtype == np.float32


@pytest.mark.parametrize("index", range(5))
def test_arrays_of_different_shapes_are_refused(index):
    arrays = [np.zeros((3, 2), np.float32)] * 3 + [np.zeros((3, 2), bool)] * 2
    arrays[index] = arrays[index][:, :1]
    with pytest.raises(ValueError, match=r"\(3, 1\).* not all the same \[T, N\]"):
        generalized_advantages(*arrays, 0.9, 0.5)


def test_vectors_are_refused():
    with pytest.raises(ValueError, match=r"not all the same \[T, N\]"):
        generalized_advantages(*[np.zeros(3, np.float32)] * 3, *[np.zeros(3, bool)] * 2, 0.9, 0.5)
