"""Optimizers over one flat float32 vector, built from TensorFlow's fused kernels.

The same `apply` runs on a worker's own variables (eager, inside a `tf.function`) and on a parameter server's shard
(graph, placed beside the shard), so a gradient means the same thing wherever it is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

Slots = Mapping[str, Any]  # slot name -> variable


class Optimizer(NamedTuple):
    """An update rule: what it keeps beside the parameters, and how it applies one update.

    Attributes:
      initial_slots: size -> {slot name: initial value}. A slot of shape [size] follows the parameters when they are cut
        into shards; a slot of any other shape belongs to every shard alike.
      apply: (parameters variable [P], slots, update tensor [P], learning rate scalar) -> an operation (graph) or None.
    """

    name: str
    initial_slots: Callable[[int], dict[str, np.ndarray]]
    apply: Callable[[Any, Slots, tf.Tensor, tf.Tensor], Any]


def add() -> Optimizer:
    """Adds the update as it is: what a parameter server does with a delta (Downpour, Dean et al. 2012)."""

    def apply(parameters: Any, slots: Slots, update: tf.Tensor, learning_rate: tf.Tensor) -> Any:
        del slots, learning_rate
        return parameters.assign_add(update, read_value=False)

    return Optimizer("add", lambda size: {}, apply)


def adam(*, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimizer:
    """Adam (Kingma & Ba 2015, algorithm 1, with the "epsilon hat" form of section 2)."""

    def initial_slots(size: int) -> dict[str, np.ndarray]:
        return {
            "m": np.zeros(size, np.float32),
            "v": np.zeros(size, np.float32),
            "beta_powers": np.array([beta1, beta2], np.float32),
        }

    def apply(parameters: Any, slots: Slots, update: tf.Tensor, learning_rate: tf.Tensor) -> Any:
        powers = slots["beta_powers"].read_value()  # [2]
        applied = tf.raw_ops.ResourceApplyAdam(
            var=parameters.handle,
            m=slots["m"].handle,
            v=slots["v"].handle,
            beta1_power=powers[0],
            beta2_power=powers[1],
            lr=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            grad=update,
        )
        with tf.control_dependencies([applied] if applied is not None else []):
            return slots["beta_powers"].assign(powers * tf.constant([beta1, beta2]), read_value=False)

    return Optimizer("adam", initial_slots, apply)


def rectification(step: tf.Tensor, beta2: float) -> tf.Tensor:
    """What RAdam multiplies Adam's step by (Liu et al. 2020, algorithm 2), from 0 to 1.

    Args:
      step: the number of the step, from 1. Scalar float64, as differences of nearly equal numbers are taken.

    Returns:
      A scalar float64. It is 0 at the first few steps, whose second moments say too little.
    """
    longest = 2 / (1 - beta2) - 1
    power = tf.constant(beta2, tf.float64) ** step
    length = longest - 2 * step * power / (1 - power)
    if longest <= 4:  # as short an average never says enough
        return tf.zeros_like(length)
    ratio = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return tf.where(length > 4, tf.sqrt(tf.maximum(ratio, 0)), 0)


def radam(*, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> Optimizer:
    """Rectified Adam (Liu et al. 2020, algorithm 2), with Adam's epsilon hat: a warm-up that needs no setting.

    The first few steps follow the mean of the gradients. Later ones are Adam's, shorter while the second moment is
    an average over few steps.
    """

    def initial_slots(size: int) -> dict[str, np.ndarray]:
        return {"m": np.zeros(size, np.float32), "v": np.zeros(size, np.float32), "step": np.zeros((), np.float32)}

    def apply(parameters: Any, slots: Slots, update: tf.Tensor, learning_rate: tf.Tensor) -> Any:
        last = slots["step"].read_value()  # float32: it stands still at 2^24, long after it matters
        step = tf.cast(last, tf.float64) + 1
        power1, power2 = (tf.cast(tf.constant(beta, tf.float64) ** step, tf.float32) for beta in (beta1, beta2))
        factor = tf.cast(rectification(step, beta2), tf.float32)
        applied = tf.raw_ops.ResourceApplyAdam(
            var=parameters.handle,
            m=slots["m"].handle,
            v=slots["v"].handle,
            beta1_power=power1,
            beta2_power=power2,
            lr=learning_rate * factor,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            grad=update,
        )
        with tf.control_dependencies([applied] if applied is not None else []):
            # Where Adam's step was of length 0, the mean of the gradients is followed as it is.
            rate = tf.where(factor > 0, 0.0, learning_rate / (1 - power1))
            moved = parameters.assign_sub(rate * slots["m"].read_value(), read_value=False)
        with tf.control_dependencies([moved] if moved is not None else []):
            return slots["step"].assign(last + 1, read_value=False)

    return Optimizer("radam", initial_slots, apply)


def rmsprop(
    *,
    decay: float = 0.95,
    epsilon: float = 0.01,
    centered: bool = True,
) -> Optimizer:
    """RMSProp; centered is the one of the Nature paper (Graves 2013, equations 38-41), epsilon inside the root."""

    def initial_slots(size: int) -> dict[str, np.ndarray]:
        slots = {"ms": np.zeros(size, np.float32), "mom": np.zeros(size, np.float32)}
        if centered:
            slots["mg"] = np.zeros(size, np.float32)
        return slots

    def apply(parameters: Any, slots: Slots, update: tf.Tensor, learning_rate: tf.Tensor) -> Any:
        common = {
            "var": parameters.handle,
            "ms": slots["ms"].handle,
            "mom": slots["mom"].handle,
            "lr": learning_rate,
            "rho": decay,
            "momentum": 0.0,
            "epsilon": epsilon,
            "grad": update,
        }
        if centered:
            return tf.raw_ops.ResourceApplyCenteredRMSProp(mg=slots["mg"].handle, **common)
        return tf.raw_ops.ResourceApplyRMSProp(**common)

    return Optimizer("centered_rmsprop" if centered else "rmsprop", initial_slots, apply)
