"""Policies: what they choose, how often, and what they draw from the generator."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from async_dqn.nn.policies import (
    NEVER,
    ape_x_epsilons,
    drawn_epsilons,
    epsilon_greedy,
    greedy,
    log_softmax,
    sample_softmax,
)


@settings(deadline=None)
@given(arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.floats(-9, 9, width=32)))
def test_greedy_without_exploration(q_values):
    actions = epsilon_greedy(q_values, 0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(actions, [list(row).index(max(row)) for row in q_values])  # ties: the lowest
    assert actions.dtype == np.int32


def test_ties_go_to_the_lowest_action():
    q_values = np.array([[1.0, 1.0, 1.0], [0.0, 2.0, 2.0]])
    np.testing.assert_array_equal(epsilon_greedy(q_values, 0.0, np.random.default_rng(0)), [0, 1])
    np.testing.assert_array_equal(greedy(q_values), [0, 1])
    assert greedy(q_values).dtype == np.int32


@pytest.mark.parametrize(("epsilon", "greedy_share"), [(1.0, 1 / 4), (0.2, 0.8 + 0.2 / 4)])
def test_exploration_is_uniform(epsilon, greedy_share):
    num_rows, num_actions, best = 20_000, 4, 2
    q_values = np.tile(np.eye(num_actions)[best], (num_rows, 1))
    counts = np.bincount(epsilon_greedy(q_values, epsilon, np.random.default_rng(3)), minlength=num_actions)
    shares = np.full(num_actions, (1 - greedy_share) / (num_actions - 1))
    shares[best] = greedy_share
    chi_square = np.sum((counts - num_rows * shares) ** 2 / (num_rows * shares))
    assert chi_square < 16.27  # 3 degrees of freedom: larger once in a thousand seeds


def test_each_row_explores_on_its_own():
    q_values = np.tile([1.0, 0.0], (1_000, 1))
    explored = epsilon_greedy(q_values, 0.5, np.random.default_rng(0)).mean()
    assert 0.25 - 0.05 < explored < 0.25 + 0.05  # half explore, half of those take the other action


def test_each_row_may_have_an_epsilon_of_its_own():
    q_values = np.tile([1.0, 0.0], (30_000, 1))
    explored = epsilon_greedy(q_values, np.tile([0.0, 0.5, 1.0], 10_000), np.random.default_rng(0)).reshape(-1, 3)
    np.testing.assert_allclose(explored.mean(axis=0), [0, 0.5 / 2, 1 / 2], atol=0.02)
    assert explored[:, 0].sum() == 0


def test_the_same_epsilon_for_all_rows_draws_as_one_does():
    q_values = np.random.default_rng(0).normal(size=(50, 6))
    one, many = (epsilon_greedy(q_values, e, np.random.default_rng(1)) for e in (0.5, np.full(50, 0.5)))
    np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_draws_the_same_amount_whatever_the_values_and_epsilon(epsilon):
    rng, reference = np.random.default_rng(7), np.random.default_rng(7)
    epsilon_greedy(rng.normal(size=(3, 4)) * 0, epsilon, rng)
    reference.normal(size=(3, 4))
    epsilon_greedy(np.arange(12.0).reshape(3, 4), 0.5, reference)
    assert rng.bit_generator.state == reference.bit_generator.state


def test_same_generator_state_gives_the_same_actions():
    q_values = np.random.default_rng(0).normal(size=(50, 6))
    first, second = (epsilon_greedy(q_values, 0.5, np.random.default_rng(1)) for _ in range(2))
    other = epsilon_greedy(q_values, 0.5, np.random.default_rng(2))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_log_softmax():
    probabilities = np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])
    for shift in (0.0, 1e4, -1e4):
        np.testing.assert_allclose(log_softmax(np.log(probabilities) + shift), np.log(probabilities), atol=1e-9)


@settings(deadline=None)
@given(arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.floats(-1e4, 1e4, width=32)))
def test_log_softmax_gives_probabilities_however_large_the_logits_are(logits):
    found = log_softmax(logits)
    assert found.dtype == np.float32
    assert (found <= 0).all()
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, rtol=1e-4)


def test_sampling_follows_the_probabilities():
    num_rows, probabilities = 40_000, np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.tile(np.log(probabilities) + 3, (num_rows, 1)).astype(np.float32)
    actions = sample_softmax(logits, np.random.default_rng(4))
    assert actions.dtype == np.int32
    counts = np.bincount(actions, minlength=4)
    chi_square = np.sum((counts - num_rows * probabilities) ** 2 / (num_rows * probabilities))
    assert chi_square < 16.27  # 3 degrees of freedom: larger once in a thousand seeds


def test_each_row_is_sampled_from_its_own_logits():
    logits = np.tile(np.eye(3, dtype=np.float32) * 100, (200, 1))
    np.testing.assert_array_equal(sample_softmax(logits, np.random.default_rng(0)), np.tile([0, 1, 2], 200))
    uniform = sample_softmax(np.zeros((1_000, 2), np.float32), np.random.default_rng(0))
    assert 0.5 - 0.06 < uniform.mean() < 0.5 + 0.06  # rows do not share their draws


def test_an_impossible_action_is_never_sampled():
    logits = np.tile(np.array([0, -np.inf, 0], np.float32), (2_000, 1))
    assert set(sample_softmax(logits, np.random.default_rng(0))) == {0, 2}


def test_sampling_draws_the_same_amount_whatever_the_logits():
    generators = [np.random.default_rng(7) for _ in range(2)]
    sample_softmax(np.zeros((3, 4), np.float32), generators[0])
    sample_softmax(np.arange(12, dtype=np.float32).reshape(3, 4) * 50, generators[1])
    assert generators[0].bit_generator.state == generators[1].bit_generator.state


def test_same_generator_state_samples_the_same_actions():
    logits = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    first, second, other = (sample_softmax(logits, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_epsilons_of_ape_x_run_over_the_environments_of_all_workers():
    expected = [0.4 ** (1 + 7 * 0 / 7), *(0.4 ** (1 + 7 * i / 7) for i in range(1, 7)), 0.4 ** (1 + 7)]
    np.testing.assert_allclose(ape_x_epsilons(0, 8, 8), expected)
    of_workers = [ape_x_epsilons(first, 2, 8) for first in (0, 2, 4, 6)]
    np.testing.assert_array_equal(np.concatenate(of_workers), ape_x_epsilons(0, 8, 8))
    assert ape_x_epsilons(0, 8, 8).dtype == np.float64


def test_the_epsilon_of_a_single_environment_is_the_base():
    np.testing.assert_array_equal(ape_x_epsilons(0, 1, 1), [0.4])


@pytest.mark.parametrize(("first", "count", "total"), [(-1, 2, 8), (7, 2, 8), (0, 1, 0)])
def test_environments_beyond_the_total_have_no_epsilon(first, count, total):
    with pytest.raises(ValueError, match=f"environments {first} to {first + count - 1} are not among the {total}"):
        ape_x_epsilons(first, count, total)


def test_drawn_epsilons_have_the_shares_of_the_paper():
    drawn = drawn_epsilons(3, 0, 30_000)
    for epsilon, share in [(0.1, 0.4), (0.01, 0.3), (0.5, 0.3)]:
        assert (drawn == epsilon).mean() == pytest.approx(share, abs=0.01)  # over three standard deviations


def test_a_drawn_epsilon_depends_on_the_seed_and_the_number_of_the_environment_alone():
    whole = drawn_epsilons(7, 0, 100)
    for first, count in [(0, 1), (0, 40), (25, 3), (99, 1)]:
        np.testing.assert_array_equal(drawn_epsilons(7, first, count), whole[first : first + count])
    assert (drawn_epsilons(8, 0, 100) != whole).any()


@pytest.mark.parametrize("epsilon", [1.0, np.full(9_000, 0.25)])
def test_exploration_is_uniform_over_the_actions_that_can_be_taken(epsilon):
    q_values = np.tile(np.float32([NEVER, 1, 2, NEVER, 3]), (9_000, 1))
    actions = epsilon_greedy(q_values, epsilon, np.random.default_rng(0))
    shares = np.bincount(actions, minlength=5) / len(actions)
    explored = np.mean(epsilon)
    expected = explored / 3 * np.array([0, 1, 1, 0, 1]) + (1 - explored) * np.array([0, 0, 0, 0, 1])
    np.testing.assert_allclose(shares, expected, atol=0.02)
    assert shares[0] == shares[3] == 0
    assert set(sample_softmax(q_values, np.random.default_rng(0))) <= {1, 2, 4}
