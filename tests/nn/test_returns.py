"""Returns and advantages: by hand, and against the sums that define them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.nn.returns import generalized_advantages, lambda_returns, segments, vtrace


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


ROLLOUTS = given(
    st.integers(1, 8),
    st.integers(1, 3),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from([0.0, 0.2, 0.8]),
    st.integers(0, 2**32 - 1),
)


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
@ROLLOUTS
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


def returns(reward, next_value, terminated, truncated, trace=0.5):
    """Lambda-returns [T] of one environment, with a discount of 0.9."""
    floats = (column(*values).astype(np.float32) for values in (reward, next_value))
    flags = (column(*values).astype(bool) for values in (terminated, truncated))
    return lambda_returns(*floats, *flags, 0.9, trace)[:, 0]


def test_lambda_returns_within_one_episode():
    found = returns([1, 2], [20, 30], [0, 0], [0, 0])
    last = 2 + 0.9 * 30
    np.testing.assert_allclose(found, [1 + 0.9 * (0.5 * 20 + 0.5 * last), last], rtol=1e-6)


def test_lambda_returns_end_with_a_termination_and_look_beyond_a_truncation_no_further_than_its_value():
    terminated = returns([1, 2, 3], [10, np.nan, 30], [0, 1, 0], [0, 0, 0])
    np.testing.assert_allclose(terminated, [1 + 0.9 * (0.5 * 10 + 0.5 * 2), 2, 3 + 0.9 * 30], rtol=1e-6)
    truncated = returns([1, 2, 3], [10, 20, 30], [0, 0, 0], [0, 1, 0])
    cut = 2 + 0.9 * 20
    np.testing.assert_allclose(truncated, [1 + 0.9 * (0.5 * 10 + 0.5 * cut), cut, 3 + 0.9 * 30], rtol=1e-6)
    both = returns([1, 2, 3], [10, 20, 30], [0, 1, 0], [0, 1, 0])
    np.testing.assert_allclose(both, terminated)


def test_with_trace_0_lambda_returns_are_those_of_one_step_and_with_1_those_of_all():
    ends = [0, 0, 0], [0, 0, 0]
    np.testing.assert_allclose(returns([1, 2, 3], [10, 20, 30], *ends, trace=0), [1 + 9, 2 + 18, 3 + 27], rtol=1e-6)
    first = 1 + 0.9 * 2 + 0.9**2 * 3 + 0.9**3 * 30
    np.testing.assert_allclose(returns([1, 2, 3], [10, 20, 30], *ends, trace=1)[0], first, rtol=1e-6)


def slow_return(reward, next_value, terminated, truncated, discount, steps):
    """The return [T] of each step of one environment by at most `steps` rewards, its sum written out."""
    found = np.zeros(len(reward))
    for t in range(len(reward)):
        for n, later in enumerate(range(t, min(t + steps, len(reward)))):
            found[t] += discount**n * reward[later]
            is_last = later == min(t + steps, len(reward)) - 1 or truncated[later]
            if terminated[later]:
                break
            if is_last:
                found[t] += discount ** (n + 1) * next_value[later]
                break
    return found


@settings(deadline=None)
@ROLLOUTS
def test_lambda_returns_are_averages_of_n_step_returns(length, num_envs, discount, trace, end_share, seed):
    """Equation 12.3 of Sutton & Barto: (1 - lambda) * sum of lambda^(n - 1) * G_n, all that is left to the last one."""
    rng = np.random.default_rng(seed)
    reward, next_value = rng.normal(size=(2, length, num_envs)).astype(np.float32)
    terminated, truncated = rng.random((2, length, num_envs)) < end_share
    found = lambda_returns(reward, next_value, terminated, truncated, discount, trace)
    assert found.dtype == np.float32
    for env in range(num_envs):
        columns = [one[:, env] for one in (reward, next_value, terminated, truncated)]
        expected = trace**length * slow_return(*columns, discount, length + 1)
        for n in range(1, length + 1):
            expected += (1 - trace) * trace ** (n - 1) * slow_return(*columns, discount, n)
        np.testing.assert_allclose(found[:, env], expected, rtol=1e-4, atol=1e-5)


@settings(deadline=None)
@ROLLOUTS
def test_segments_with_the_value_at_their_end_are_the_returns(length, num_envs, discount, _, end_share, seed):
    rng = np.random.default_rng(seed)
    reward, next_value = rng.normal(size=(2, length, num_envs)).astype(np.float32)
    terminated, truncated = rng.random((2, length, num_envs)) < end_share
    found = segments(reward, terminated, truncated, discount)
    value = next_value[found.last, np.arange(num_envs)]
    expected = lambda_returns(reward, next_value, terminated, truncated, discount, 1.0)
    np.testing.assert_allclose(found.reward + found.discount * value, expected, rtol=1e-4, atol=1e-5)


def test_segments_by_hand():
    """A termination after the second of five steps, a truncation after the fourth."""
    found = segments(
        column(1, 2, 3, 4, 5).astype(np.float32),
        column(0, 1, 0, 0, 0).astype(bool),
        column(0, 0, 0, 1, 0).astype(bool),
        0.9,
    )
    np.testing.assert_allclose(found.reward[:, 0], [1 + 0.9 * 2, 2, 3 + 0.9 * 4, 4, 5], rtol=1e-6)
    np.testing.assert_allclose(found.discount[:, 0], [0, 0, 0.9**2, 0.9, 0.9], rtol=1e-6)
    np.testing.assert_array_equal(found.last[:, 0], [1, 1, 3, 3, 4])
    assert [one.dtype for one in found] == [np.float32, np.float32, np.int64]


def test_a_whole_rollout_is_one_segment():
    found = segments(column(1, 2, 3).astype(np.float32), *np.zeros((2, 3, 1), bool), 0.5)
    np.testing.assert_allclose(found.reward[:, 0], [1 + 0.5 * 2 + 0.25 * 3, 2 + 0.5 * 3, 3])
    np.testing.assert_allclose(found.discount[:, 0], [0.125, 0.25, 0.5])
    np.testing.assert_array_equal(found.last[:, 0], [2, 2, 2])


def test_returns_of_arrays_of_different_shapes_are_refused():
    floats, flags = np.zeros((3, 2), np.float32), np.zeros((3, 2), bool)
    with pytest.raises(ValueError, match=r"\(3, 1\).* not all the same \[T, N\]"):
        lambda_returns(floats, floats[:, :1], flags, flags, 0.9, 0.5)
    with pytest.raises(ValueError, match=r"\(2, 2\).* not all the same \[T, N\]"):
        segments(floats, flags[:2], flags, 0.9)


def vtrace_by_the_paper(log_ratio, reward, value, next_value, terminated, truncated, discount, trace):
    """Equation 1, and the advantage of section 4.2, as sums over all later steps of an episode; one environment."""
    ratio = np.exp(log_ratio.astype(np.float64))
    rho, c = np.minimum(1, ratio), trace * np.minimum(1, ratio)
    after = np.where(terminated, 0, next_value)  # V(x_{t+1})
    delta = rho * (reward + discount * after - value)
    ends = terminated | truncated

    def v(s):
        total, weight = float(value[s]), 1.0
        for t in range(s, len(reward)):
            total += discount ** (t - s) * weight * delta[t]
            weight *= c[t]
            if ends[t]:
                break
        return total

    returns = np.array([v(s) for s in range(len(reward))])
    advantage = []
    for s in range(len(reward)):
        following = after[s] if ends[s] or s == len(reward) - 1 else returns[s + 1]
        advantage.append(rho[s] * (reward[s] + discount * following - value[s]))
    return np.array(advantage), returns


def random_rollout(seed, length, num_envs):
    """Columns [T, N] of steps with ends of both kinds; values follow each other within an episode."""
    rng = np.random.default_rng(seed)
    shape = (length, num_envs)
    reward, value, next_value, log_ratio = rng.normal(size=(4, *shape)).astype(np.float32)
    terminated = rng.random(shape) < 0.2
    truncated = ~terminated & (rng.random(shape) < 0.2)
    goes_on = ~(terminated | truncated)[:-1]
    next_value[:-1][goes_on] = value[1:][goes_on]
    return log_ratio, reward, value, next_value, terminated, truncated


@pytest.mark.parametrize("trace", [1.0, 0.7])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_vtrace_is_what_the_paper_writes(length, trace):
    columns = random_rollout(length, length, 40)
    advantage, returns = vtrace(*columns, 0.9, trace)
    assert advantage.dtype == returns.dtype == np.float32
    for n in range(40):
        expected = vtrace_by_the_paper(*(column[:, n] for column in columns), 0.9, trace)
        np.testing.assert_allclose(advantage[:, n], expected[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(returns[:, n], expected[1], rtol=1e-4, atol=1e-5)


def test_vtrace_of_the_policy_that_acted_gives_n_step_returns():
    _, *columns = random_rollout(3, 8, 30)
    found = vtrace(np.zeros((8, 30), np.float32), *columns, 0.9, 1.0)
    for one, expected in zip(found, generalized_advantages(*columns, 0.9, 1.0), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-5)


def test_vtrace_by_hand():
    def at(*values):
        return column(*values).astype(np.float32)

    never = column(False, False)
    advantage, returns = vtrace(
        at(np.log(0.5), np.log(3)), at(1, 2), at(10, 20), at(20, 30), never, never, discount=0.9, trace=1.0
    )
    last = 2 + 0.9 * 30 - 20  # rho is 3, clipped at 1
    first = 0.5 * (1 + 0.9 * 20 - 10)
    np.testing.assert_allclose(returns[:, 0], [10 + first + 0.9 * 0.5 * last, 20 + last], rtol=1e-6)
    np.testing.assert_allclose(advantage[:, 0], [0.5 * (1 + 0.9 * (20 + last) - 10), last], rtol=1e-6)


def test_vtrace_refuses_columns_of_different_shapes():
    log_ratio, *columns = random_rollout(1, 4, 2)
    with pytest.raises(ValueError, match=r"not all the same \[T, N\]"):
        vtrace(log_ratio[:3], *columns, 0.9, 1.0)
