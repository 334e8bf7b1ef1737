"""A layer of long short-term memory (Hochreiter & Schmidhuber 1997), which carries numbers from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

CELLS = 256  # of A3C's paper
_FORGET_BIAS = 1.0  # a new network remembers (Jozefowicz et al. 2015)


class LSTM:
    """The layer, with a forget gate and without peepholes (Gers et al. 2000).

    Attributes:
      shapes: of its parameters, by name. The four parts of the last axis are input, forget and output gate, and what
        is written.
      num_cells: C.
      recurrent_size: M, numbers of the recurrent state of an environment: the cells, then what they put out.
    """

    def __init__(self, num_inputs: int, num_cells: int = CELLS):
        self._num_inputs, self.num_cells = num_inputs, num_cells
        self.shapes = {"lstm/w": (num_inputs + num_cells, 4 * num_cells), "lstm/b": (4 * num_cells,)}
        self.recurrent_size = 2 * num_cells

    def apply(
        self, params: Mapping[str, Any], x: tf.Tensor, recurrent_state: tf.Tensor, is_first: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """T steps of N environments, environment before time.

        Args:
          x: [N * T, num_inputs] float32.
          recurrent_state: [N, M] float32, from before the first step.
          is_first: [N, T] bool, whether a step begins an episode, before which nothing is remembered; None: T is 1, and
            `recurrent_state` is of the same episode.

        Returns:
          What it puts out, [N * T, C], and the recurrent state after the last step, [N, M].
        """
        of_inputs, of_outputs = tf.split(params["lstm/w"], [self._num_inputs, self.num_cells])
        gates = tf.nn.bias_add(tf.matmul(x, of_inputs), params["lstm/b"])  # [N * T, 4 C]
        cell, output = tf.split(recurrent_state, 2, axis=1)  # [N, C]
        if is_first is None:
            cell, output = _step(gates, of_outputs, cell, output)
            return output, tf.concat([cell, output], axis=1)
        length = is_first.shape[1]
        goes_on = tf.split(tf.cast(~is_first, tf.float32), length, axis=1)  # T of [N, 1]
        outputs = []
        for t, of_step in enumerate(tf.unstack(tf.reshape(gates, [-1, length, 4 * self.num_cells]), axis=1)):
            cell, output = _step(of_step, of_outputs, cell * goes_on[t], output * goes_on[t])
            outputs.append(output)
        stacked = tf.reshape(tf.stack(outputs, axis=1), [-1, self.num_cells])
        return stacked, tf.concat([cell, output], axis=1)


def _step(gates: tf.Tensor, of_outputs: tf.Tensor, cell: tf.Tensor, output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Cells and outputs [N, C] one step later, from those before and the part of the gates [N, 4 C] by the input."""
    write, keep, show, written = tf.split(gates + tf.matmul(output, of_outputs), 4, axis=1)  # [N, C]
    cell = tf.sigmoid(keep + _FORGET_BIAS) * cell + tf.sigmoid(write) * tf.tanh(written)
    return cell, tf.sigmoid(show) * tf.tanh(cell)
