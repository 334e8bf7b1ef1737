"""The sum tree against a cumulative sum, under random operations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.data.sum_tree import SumTree

VALUES = st.one_of(st.just(0.0), st.integers(1, 1_000).map(float), st.floats(1e-9, 1e9))


@st.composite
def operations(draw):
    """A size, and assignments (leaves, values) to a tree of it; leaves may repeat within one."""
    size = draw(st.integers(1, 40))
    assignment = st.lists(st.tuples(st.integers(0, size - 1), VALUES), max_size=12)
    return size, draw(st.lists(assignment, max_size=12))


def made(size, assignments):
    tree, leaves = SumTree(size), np.zeros(size)
    for pairs in assignments:
        indices, values = np.array([i for i, _ in pairs], np.int64), np.array([v for _, v in pairs])
        tree.set(indices, values)
        for index, value in pairs:
            leaves[index] = value
        tree.check_valid()
        np.testing.assert_array_equal(tree.values, leaves)
    return tree, leaves


@given(operations())
@settings(deadline=None)
def test_total_is_the_sum_of_leaves_and_follows_from_them_alone(given_operations):
    tree, leaves = made(*given_operations)
    assert tree.total == pytest.approx(leaves.sum(), rel=1e-12)
    again = SumTree(len(leaves))
    again.set(np.arange(len(leaves)), leaves)
    assert again.total == tree.total


@given(operations(), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=30))
@settings(deadline=None)
def test_finds_what_a_search_in_the_cumulative_sum_finds(given_operations, fractions):
    tree, leaves = made(*given_operations)
    targets = np.array(fractions) * tree.total
    found = tree.find(targets)
    assert ((found >= 0) & (found < len(leaves))).all()
    if not leaves.any():
        return
    assert (leaves[found] > 0).all()
    ends = np.cumsum(leaves)
    slack = 1e-12 * ends[-1]  # the two sums are rounded differently
    assert (targets <= ends[found] + slack).all()
    assert (targets >= ends[found] - leaves[found] - slack).all()


def test_whole_numbers_are_found_exactly():
    tree = SumTree(5)
    tree.set(np.arange(5), np.array([2.0, 0.0, 1.0, 3.0, 0.0]))
    assert tree.total == 2 + 1 + 3
    assert tree.find(np.array([0, 1, 1.5, 2, 2.5, 3, 4, 5, 5.9])).tolist() == [0, 0, 0, 2, 2, 3, 3, 3, 3]
    assert tree.find(np.array([6.0, 7.0])).tolist() == [3, 3]  # what rounding may make of the largest target


def test_leaves_are_found_in_proportion_to_their_values():
    tree, values = SumTree(7), np.array([1.0, 0.0, 2.0, 4.0, 0.5, 0.0, 2.5])
    tree.set(np.arange(7), values)
    found = tree.find(np.random.default_rng(0).random(100_000) * tree.total)
    np.testing.assert_allclose(np.bincount(found, minlength=7) / 100_000, values / values.sum(), atol=0.005)


def test_what_does_not_fit_is_refused_and_nothing_changed():
    tree = SumTree(3)
    tree.set(np.array([0, 2]), 1.0)
    for values in (np.array([-1.0]), np.array([np.nan]), np.array([np.inf])):
        with pytest.raises(ValueError, match="finite and at least 0"):
            tree.set(np.array([1]), values)
    for leaf in (-1, 3):
        with pytest.raises(IndexError, match=r"not all in 0 \.\.\. 2"):
            tree.set(np.array([leaf]), 1.0)
    with pytest.raises(ValueError, match="at least one leaf"):
        SumTree(0)
    tree.check_valid()
    assert tree.values.tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match="read-only"):
        tree.values[0] = 5
