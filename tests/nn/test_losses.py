"""Losses against arithmetic by hand, and where their gradients go."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.nn import losses

Q_TM1 = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
A_TM1 = tf.constant([0, 2])
R_T = tf.constant([1.0, -1.0])
DISCOUNT_T = tf.constant([0.9, 0.0])
Q_T = tf.constant([[0.0, 2.0, 1.0], [7.0, 8.0, 9.0]])
SELECTOR = tf.constant([[5.0, 1.0, 6.0], [1.0, 0.0, 0.0]])


def test_q_learning_bootstraps_from_the_best_value_and_not_from_a_terminal_state():
    errors = losses.q_learning(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T)
    np.testing.assert_allclose(errors, [1 + 0.9 * 2 - 1, -1 + 0 * 9 - 6], rtol=1e-6)


def test_double_q_learning_values_the_action_that_the_selector_chooses():
    errors = losses.double_q_learning(Q_TM1, A_TM1, R_T, tf.constant([0.9, 0.5]), Q_T, SELECTOR)
    np.testing.assert_allclose(errors, [1 + 0.9 * 1 - 1, -1 + 0.5 * 7 - 6], rtol=1e-6)


def test_double_q_learning_with_the_target_as_selector_is_q_learning():
    double = losses.double_q_learning(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T, Q_T)
    np.testing.assert_array_equal(double, losses.q_learning(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T))


def test_gradient_reaches_the_value_of_the_action_taken_and_nothing_else():
    sources = [Q_TM1, Q_T, SELECTOR, R_T, DISCOUNT_T]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        total = tf.reduce_sum(losses.double_q_learning(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T, SELECTOR))
    of_q_tm1, *others = tape.gradient(total, sources)
    np.testing.assert_array_equal(of_q_tm1, [[-1, 0, 0], [0, 0, -1]])
    assert others == [None] * 4


def test_no_gradient_reaches_the_target_of_q_learning():
    with tf.GradientTape() as tape:
        tape.watch(Q_T)
        total = tf.reduce_sum(losses.q_learning(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T))
    assert tape.gradient(total, Q_T) is None


GOOD = {"q_tm1": Q_TM1, "a_tm1": A_TM1, "r_t": R_T, "discount_t": DISCOUNT_T, "q_t": Q_T, "q_t_selector": SELECTOR}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("change", [lambda x: x[0], lambda x: x[..., None]], ids=["rank too low", "rank too high"])
def test_wrong_rank_is_refused(name, change):
    with pytest.raises(ValueError, match=f"rank {change(GOOD[name]).shape.rank}, not {GOOD[name].shape.rank}"):
        losses.double_q_learning(**(GOOD | {name: change(GOOD[name])}))


@pytest.mark.parametrize(
    ("error", "delta", "expected"),
    [
        (0.0, 1.0, 0.0),
        (0.5, 1.0, 0.5 * 0.5**2),
        (-0.5, 1.0, 0.5 * 0.5**2),
        (1.0, 1.0, 0.5 * 1**2),
        (3.0, 1.0, 0.5 * 1**2 + 1 * (3 - 1)),
        (-3.0, 1.0, 0.5 * 1**2 + 1 * (3 - 1)),
        (3.0, 2.0, 0.5 * 2**2 + 2 * (3 - 2)),
    ],
)
def test_huber(error, delta, expected):
    assert float(losses.huber(tf.constant(error), delta)) == pytest.approx(expected)


@settings(deadline=None)
@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=5),
    st.floats(0.125, 8, width=32),
)
def test_gradient_of_huber_is_the_clipped_error(errors, delta):
    error = tf.constant(errors, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(error)
        total = tf.reduce_sum(losses.huber(error, delta))
    np.testing.assert_allclose(tape.gradient(total, error), np.clip(errors, -delta, delta), atol=1e-6)


@pytest.mark.parametrize(
    ("max_norm", "expected"),
    [(0.0, [3, 4]), (5.0, [3, 4]), (10.0, [3, 4]), (2.5, [3 * 2.5 / 5, 4 * 2.5 / 5])],
    ids=["never", "just right", "small enough", "too large"],
)
def test_clip_by_global_norm(max_norm, expected):
    np.testing.assert_allclose(losses.clip_by_global_norm(tf.constant([3.0, 4.0]), max_norm), expected, rtol=1e-6)


def test_clipping_leaves_a_gradient_of_zero_at_zero():
    np.testing.assert_array_equal(losses.clip_by_global_norm(tf.zeros(3), 1.0), np.zeros(3))
