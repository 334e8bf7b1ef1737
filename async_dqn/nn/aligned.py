"""Arrays whose memory a tensor can share, so that a minibatch is not copied from one to the other."""

from __future__ import annotations

import math
import typing

import numpy as np
import numpy.typing as npt

if typing.TYPE_CHECKING:
    import tensorflow as tf

_ALIGNMENT = 64  # bytes: what TensorFlow's kernels rely on


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """Like `np.empty`, for an array that `as_tensor` takes."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    offset = -memory.ctypes.data % _ALIGNMENT
    return memory[offset : offset + size].view(dtype).reshape(shape)


def is_aligned(array: np.ndarray) -> bool:
    """Whether `as_tensor` takes the array."""
    return bool(array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % _ALIGNMENT == 0)


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """The array as a tensor on the CPU: what is written into the one is in the other.

    So the array may change only while no TensorFlow function is reading the tensor.

    Raises:
      ValueError: the array is not contiguous, not writeable, or not aligned as `aligned_empty` aligns it.
    """
    import tensorflow as tf  # not above: the launcher knows replay, and does without the 600 MB

    if not is_aligned(array):
        fault = f"not contiguous, not writeable, or not aligned to {_ALIGNMENT} bytes"
        raise ValueError(f"an array of shape {array.shape} is {fault}")
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
