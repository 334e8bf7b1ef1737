import numpy as np
import pytest
import tensorflow as tf

from async_dqn.nn.aligned import aligned_empty, as_tensor, is_aligned


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32])
@pytest.mark.parametrize("shape", [(32,), (5, 4, 7, 3), (1,)])
def test_array_and_tensor_are_the_same_memory(shape, dtype):
    array = aligned_empty(shape, dtype)
    assert (array.shape, array.dtype) == (shape, dtype)
    array[...] = 3
    tensor = as_tensor(array)
    assert (tensor.shape, tensor.dtype) == (shape, dtype)
    double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec(shape, dtype)]).get_concrete_function()
    assert (double(tensor).numpy() == 6).all()
    array[...] = np.arange(array.size).reshape(shape)
    assert (double(tensor).numpy() == 2 * array).all()


def test_the_memory_lives_as_long_as_the_tensor():
    array = aligned_empty((1_000,), np.float32)
    array[:] = 5
    tensor = as_tensor(array)
    del array
    others = [np.full(1_016, -1, np.float32) for _ in range(100)]  # would take freed memory
    np.testing.assert_array_equal(tensor.numpy(), 5)
    assert len(others) == 100


def test_an_array_that_lies_elsewhere_is_refused():
    array, fixed = aligned_empty((4, 64), np.uint8), aligned_empty((4, 64), np.uint8)
    fixed.flags.writeable = False
    for wrong in (array.reshape(-1)[1:], array[:, 1:], array.T, fixed):
        assert not is_aligned(wrong)
        with pytest.raises(ValueError, match="not contiguous, not writeable, or not aligned to 64 bytes"):
            as_tensor(wrong)
