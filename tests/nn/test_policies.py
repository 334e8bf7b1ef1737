"""Epsilon-greedy: what it chooses, how often, and what it draws from the generator."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from async_dqn.nn.policies import epsilon_greedy, worker_epsilon


@settings(deadline=None)
@given(arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.floats(-9, 9, width=32)))
def test_greedy_without_exploration(q_values):
    actions = epsilon_greedy(q_values, 0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(actions, [list(row).index(max(row)) for row in q_values])  # ties: the lowest
    assert actions.dtype == np.int32


def test_ties_go_to_the_lowest_action():
    q_values = np.array([[1.0, 1.0, 1.0], [0.0, 2.0, 2.0]])
    np.testing.assert_array_equal(epsilon_greedy(q_values, 0.0, np.random.default_rng(0)), [0, 1])


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


@pytest.mark.parametrize(
    ("worker", "num_workers", "exponent"),
    [(0, 8, 1), (7, 8, 1 + 7), (1, 8, 1 + 7 * 1 / 7), (3, 5, 1 + 7 * 3 / 4), (0, 1, 1)],
)
def test_worker_epsilon_is_that_of_ape_x(worker, num_workers, exponent):
    assert worker_epsilon(0.4, worker, num_workers) == pytest.approx(0.4**exponent)


def test_worker_epsilon_with_another_alpha():
    assert worker_epsilon(0.5, 1, 3, alpha=2.0) == pytest.approx(0.5 ** (1 + 2 * 1 / 2))
