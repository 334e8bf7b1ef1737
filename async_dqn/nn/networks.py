"""Networks as pairs of pure functions: `init(rng)` gives named arrays, `apply(params, observation)` named outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

Parameters = Mapping[str, Any]

_CONVOLUTIONS = {  # filters, size, stride
    "nature": [(32, 8, 4), (64, 4, 2), (64, 3, 1)],
    "nips": [(16, 8, 4), (32, 4, 2)],
    "mlp": [],
}
_HIDDEN = {"nature": [512], "nips": [256], "mlp": [128, 128]}
_BLOCK = 4  # pixels: the stride of every first convolution, and half its size
_NORM_EPSILON = 1e-6  # added to the variance by layer norm


class Head(NamedTuple):
    """An output of a network: a linear layer on the last hidden one.

    Attributes:
      outputs: how many numbers it gives for each observation.
      scale: multiplies the initial weights and biases. 0.01 makes the first policy nearly uniform.
      constant: it is a vector of parameters instead, the same for every observation, that starts at 0.
      atoms: if not 0, each output is so many numbers: the logits of a distribution.
    """

    outputs: int
    scale: float = 1.0
    constant: bool = False
    atoms: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the output for one observation."""
        return (self.outputs, self.atoms) if self.atoms else (self.outputs,)


class Network(NamedTuple):
    """A network for one observation shape, with one or more heads.

    Attributes:
      shapes: name -> shape of every parameter, in the order of the flat vector.
      init: generator -> {name: float32 array}.
      apply: ({name: tensor}, observation [B, S, ...] uint8 or float32) -> {head: [B, outputs] float32, or
        [B, outputs, atoms]}. A third argument, a seed [2] int32, counts for noisy networks alone.
    """

    name: str
    shapes: dict[str, tuple[int, ...]]
    init: Callable[[np.random.Generator], dict[str, np.ndarray]]
    apply: Callable[..., dict[str, tf.Tensor]]


