"""Where the arrays of a network lie in its one flat float32 vector."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

_ROW = 16  # floats; 64 bytes, to which TensorFlow aligns a tensor


class Layout:
    """Where each named array lies in the flat vector.

    The order is that of `shapes`; `flatten` and `unflatten` are inverse to each other. Every array begins on a boundary
    of 64 bytes, after zeros if need be, so that TensorFlow reads it where it lies: all arrays of a network cost a copy
    of it otherwise, every time. The zeros stay zeros: their gradient is 0.

    Attributes:
      num_parameters: P, the length of the flat vector, zeros included.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]):
        self.shapes = dict(shapes)
        self._sizes = [math.prod(shape) for shape in self.shapes.values()]
        self._rows = [math.ceil(size / _ROW) for size in self._sizes]
        self.num_parameters = sum(self._rows) * _ROW

    def flatten(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """{name: array} -> [P] float32. Raises ValueError where names or shapes are not the layout's."""
        given = {name: np.shape(array) for name, array in arrays.items()}
        if given != self.shapes:
            raise ValueError(f"parameters {given} do not fit the layout {self.shapes}")
        flat = np.zeros(self.num_parameters, np.float32)
        begins = np.cumsum([0, *self._rows]) * _ROW
        for name, begin, size in zip(self.shapes, begins, self._sizes, strict=False):
            flat[begin : begin + size] = np.ravel(arrays[name])
        return flat

    def unflatten(self, flat: tf.Tensor) -> dict[str, tf.Tensor]:
        """[P] -> {name: tensor}. One `split`, whose gradient is one `concat`: slices would each pad to full size."""
        parts = tf.split(tf.reshape(flat, [-1, _ROW]), self._rows)
        return {
            name: tf.reshape(_first(tf.reshape(part, [-1]), size, rows * _ROW), shape)
            for (name, shape), part, size, rows in zip(self.shapes.items(), parts, self._sizes, self._rows, strict=True)
        }


def _first(flat: tf.Tensor, size: int, given: int) -> tf.Tensor:
    return flat if size == given else flat[:size]
