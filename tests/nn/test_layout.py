"""The layout of the flat vector."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.nn.layout import Layout

SHAPES = st.dictionaries(
    st.text("abc/", min_size=1, max_size=4),
    st.lists(st.integers(1, 4), max_size=4).map(tuple),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)
@given(SHAPES, st.integers(0, 2**32 - 1))
def test_layout_round_trip(shapes, seed):
    layout = Layout(shapes)
    rng = np.random.default_rng(seed)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    flat = layout.flatten(arrays)
    # Each array takes whole rows of 16 floats.
    assert (
        flat.shape == (layout.num_parameters,) == (sum(-(-math.prod(shape) // 16) * 16 for shape in shapes.values()),)
    )
    assert flat.dtype == np.float32
    back = layout.unflatten(flat)
    assert list(back) == list(shapes)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
    np.testing.assert_array_equal(layout.flatten({name: x.numpy() for name, x in back.items()}), flat)


def test_arrays_lie_in_the_order_of_the_layout_each_from_a_boundary_on():
    layout = Layout({"w": (2, 2), "b": (), "c": (20,), "a": (1,)})
    flat = layout.flatten({"a": np.array([6]), "b": np.array(5), "w": np.array([[1, 2], [3, 4]]), "c": np.full(20, 7)})
    np.testing.assert_array_equal(flat, [1, 2, 3, 4] + 12 * [0] + [5] + 15 * [0] + 20 * [7] + 12 * [0] + [6] + 15 * [0])


def test_the_zeros_between_arrays_have_no_gradient():
    layout = Layout({"w": (3,), "b": (17,)})
    flat = tf.Variable(np.arange(48, dtype=np.float32))
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(array**2) for array in layout.unflatten(flat).values()])
    expected = np.zeros(48)
    expected[:3], expected[16:33] = 2 * np.arange(3), 2 * np.arange(16, 33)
    np.testing.assert_array_equal(tape.gradient(loss, flat), expected)


@pytest.mark.parametrize(
    "arrays",
    [{"w": np.zeros(3)}, {"w": np.zeros((2, 1))}, {"v": np.zeros(2)}, {}, {"w": np.zeros(2), "v": np.zeros(2)}],
    ids=["size", "rank", "name", "missing", "too many"],
)
def test_flatten_refuses_what_does_not_fit(arrays):
    with pytest.raises(ValueError, match=r"'w': \(2,\)"):
        Layout({"w": (2,)}).flatten(arrays)
