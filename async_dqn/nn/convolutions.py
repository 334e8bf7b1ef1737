"""From stacks of pictures to features: the convolutional part of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

Parameters = Mapping[str, Any]
Normalize = Callable[[Parameters, str, Any], Any]

_LAYERS = {  # filters, size, stride
    "nature": [(32, 8, 4), (64, 4, 2), (64, 3, 1)],
    "nips": [(16, 8, 4), (32, 4, 2)],
    "small": [(16, 3, 1), (32, 3, 1)],
}
_SECTIONS = (16, 32, 32)  # filters of impala's, each of which halves the sides
_BLOCKS = 2  # residual blocks in each
MIN_SIDE = {"nature": 36, "nips": 20, "small": 1, "impala": 1}  # pixels

_CELL = 4  # pixels: the stride of nature's and nips's first convolution, and half its size


class Convolutions:
    """The convolutions `name` over S stacked pictures [H, W] or [H, W, C], whose channels they see side by side.

    `nature` is of Mnih et al. 2015, `nips` of Mnih et al. 2013, `impala` the large one of Espeholt et al. 2018
    (figure 3), `small` two layers of 3x3 kernels that lose no pixel, for pictures that are smaller than a kernel of the
    others' and its strides need. Pixels that the strides of nature and nips leave over at the lower and right edge are
    not seen.

    Pictures are scaled from `bounds` to [0, 1]; with `center` each stack has its own mean taken off and three times the
    contrast.

    Attributes:
      shapes: name -> shape of every parameter.
      num_features: F, what comes out for each stack.

    Raises:
      ValueError: a side is too short.
    """

    def __init__(
        self,
        name: str,
        picture_shape: tuple[int, ...],
        stack: int,
        *,
        center: bool,
        bounds: tuple[float, float] = (0.0, 255.0),
    ):
        height, width, *more = picture_shape
        if min(height, width) < MIN_SIDE[name]:
            raise ValueError(
                f"network {name!r} needs pictures of at least {MIN_SIDE[name]} pixels, not {picture_shape}"
            )
        self._name, self._center, self._bounds = name, center, bounds
        self._size = (height, width, stack * (more[0] if more else 1))
        self._stack = stack
        self._in_cells = name in ("nature", "nips") and not more and not (height % _CELL or width % _CELL)
        self.shapes: dict[str, tuple[int, ...]] = {}
        add = self._add_impala if name == "impala" else self._add_layers
        self.num_features = add(*self._size)

    def _add(self, key: str, size: int, channels: int, filters: int) -> None:
        self.shapes[f"{key}/w"], self.shapes[f"{key}/b"] = (size, size, channels, filters), (filters,)

    def _add_layers(self, height: int, width: int, channels: int) -> int:
        for index, (filters, size, stride) in enumerate(_LAYERS[self._name]):
            self._add(f"conv{index}", size, channels, filters)
            channels = filters
            if self._name != "small":
                height, width = (height - size) // stride + 1, (width - size) // stride + 1
        return height * width * channels

    def _add_impala(self, height: int, width: int, channels: int) -> int:
        for section, filters in enumerate(_SECTIONS):
            self._add(f"conv{section}", 3, channels, filters)
            for block in range(_BLOCKS):
                for layer in range(2):
                    self._add(f"conv{section}_block{block}_{layer}", 3, filters, filters)
            height, width, channels = -(-height // 2), -(-width // 2), filters
        return height * width * channels

    def prepare(self, params: Parameters, pictures: tf.Tensor) -> tuple[Parameters, tf.Tensor]:
        """What `apply` is to be given in place of the parameters and of pictures [B, S, H, W] or [B, S, H, W, C]."""
        low, high = self._bounds
        scale = (3 if self._center else 1) / (high - low)
        if self._in_cells and pictures.dtype == tf.uint8 and low == 0:
            x = self._centered(tf.cast(_cells(pictures), tf.float32))  # [B, H / 4, W / 4, S * 16]
            # The kernel is scaled, which is cheaper than to scale the frames.
            return {**params, "conv0/w": _cell_kernel(params["conv0/w"]) * scale}, x
        x = tf.cast(pictures, tf.float32)
        if self._stack > 1:
            x = tf.reshape(x, [-1, self._stack, *self._size[:2], self._size[2] // self._stack])
            x = tf.transpose(x, [0, 2, 3, 1, 4])  # [B, H, W, S, C]
        return params, self._centered(tf.reshape(x, [-1, *self._size]) - low) * scale  # [B, H, W, S * C]

    def _centered(self, x: tf.Tensor) -> tf.Tensor:
        return x - tf.reduce_mean(x, axis=[1, 2, 3], keepdims=True) if self._center else x

    def apply(self, params: Parameters, x: tf.Tensor, normalize: Normalize) -> tf.Tensor:
        """Features [B, F] of what `prepare` gave, in the type that it has by now.

        Args:
          normalize: (parameters, name of a layer, what it gives) -> what goes on.
        """
        apply = self._apply_impala if self._name == "impala" else self._apply_layers
        x = apply(params, x, normalize)
        return tf.reshape(x, [-1, self.num_features])

    def _apply_layers(self, params: Parameters, x: tf.Tensor, normalize: Normalize) -> tf.Tensor:
        padding = "SAME" if self._name == "small" else "VALID"
        for index, (_, size, stride) in enumerate(_LAYERS[self._name]):
            in_cells = params[f"conv{index}/w"].shape[0] != size
            x = _convolve(params, f"conv{index}", x, 1 if in_cells else stride, padding)
            x = tf.nn.relu(normalize(params, f"conv{index}", x))
        return x

    def _apply_impala(self, params: Parameters, x: tf.Tensor, normalize: Normalize) -> tf.Tensor:
        for section in range(len(_SECTIONS)):
            x = normalize(params, f"conv{section}", _convolve(params, f"conv{section}", x))
            x = tf.nn.max_pool2d(x, 3, 2, "SAME")
            for block in range(_BLOCKS):
                y = x
                for layer in range(2):
                    key = f"conv{section}_block{block}_{layer}"
                    y = normalize(params, key, _convolve(params, key, tf.nn.relu(y)))
                x = x + y
        return tf.nn.relu(x)


def _convolve(params: Parameters, key: str, x: tf.Tensor, stride: int = 1, padding: str = "SAME") -> tf.Tensor:
    return tf.nn.bias_add(tf.nn.conv2d(x, params[f"{key}/w"], stride, padding), params[f"{key}/b"])


def _cells(frames: tf.Tensor) -> tf.Tensor:
    """[B, S, H, W] uint8 -> [B, H / 4, W / 4, S * 16]: each block of 4x4 pixels of all S frames becomes one cell.

    The channels of an image must come last, and moving single bytes there takes longer than the convolution. Here
    four bytes move at a time: a row of a block. A convolution of size 8 and stride 4 is one of size 2 over such blocks.
    """
    _, stack, height, width = frames.shape
    rows, columns = height // _CELL, width // _CELL
    words = tf.bitcast(tf.reshape(frames, [-1, stack, rows, _CELL, columns, _CELL]), tf.int32)
    words = tf.transpose(words, [0, 2, 4, 1, 3])  # [B, rows, columns, S, 4]
    return tf.reshape(tf.bitcast(words, tf.uint8), [-1, rows, columns, stack * _CELL * _CELL])


def _cell_kernel(kernel: tf.Tensor) -> tf.Tensor:
    """[8, 8, S, F] -> [2, 2, S * 16, F]: the same kernel over `_cells`."""
    size, _, stack, filters = kernel.shape
    cells = size // _CELL
    split = tf.reshape(kernel, [cells, _CELL, cells, _CELL, stack, filters])
    return tf.reshape(tf.transpose(split, [0, 2, 4, 1, 3, 5]), [cells, cells, stack * _CELL * _CELL, filters])
