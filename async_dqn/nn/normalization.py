"""Running mean and variance of observations: one more module of the store, which no loss trains.

What a minibatch says of mean and variance takes the place of their gradient, and the optimizer `average` makes the
running average of it. So every store, update mode, checkpoint and export has them as it has any other parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.base.schedules import constant
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn import optimizers
from async_dqn.nn.layout import Layout
from async_dqn.nn.module import Module
from async_dqn.nn.networks import Unpacked, unpack

MODULE = "observations"
# Both as in VecNormalize of OpenAI Baselines.
LIMIT = 10.0  # standard deviations, beyond which observations are cut off
_EPSILON = 1e-8  # added to the variance

Apply = Callable[..., "dict[str, tf.Tensor]"]  # as text: what needs no TensorFlow imports this too


def sizes(spec: EnvironmentSpec) -> list[int]:
    """How many means there are: of the channels of a picture, and of the numbers of a vector."""
    channels = math.prod(spec.picture_shape[2:]) if spec.picture_shape else 0
    vector = spec.packing.vector if spec.packing else 0 if channels else spec.observation_shape[0]
    return [channels, vector]


def make_statistics(spec: EnvironmentSpec, *, weight: float = 1.0, has_target: bool = False) -> Module:
    """The module of mean and variance.

    Args:
      weight: of each minibatch; 0 for a worker whose minibatches are not to count.
      has_target: whether there is a target copy, to go with target networks.
    """
    shapes = {name: (sum(sizes(spec)),) for name in ("mean", "variance")}

    def init(rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}

    rate = constant(weight)
    return Module(MODULE, Layout(shapes), init, optimizers.average(), rate, has_target, is_trained=False)


def with_normalization(apply: Apply, spec: EnvironmentSpec) -> Apply:
    """`apply` of an agent, (parameters of all modules, observations [B, S, ...], ...), on normalised observations."""

    def applied(params: Mapping[str, Mapping[str, Any]], observation: tf.Tensor, *more: Any) -> dict[str, tf.Tensor]:
        return apply(params, normalize(params[MODULE], tf.convert_to_tensor(observation), spec), *more)

    return applied


def normalize(
    statistics: Mapping[str, tf.Tensor], observation: tf.Tensor, spec: EnvironmentSpec
) -> tf.Tensor | Unpacked:
    """Observations [B, S, ...] less their mean, divided by their standard deviation, as a network takes them.

    A picture becomes float32 whose 0 and 1 are at the bounds of its space, where a network's own scaling expects them.
    """
    mask, picture, vector = unpack(observation, spec.packing)
    of_picture, of_vector = zip(
        *(tf.split(statistics[name], sizes(spec)) for name in ("mean", "variance")), strict=True
    )
    if picture is not None:
        low, high = spec.bounds
        x = tf.cast(picture, tf.float32)
        x = standardize(x if len(spec.picture_shape) == 3 else x[..., None], *of_picture)  # [B, S, H, W, C]
        picture = low + (high - low) * tf.reshape(x, [-1, *picture.shape[1:]])
    if vector is not None:
        vector = standardize(vector, *of_vector)
    if spec.packing:
        return Unpacked(mask, picture, vector)
    return vector if picture is None else picture


def standardize(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
    """[B, S, ..., C] float32 less the mean [C], over the standard deviation, cut off at `LIMIT` of them.

    What has no variance, or none yet, is not divided. The gradients by `mean` and `variance` are none: they are the
    mean of `x`, and of the squared distance from `mean`, over all axes but the last; of stacks the newest observation
    counts, as zeros stand before the first one of an episode.
    """

    @tf.custom_gradient
    def standardized(x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> Any:
        scale = tf.where(variance > 0, tf.math.rsqrt(variance + _EPSILON), 1.0)

        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            axes, newest = list(range(len(x.shape) - 1)), x[:, -1:]
            seen = tf.reduce_mean(newest, axes)  # [C]
            # The first minibatch has no mean to go by but its own.
            distance = newest - tf.where(variance > 0, mean, seen)
            return upstream * scale, seen, tf.reduce_mean(distance * distance, axes)

        return (x - mean) * scale, gradients

    return tf.clip_by_value(standardized(x, mean, variance), -LIMIT, LIMIT)
