"""The client that steps its own copy and pushes how far it got (Downpour, Dean et al. 2012)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.nn.aligned import as_tensor, is_aligned
from async_dqn.nn.module import Module
from async_dqn.store.base import ParameterStore
from async_dqn.store.client import OPTIMIZER, step_each
from async_dqn.store.round_trip import RoundTripClient


class DeltaClient(RoundTripClient):
    """Steps its own copy with its own optimizers, and pushes the difference every `local_steps` minibatches.

    While a round trip is under way the copy goes on from where it was. What comes back holds this worker's last delta
    and everyone else's, so only the difference to the old base is added, and no step is lost or counted twice.

    Args:
      trained: the modules that this worker steps and pushes, with the optimizers that step the copy; the store only
        adds. Others come with `pull` alone.
      wire_dtype: deltas of trained modules are rounded to it. What the rounding takes off stays in this copy and goes
        into the next delta.
    """

    def __init__(
        self,
        store: ParameterStore,
        *,
        trained: Sequence[Module],
        local_steps: int,
        wire_dtype: str = "float32",
        **options: Any,
    ):
        super().__init__(store, **options)
        self._trained = trained
        self._index = {module.name: index for index, module in enumerate(self.modules)}
        self._base = {name: tf.Variable(tf.zeros_like(value), trainable=False) for name, value in self.online.items()}
        self._slots = {
            module.name: {
                name: tf.Variable(value, trainable=False)
                for name, value in module.optimizer.initial_slots(module.size).items()
            }
            for module in trained
        }
        self._local_steps = local_steps
        # Between a delta and what comes back the copy stands still at its base, if nothing was rounded off.
        self._stands_still = not self._overlap and wire_dtype == "float32"
        names = [module.name for module in trained]

        def go_on(name: str, delta: tf.Tensor) -> None:
            if delta.dtype == tf.float32:
                self._base[name].assign(self.online[name])
            else:
                self._base[name].assign_add(tf.cast(delta, tf.float32))

        def go_back(name: str) -> None:
            self.online[name].assign(self._base[name])

        @tf.function(autograph=False, input_signature=[])
        def take_deltas() -> tuple[list[tf.Tensor], tf.Tensor]:
            deltas = [
                tf.cast(self.online[one.name] - self._base[one.name], wire_dtype if one.is_trained else tf.float32)
                for one in trained
            ]
            is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(delta)) for delta in deltas])
            for name, delta in zip(names, deltas, strict=True):
                tf.cond(is_finite, functools.partial(go_on, name, delta), functools.partial(go_back, name))
            return deltas, is_finite

        self._take_deltas = take_deltas.get_concrete_function()

    def _begin_with(self, pulled: Mapping[str, np.ndarray]) -> None:
        for name, value in pulled.items():
            shared = as_tensor(value) if is_aligned(value) else tf.constant(value)
            self.online[name].assign(shared)  # one memory for both, until an optimizer's step writes to `online`
            self._base[name].assign(shared)

    def consume(self, gradients: Sequence[tf.Tensor], rates: tf.Tensor) -> None:
        def step(index: int, gradient: tf.Tensor) -> None:
            module = self._trained[index]
            rate = rates[self._index[module.name]]
            module.optimizer.apply(self.online[module.name], self._slots[module.name], gradient, rate)

        step_each(gradients, step)

    def after_minibatch(self) -> None:
        super().after_minibatch()
        if self._since_push >= self._local_steps:
            self._push(pull=True)

    def pull(self) -> None:
        if self._since_push:  # what comes back takes the place of the copy
            self._push(pull=False)
        super().pull()

    def reject_minibatch(self, cause: str = OPTIMIZER) -> None:
        if not all(np.isfinite(variable.numpy()).all() for variable in self.online.values()):
            for name, variable in self.online.items():  # else no loss on it will ever be finite
                variable.assign(self._base[name])
            self._reset_slots()
            self._since_push = 0
        super().reject_minibatch(cause)

    def _reset_slots(self) -> None:
        """After an optimizer overflowed: its averages are spoilt as well."""
        for module in [one for one in self._trained if one.is_trained]:
            for name, value in module.optimizer.initial_slots(module.size).items():
                self._slots[module.name][name].assign(value)

    def _push(self, *, pull: bool) -> None:
        self._finish_round_trip()  # first: a base must not move between delta and round trip
        deltas, is_finite = self._take_deltas()
        if is_finite:
            self._in_a_row["updates"] = 0
        else:
            self._reset_slots()
            self._count_nonfinite("updates", OPTIMIZER)
        named = zip((module.name for module in self._trained), deltas, strict=True)
        values = {name: np.asarray(delta) for name, delta in named} if is_finite else None  # `numpy()` would copy
        self._start_round_trip(values, pull=pull)

    def _adopt(self, pulled: Mapping[str, np.ndarray]) -> None:
        if self._stands_still:
            self._begin_with(pulled)
        else:
            for name, value in pulled.items():
                self.online[name].assign_add(value - self._base[name])
                self._base[name].assign(value)

    def slots(self) -> dict[str, np.ndarray]:
        return {
            f"{module}/{name}": slot.numpy() for module, slots in self._slots.items() for name, slot in slots.items()
        }

    def restore_slots(self, slots: Mapping[str, np.ndarray]) -> None:
        super().restore_slots(slots)
        for module, variables in self._slots.items():
            for name, variable in variables.items():
                if f"{module}/{name}" in slots:
                    variable.assign(slots[f"{module}/{name}"])

    def finish(self) -> None:
        if self._since_push:
            self._push(pull=False)
        super().finish()
