"""Networks as pairs of pure functions: `init(rng)` gives named arrays, `apply(params, observation)` named outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.envs.packing import Packing
from async_dqn.nn.convolutions import Convolutions
from async_dqn.nn.lstm import LSTM
from async_dqn.nn.policies import NEVER

Parameters = Mapping[str, Any]

_HIDDEN = {"nature": [512], "nips": [256], "small": [128], "impala": [256], "mlp": [128, 128]}
MASKED = ("q_values", "logits")  # heads with one number for each action
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
      apply: ({name: tensor}, observation [B, S, ...] uint8 or float32, or `Unpacked`) -> {head: [B, outputs] float32,
        or [B, outputs, atoms]}. A third argument, a seed [2] int32, counts for noisy networks alone. With a recurrent
        state the network takes instead what `LSTM.apply` takes after x, and gives the next one as the head
        "recurrent_state".
      recurrent_size: M, numbers of the recurrent state; 0: it has none.
    """

    shapes: dict[str, tuple[int, ...]]
    init: Callable[[np.random.Generator], dict[str, np.ndarray]]
    apply: Callable[..., dict[str, tf.Tensor]]
    recurrent_size: int = 0


def make_network(
    name: str,
    observation_shape: tuple[int, ...],
    stack: int,
    heads: Mapping[str, Head],
    *,
    dueling: bool = False,
    center_frames: bool = False,
    layer_norm: bool = False,
    lstm: bool = False,
    compute_dtype: str = "float32",
    bounds: tuple[float, float] = (0.0, 255.0),
    packing: Packing | None = None,
) -> Network:
    """The network `name` for S stacked observations of `observation_shape`.

    `mlp` has two hidden layers for vectors, the others are those of `Convolutions`, for pictures. All heads share the
    layers below them. With `dueling` (Wang et al. 2016, equation 9) the one head is the sum of two streams, each with a
    last hidden layer of its own; where it has atoms, the sum of their logits (Hessel et al. 2018). Pictures are scaled
    from `bounds` to [0, 1]; with `center_frames` each stack has its own mean taken off and three times the contrast.
    Atari's bright, even backgrounds otherwise drive most first-layer units below zero for good within a few hundred
    Adam steps.

    With `layer_norm` (Ba et al. 2016) each hidden layer is normalised before its ReLU: over its units, and for a
    convolution over the filters at each place, as in the code of Gallici et al. 2024. It is computed in float32.

    With `lstm` the heads are on a layer of 256 LSTM cells above the last hidden layer (Mnih et al. 2016), in float32.

    A packed observation has its vector go beside the features of its picture into the first hidden layer. Its mask of
    the newest step makes the numbers of actions that cannot be taken, in the heads "q_values" and "logits", -1e9.

    With the `compute_dtype` bfloat16 all layers but the heads compute in it, on parameters rounded to it; the
    parameters themselves, their gradients and the outputs stay float32.

    Raises:
      ValueError: the network does not fit the observation's rank, or `dueling` does not fit the heads or `lstm`.
    """
    hidden = _HIDDEN[name]
    is_picture = len(observation_shape) > 1
    picture_shape = packing.picture if packing else observation_shape if is_picture else ()
    if (name == "mlp") == bool(picture_shape):
        raise ValueError(f"network {name!r} does not fit observations of shape {observation_shape}")
    if dueling and (len(heads) != 1 or lstm):
        raise ValueError(f"a dueling network has one head, not {list(heads)}, and no LSTM")
    shapes: dict[str, tuple[int, ...]] = {}

    num_features = stack * (packing.vector if packing else 0 if is_picture else observation_shape[0])
    convolutions = None
    if picture_shape:
        convolutions = Convolutions(name, picture_shape, stack, center=center_frames, bounds=bounds)
        shapes |= convolutions.shapes
        num_features += convolutions.num_features
    shared = hidden[:-1] if dueling else hidden
    inputs = num_features
    for index, size in enumerate(shared):
        shapes[f"hidden{index}/w"], shapes[f"hidden{index}/b"] = (inputs, size), (size,)
        inputs = size
    recurrent = LSTM(inputs) if lstm else None
    of_lstm = recurrent.shapes if recurrent else {}
    shapes |= of_lstm
    width = recurrent.num_cells if recurrent else hidden[-1]  # of what the heads see
    dueled, head = next(iter(heads.items()))
    last = {"value": head._replace(outputs=1), "advantage": head} if dueling else heads
    for layer, head in last.items():
        if head.constant:
            shapes[f"{layer}/b"] = (head.outputs,)
            continue
        if dueling:
            shapes[f"{layer}_hidden/w"], shapes[f"{layer}_hidden/b"] = (inputs, hidden[-1]), (hidden[-1],)
        shapes[f"{layer}/w"], shapes[f"{layer}/b"] = (width, math.prod(head.shape)), (math.prod(head.shape),)
    scales = {f"{layer}/{part}": head.scale for layer, head in last.items() for part in "wb"}
    filled = {f"{layer}/b": 0.0 for layer, head in last.items() if head.constant}  # with what they begin
    if layer_norm:
        for bias in [key for key in shapes if key.endswith("/b") and key not in {**scales, **of_lstm}]:
            for part, start in (("scale", 1.0), ("offset", 0.0)):
                key = f"{bias[:-2]}/{part}"
                shapes[key], filled[key] = shapes[bias], start

    def init(rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {
            key: np.full(shape, filled[key], np.float32)
            if key in filled
            else _initial(shape, shapes[key[:-1] + "w"], scales.get(key, 1.0), rng)
            for key, shape in shapes.items()
        }

    def as_computed(params: Parameters) -> Parameters:
        """The parameters in the type that each layer computes in; float32 for the last layers, LSTM and layer norm."""
        wide = scales.keys() | filled.keys() | of_lstm.keys()
        return {key: value if key in wide else tf.cast(value, compute_dtype) for key, value in params.items()}

    def normalize(params: Parameters, layer: str, x: tf.Tensor) -> tf.Tensor:
        return _layer_norm(x, params[f"{layer}/scale"], params[f"{layer}/offset"]) if layer_norm else x

    def features(params: Parameters, picture: tf.Tensor | None, vector: tf.Tensor | None) -> tf.Tensor:
        """[B, features]"""
        parts = []
        if convolutions:
            parts.append(convolutions.apply(params, tf.cast(picture, compute_dtype), normalize))
        if vector is not None:
            parts.append(tf.cast(tf.reshape(vector, [tf.shape(vector)[0], -1]), compute_dtype))
        x = tf.concat(parts, axis=1) if len(parts) > 1 else parts[0]
        return tf.reshape(x, [-1, num_features])

    def torso(params: Parameters, x: tf.Tensor) -> tf.Tensor:
        for index in range(len(shared)):
            x = tf.nn.relu(normalize(params, f"hidden{index}", _dense(params, f"hidden{index}", x)))
        return x

    def output(params: Parameters, layer: str, x: tf.Tensor) -> tf.Tensor:
        if last[layer].constant:
            return tf.broadcast_to(params[f"{layer}/b"], [tf.shape(x)[0], last[layer].outputs])
        if dueling:
            x = tf.nn.relu(normalize(params, f"{layer}_hidden", _dense(params, f"{layer}_hidden", x)))
        return tf.reshape(_dense(params, layer, tf.cast(x, tf.float32)), [-1, *last[layer].shape])

    def apply(params: Parameters, observation: tf.Tensor | Unpacked, *others: tf.Tensor | None) -> dict[str, tf.Tensor]:
        is_unpacked = isinstance(observation, Unpacked)
        mask, picture, vector = observation if is_unpacked else unpack(tf.convert_to_tensor(observation), packing)
        if convolutions:
            params, picture = convolutions.prepare(params, picture)
        params = as_computed(params)
        x = torso(params, features(params, picture, vector))
        recurrent_state = None
        if recurrent:
            x, recurrent_state = recurrent.apply(params, tf.cast(x, tf.float32), *others)
        outputs = {layer: output(params, layer, x) for layer in last}  # [B, outputs] or [B, outputs, atoms]
        if dueling:
            value, advantage = outputs["value"], outputs["advantage"]  # [B, 1], [B, A], or both with atoms
            outputs = {dueled: value + advantage - tf.reduce_mean(advantage, axis=1, keepdims=True)}
        if mask is not None:
            outputs |= {name: tf.where(mask, outputs[name], tf.constant(NEVER)) for name in outputs if name in MASKED}
        return outputs if recurrent_state is None else {**outputs, "recurrent_state": recurrent_state}

    return Network(shapes, init, apply, recurrent.recurrent_size if recurrent else 0)


class Unpacked(NamedTuple):
    """The parts of stacked observations; None for what there is not."""

    mask: tf.Tensor | None  # [B, A] bool, of the newest step
    picture: tf.Tensor | None  # [B, S, H, W] or [B, S, H, W, C]
    vector: tf.Tensor | None  # [B, S, V] float32


def unpack(observation: tf.Tensor, packing: Packing | None) -> Unpacked:
    """The parts of observations [B, S, packing.size] uint8; without a packing, of pictures or vectors [B, S, ...]."""
    if not packing:
        is_vector = len(observation.shape) == 3
        return Unpacked(None, *((None, observation) if is_vector else (observation, None)))
    masks, pictures, vectors = tf.split(observation, packing.sizes, axis=-1)
    stack = observation.shape[1]
    mask = tf.cast(masks[:, -1], tf.bool) if packing.mask else None
    picture = tf.reshape(pictures, [-1, stack, *packing.picture]) if packing.picture else None
    vector = None
    if packing.vector:
        vector = tf.bitcast(tf.reshape(vectors, [-1, stack, packing.vector, 4]), tf.float32)
    return Unpacked(mask, picture, vector)


def _dense(params: Parameters, name: str, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(tf.matmul(x, params[f"{name}/w"]), params[f"{name}/b"])


def _layer_norm(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """[..., F] with mean 0 and variance 1 over the last axis, then scaled and shifted; of the type of x."""
    size = x.shape[-1]
    wide = tf.reshape(tf.cast(x, tf.float32), [-1, size])
    mean = tf.fill([size, 1], 1 / size)  # a product with it takes less time than a reduction over so few units
    centred = wide - tf.matmul(wide, mean)
    normal = centred * tf.math.rsqrt(tf.matmul(centred**2, mean) + _NORM_EPSILON)
    return tf.cast(tf.reshape(normal * scale + offset, tf.shape(x)), x.dtype)


def _initial(
    shape: tuple[int, ...], weight_shape: tuple[int, ...], scale: float, rng: np.random.Generator
) -> np.ndarray:
    """Uniform in +-scale/sqrt(fan-in), weights and biases, as in the Lua implementation of the Nature paper."""
    bound = scale / np.sqrt(np.prod(weight_shape[:-1]))
    return rng.uniform(-bound, bound, shape).astype(np.float32)
