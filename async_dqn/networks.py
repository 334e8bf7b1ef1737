"""Q-networks as pairs of pure functions: `init(rng)` gives named arrays, `apply(params, observation)` the values."""

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
NETWORKS = tuple(_HIDDEN)


class Network(NamedTuple):
    """A Q-network for one observation shape and number of actions.

    Attributes:
      shapes: name -> shape of every parameter.
      init: generator -> {name: float32 array}.
      apply: ({name: tensor}, observation [B, S, ...] uint8 or float32) -> action values [B, A] float32.
    """

    name: str
    shapes: dict[str, tuple[int, ...]]
    init: Callable[[np.random.Generator], dict[str, np.ndarray]]
    apply: Callable[[Parameters, tf.Tensor], tf.Tensor]


def make_network(
    name: str,
    observation_shape: tuple[int, ...],
    stack: int,
    num_actions: int,
    *,
    dueling: bool = False,
    center_frames: bool = False,
) -> Network:
    """The network `name` for S stacked observations of `observation_shape`.

    `nature` is that of Mnih et al. 2015, `nips` that of Mnih et al. 2013, `mlp` two hidden layers for vectors. With
    `dueling` (Wang et al. 2016, equation 9) each stream has a hidden layer of its own. Frames are scaled to [0, 1];
    with `center_frames` each stack has its own mean taken off and three times the contrast. Atari's bright, even
    backgrounds otherwise drive most first-layer units below zero for good within a few hundred Adam steps.

    Raises:
      ValueError: the network does not fit the observation's rank.
    """
    convolutions, hidden = _CONVOLUTIONS[name], _HIDDEN[name]
    if bool(convolutions) != (len(observation_shape) == 2):
        raise ValueError(f"network {name!r} does not fit observations of shape {observation_shape}")
    shapes: dict[str, tuple[int, ...]] = {}

    if convolutions:
        height, width = observation_shape
        channels = stack
        for index, (filters, size, stride) in enumerate(convolutions):
            shapes[f"conv{index}/w"], shapes[f"conv{index}/b"] = (size, size, channels, filters), (filters,)
            height, width, channels = (height - size) // stride + 1, (width - size) // stride + 1, filters
        features = height * width * channels
    else:
        features = stack * int(np.prod(observation_shape))
    heads = {"value": 1, "advantage": num_actions} if dueling else {"q": num_actions}
    for size in hidden[:-1]:
        index = sum(key.startswith("hidden") for key in shapes) // 2
        shapes[f"hidden{index}/w"], shapes[f"hidden{index}/b"] = (features, size), (size,)
        features = size
    for head, outputs in heads.items():
        shapes[f"{head}_hidden/w"], shapes[f"{head}_hidden/b"] = (features, hidden[-1]), (hidden[-1],)
        shapes[f"{head}/w"], shapes[f"{head}/b"] = (hidden[-1], outputs), (outputs,)

    def init(rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {key: _initial(shape, shapes[key[:-1] + "w"], rng) for key, shape in shapes.items()}

    def stream(params: Parameters, head: str, hidden_input: tf.Tensor) -> tf.Tensor:
        return _dense(params, head, tf.nn.relu(_dense(params, f"{head}_hidden", hidden_input)))

    def apply(params: Parameters, observation: tf.Tensor) -> tf.Tensor:
        if convolutions:
            x = tf.transpose(observation, [0, 2, 3, 1])  # [B, H, W, S]; as uint8, a quarter of the bytes
            x = tf.cast(x, tf.float32) * (1 / 255)
            if center_frames:
                x = 3 * (x - tf.reduce_mean(x, axis=[1, 2, 3], keepdims=True))
            for index, (_, _, stride) in enumerate(convolutions):
                x = tf.nn.conv2d(x, params[f"conv{index}/w"], stride, "VALID")
                x = tf.nn.relu(tf.nn.bias_add(x, params[f"conv{index}/b"]))
        else:
            x = tf.cast(observation, tf.float32)
        x = tf.reshape(x, [-1, shapes[next(key for key in shapes if "hidden" in key)][0]])  # [B, features]
        for index in range(len(hidden) - 1):
            x = tf.nn.relu(_dense(params, f"hidden{index}", x))
        if not dueling:
            return stream(params, "q", x)  # [B, A]
        value, advantage = stream(params, "value", x), stream(params, "advantage", x)  # [B, 1], [B, A]
        return value + advantage - tf.reduce_mean(advantage, axis=1, keepdims=True)

    return Network(name, shapes, init, apply)


def _dense(params: Parameters, name: str, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(tf.matmul(x, params[f"{name}/w"]), params[f"{name}/b"])


def _initial(shape: tuple[int, ...], weight_shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Uniform in +-1/sqrt(fan-in), weights and biases alike, as the Lua implementation of the Nature paper had it."""
    bound = 1 / np.sqrt(np.prod(weight_shape[:-1]))
    return rng.uniform(-bound, bound, shape).astype(np.float32)
