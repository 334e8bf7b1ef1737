"""Optimizers over one flat float32 vector, built from TensorFlow's fused kernels.

The same `apply` runs on a worker's own variables (eager, inside a `tf.function`) and on a parameter server's shard
(graph, placed beside the shard), so a gradient means the same thing wherever it is applied. `step` is the same again
for arrays in memory that processes share: TensorFlow would first copy what it does not own. It goes through the vector
in blocks that stay in a core's cache, in the order of operations of TensorFlow's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

Slots = Mapping[str, Any]  # slot name -> variable
Arrays = Mapping[str, np.ndarray]  # slot name -> array

_BLOCK = 32_768  # floats


class Optimizer(NamedTuple):
    """An update rule: what it keeps beside the parameters, and how it applies one update.

    Attributes:
      initial_slots: size -> {slot name: initial value}. A slot of shape [size] follows the parameters when they are cut
        into shards; a slot of any other shape belongs to every shard alike.
      apply: (parameters variable [P], slots, update tensor [P], learning rate scalar) -> an operation (graph) or None.
      step: (parameters [P], slots, update [P], learning rate) steps arrays of float32 where they lie, in NumPy.
    """

    name: str
    initial_slots: Callable[[int], dict[str, np.ndarray]]
    apply: Callable[[Any, Slots, tf.Tensor, tf.Tensor], Any]
    step: Callable[[np.ndarray, Arrays, np.ndarray, float], None]


def add() -> Optimizer:
    """Adds the update as it is: what a parameter server does with a delta (Downpour, Dean et al. 2012)."""

    def apply(parameters: Any, slots: Slots, update: tf.Tensor, learning_rate: tf.Tensor) -> Any:
        del slots, learning_rate
        return parameters.assign_add(update, read_value=False)

    def step(parameters: np.ndarray, slots: Arrays, update: np.ndarray, learning_rate: float) -> None:
        del slots, learning_rate
        parameters += update

    return Optimizer("add", lambda size: {}, apply, step)


def average() -> Optimizer:
    """The running average of all updates: the k-th moves the parameters by 1/k of the way, times the learning rate."""

    def initial_slots(size: int) -> dict[str, np.ndarray]:
        return {"count": np.zeros((), np.float32)}

    def apply(parameters: Any, slots: Slots, update: tf.Tensor, learning_rate: tf.Tensor) -> Any:
        count = slots["count"].read_value() + 1  # it stands still at 2^24, and the average with it, nearly
        moved = parameters.assign_add((update - parameters.read_value()) * (learning_rate / count), read_value=False)
        with tf.control_dependencies([moved] if moved is not None else []):
            return slots["count"].assign(count, read_value=False)

    def step(parameters: np.ndarray, slots: Arrays, update: np.ndarray, learning_rate: float) -> None:
        count = slots["count"] + np.float32(1)
        parameters += (update - parameters) * (np.float32(learning_rate) / count)
        slots["count"][...] = count

    return Optimizer("average", initial_slots, apply, step)


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
        applied = _apply_adam(parameters, slots, update, learning_rate, powers, (beta1, beta2), epsilon)
        with tf.control_dependencies([applied] if applied is not None else []):
            return slots["beta_powers"].assign(powers * tf.constant([beta1, beta2]), read_value=False)

    def step(parameters: np.ndarray, slots: Arrays, update: np.ndarray, learning_rate: float) -> None:
        powers = slots["beta_powers"].copy()  # [2]
        _step_adam(parameters, slots, update, np.float32(learning_rate), powers, (beta1, beta2), epsilon)
        slots["beta_powers"][:] = powers * np.array([beta1, beta2], np.float32)

    return Optimizer("adam", initial_slots, apply, step)


def _apply_adam(
    parameters: Any,
    slots: Slots,
    update: tf.Tensor,
    learning_rate: tf.Tensor,
    powers: Any,
    betas: tuple[float, float],
    epsilon: float,
) -> Any:
    """ResourceApplyAdam on variables; `powers` [2] are those of the betas."""
    own = {"var": parameters.handle, "m": slots["m"].handle, "v": slots["v"].handle}
    of_betas = {"beta1_power": powers[0], "beta2_power": powers[1], "beta1": betas[0], "beta2": betas[1]}
    return tf.raw_ops.ResourceApplyAdam(**own, **of_betas, lr=learning_rate, epsilon=epsilon, grad=update)


def _step_adam(
    parameters: np.ndarray,
    slots: Arrays,
    update: np.ndarray,
    learning_rate: np.float32,
    powers: np.ndarray,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """ResourceApplyAdam on arrays; `powers` [2] are those of the betas."""
    one, (beta1, beta2) = np.float32(1), np.array(betas, np.float32)
    rate = learning_rate * np.sqrt(one - powers[1]) / (one - powers[0])
    for part, change, scale in _blocks(len(parameters)):
        gradient, m, v = update[part], slots["m"][part], slots["v"][part]
        np.subtract(gradient, m, out=change)
        change *= one - beta1
        m += change
        np.multiply(gradient, gradient, out=change)
        change -= v
        change *= one - beta2
        v += change
        np.sqrt(v, out=scale)
        scale += np.float32(epsilon)
        np.multiply(m, rate, out=change)
        change /= scale
        parameters[part] -= change


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
        powers = [tf.cast(tf.constant(beta, tf.float64) ** step, tf.float32) for beta in (beta1, beta2)]
        factor = tf.cast(rectification(step, beta2), tf.float32)
        applied = _apply_adam(parameters, slots, update, learning_rate * factor, powers, (beta1, beta2), epsilon)
        with tf.control_dependencies([applied] if applied is not None else []):
            # Where Adam's step was of length 0, the mean of the gradients is followed as it is.
            rate = tf.where(factor > 0, 0.0, learning_rate / (1 - powers[0]))
            moved = parameters.assign_sub(rate * slots["m"].read_value(), read_value=False)
        with tf.control_dependencies([moved] if moved is not None else []):
            return slots["step"].assign(last + 1, read_value=False)

    def step(parameters: np.ndarray, slots: Arrays, update: np.ndarray, learning_rate: float) -> None:
        number, rate = np.float64(slots["step"]) + 1, np.float32(learning_rate)
        powers = np.power(np.array([beta1, beta2]), number).astype(np.float32)  # [2]
        factor = np.float32(rectification(tf.constant(number), beta2))
        _step_adam(parameters, slots, update, rate * factor, powers, (beta1, beta2), epsilon)
        if not factor:
            parameters -= rate / (np.float32(1) - powers[0]) * slots["m"]
        slots["step"][...] = number

    return Optimizer("radam", initial_slots, apply, step)


def rmsprop(*, decay: float = 0.95, epsilon: float = 0.01, centered: bool = True) -> Optimizer:
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

    def step(parameters: np.ndarray, slots: Arrays, update: np.ndarray, learning_rate: float) -> None:
        forget = np.float32(1) - np.float32(decay)
        for part, change, scale in _blocks(len(parameters)):
            gradient, ms = update[part], slots["ms"][part]
            np.multiply(gradient, gradient, out=change)
            change -= ms
            change *= forget
            ms += change
            if centered:
                mg = slots["mg"][part]
                np.subtract(gradient, mg, out=change)
                change *= forget
                mg += change
                np.multiply(mg, mg, out=change)
                np.subtract(ms, change, out=scale)
                scale += np.float32(epsilon)
            else:
                np.add(ms, np.float32(epsilon), out=scale)
            np.sqrt(scale, out=scale)
            np.multiply(gradient, np.float32(learning_rate), out=change)
            change /= scale
            slots["mom"][part] = change
            parameters[part] -= change

    return Optimizer("centered_rmsprop" if centered else "rmsprop", initial_slots, apply, step)


def _blocks(size: int) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """The parts of a vector that are stepped one after another, each with two arrays of its length to compute in."""
    scratch = np.empty([2, min(size, _BLOCK)], np.float32)
    for begin in range(0, size, _BLOCK):
        part = slice(begin, min(begin + _BLOCK, size))
        yield part, *scratch[:, : part.stop - begin]