def make_network(
    name: str,
    observation_shape: tuple[int, ...],
    stack: int,
    heads: Mapping[str, Head],
    *,
    dueling: bool = False,
    center_frames: bool = False,
    layer_norm: bool = False,
    compute_dtype: str = "float32",
) -> Network:
    """The network `name` for S stacked observations of `observation_shape`.

    `nature` is that of Mnih et al. 2015, `nips` that of Mnih et al. 2013, `mlp` two hidden layers for vectors. All
    heads share the layers below them. With `dueling` (Wang et al. 2016, equation 9) the one head is the sum of two
    streams, each with a last hidden layer of its own; where it has atoms, the sum of their logits (Hessel et al. 2018).
    Frames are scaled to [0, 1]; with `center_frames` each stack has its own mean taken off and three times the
    contrast. Atari's bright, even backgrounds otherwise drive most first-layer units below zero for good within a few
    hundred Adam steps.

    With `layer_norm` (Ba et al. 2016) each hidden layer is normalised before its ReLU: over its units, and for a
    convolution over the filters at each place, as in the code of Gallici et al. 2024. It is computed in float32.

    With the `compute_dtype` bfloat16 all layers but the heads compute in it, on parameters rounded to it; the
    parameters themselves, their gradients and the outputs stay float32.

    Raises:
      ValueError: the network does not fit the observation's rank, or `dueling` does not fit the heads.
    """
    convolutions, hidden = _CONVOLUTIONS[name], _HIDDEN[name]
    if bool(convolutions) != (len(observation_shape) == 2):
        raise ValueError(f"network {name!r} does not fit observations of shape {observation_shape}")
    if dueling and len(heads) != 1:
        raise ValueError(f"a dueling network has one head, not {list(heads)}")
    shapes: dict[str, tuple[int, ...]] = {}

    if convolutions:
        height, width = observation_shape
        if height % _BLOCK or width % _BLOCK:
            raise ValueError(f"network {name!r} needs frames whose sides divide by {_BLOCK}, not {observation_shape}")
        channels = stack
        for index, (filters, size, stride) in enumerate(convolutions):
            shapes[f"conv{index}/w"], shapes[f"conv{index}/b"] = (size, size, channels, filters), (filters,)
            height, width, channels = (height - size) // stride + 1, (width - size) // stride + 1, filters
        num_features = height * width * channels
    else:
        num_features = stack * int(np.prod(observation_shape))
    shared = hidden[:-1] if dueling else hidden
    inputs = num_features
    for index, size in enumerate(shared):
        shapes[f"hidden{index}/w"], shapes[f"hidden{index}/b"] = (inputs, size), (size,)
        inputs = size
    dueled, head = next(iter(heads.items()))
    last = {"value": head._replace(outputs=1), "advantage": head} if dueling else heads
    for layer, head in last.items():
        if head.constant:
            shapes[f"{layer}/b"] = (head.outputs,)
            continue
        if dueling:
            shapes[f"{layer}_hidden/w"], shapes[f"{layer}_hidden/b"] = (inputs, hidden[-1]), (hidden[-1],)
        shapes[f"{layer}/w"], shapes[f"{layer}/b"] = (hidden[-1], math.prod(head.shape)), (math.prod(head.shape),)
    scales = {f"{layer}/{part}": head.scale for layer, head in last.items() for part in "wb"}
    filled = {f"{layer}/b": 0.0 for layer, head in last.items() if head.constant}  # with what they begin
    if layer_norm:
        for bias in [key for key in shapes if key.endswith("/b") and key not in scales]:
            for name, start in (("scale", 1.0), ("offset", 0.0)):
                key = f"{bias[:-2]}/{name}"
                shapes[key], filled[key] = shapes[bias], start

    def init(rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {
            key: np.full(shape, filled[key], np.float32)
            if key in filled
            else _initial(shape, shapes[key[:-1] + "w"], scales.get(key, 1.0), rng)
            for key, shape in shapes.items()
        }

    def as_computed(params: Parameters) -> Parameters:
        """The parameters in the type that each layer computes in; float32 for the last layers and for layer norm."""
        wide = scales.keys() | filled.keys()
        return {key: value if key in wide else tf.cast(value, compute_dtype) for key, value in params.items()}

    def activate(params: Parameters, layer: str, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(_layer_norm(x, params[f"{layer}/scale"], params[f"{layer}/offset"]) if layer_norm else x)

    def torso(params: Parameters, x: tf.Tensor) -> tf.Tensor:
        for index, (_, _, stride) in enumerate(convolutions):
            x = tf.nn.conv2d(x, params[f"conv{index}/w"], stride if index else 1, "VALID")
            x = activate(params, f"conv{index}", tf.nn.bias_add(x, params[f"conv{index}/b"]))
        x = tf.reshape(x, [-1, num_features])
        for index in range(len(shared)):
            x = activate(params, f"hidden{index}", _dense(params, f"hidden{index}", x))
        return x

    def output(params: Parameters, layer: str, x: tf.Tensor) -> tf.Tensor:
        if last[layer].constant:
            return tf.broadcast_to(params[f"{layer}/b"], [tf.shape(x)[0], last[layer].outputs])
        if dueling:
            x = activate(params, f"{layer}_hidden", _dense(params, f"{layer}_hidden", x))
        return tf.reshape(_dense(params, layer, tf.cast(x, tf.float32)), [-1, *last[layer].shape])

    def apply(params: Parameters, observation: tf.Tensor, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        del seed
        x = observation
        if convolutions:
            x = tf.cast(_blocks(x), tf.float32)  # [B, H / 4, W / 4, S * 16]
            if center_frames:
                x = x - tf.reduce_mean(x, axis=[1, 2, 3], keepdims=True)
            scale = (3 if center_frames else 1) / 255  # of the kernel, which is cheaper than to scale the frames
            params = {**params, "conv0/w": _block_kernel(params["conv0/w"]) * scale}
        params = as_computed(params)
        x = torso(params, tf.cast(x, compute_dtype))  # [B, features]
        outputs = {layer: output(params, layer, x) for layer in last}  # [B, outputs] or [B, outputs, atoms]
        if not dueling:
            return outputs
        value, advantage = outputs["value"], outputs["advantage"]  # [B, 1], [B, A], or both with atoms
        return {dueled: value + advantage - tf.reduce_mean(advantage, axis=1, keepdims=True)}

    return Network(name, shapes, init, apply)


def _blocks(frames: tf.Tensor) -> tf.Tensor:
    """[B, S, H, W] uint8 -> [B, H / 4, W / 4, S * 16]: each block of 4x4 pixels of all S frames becomes one cell.

    The channels of an image must come last, and moving single bytes there takes longer than the convolution. Here
    four bytes move at a time: a row of a block. A convolution of size 8 and stride 4 is one of size 2 over such blocks.
    """
    _, stack, height, width = frames.shape
    rows, columns = height // _BLOCK, width // _BLOCK
    words = tf.bitcast(tf.reshape(frames, [-1, stack, rows, _BLOCK, columns, _BLOCK]), tf.int32)
    words = tf.transpose(words, [0, 2, 4, 1, 3])  # [B, rows, columns, S, 4]
    return tf.reshape(tf.bitcast(words, tf.uint8), [-1, rows, columns, stack * _BLOCK * _BLOCK])


def _block_kernel(kernel: tf.Tensor) -> tf.Tensor:
    """[8, 8, S, F] -> [2, 2, S * 16, F]: the same kernel over `_blocks`."""
    size, _, stack, filters = kernel.shape
    cells = size // _BLOCK
    split = tf.reshape(kernel, [cells, _BLOCK, cells, _BLOCK, stack, filters])
    return tf.reshape(tf.transpose(split, [0, 2, 4, 1, 3, 5]), [cells, cells, stack * _BLOCK * _BLOCK, filters])


def _dense(params: Parameters, name: str, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(tf.matmul(x, params[f"{name}/w"]), params[f"{name}/b"])


def _layer_norm(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """[..., F] with mean 0 and variance 1 over the last axis, then scaled and shifted; of the type of x."""
    wide = tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(wide, [-1], keepdims=True)  # [..., 1]
    return tf.cast((wide - mean) * tf.math.rsqrt(variance + _NORM_EPSILON) * scale + offset, x.dtype)


def _initial(
    shape: tuple[int, ...], weight_shape: tuple[int, ...], scale: float, rng: np.random.Generator
) -> np.ndarray:
    """Uniform in +-scale/sqrt(fan-in), weights and biases, as in the Lua implementation of the Nature paper."""
    bound = scale / np.sqrt(np.prod(weight_shape[:-1]))
    return rng.uniform(-bound, bound, shape).astype(np.float32)
