"""The client that pushes gradients: the optimizer is the store's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from async_dqn.nn.module import Module
from async_dqn.store.base import ParameterStore
from async_dqn.store.round_trip import RoundTripClient


class GradientClient(RoundTripClient):
    """Pushes each minibatch's gradient and pulls the parameters that come of it.

    Args:
      trained: the modules that this worker pushes to, and with that pulls; None: all. Others come with `pull` alone.
    """

    def __init__(self, store: ParameterStore, *, trained: Sequence[Module] | None = None, **options: Any):
        super().__init__(store, **options)
        self._trained = self.modules if trained is None else trained
        self._gradients = [tf.Variable(tf.zeros(module.size), trainable=False) for module in self._trained]

    def consume(self, gradients: Sequence[tf.Tensor], rates: tf.Tensor) -> None:
        del rates  # it is the store that steps
        for variable, gradient in zip(self._gradients, gradients, strict=True):
            variable.assign(gradient)

    def after_minibatch(self) -> None:
        super().after_minibatch()
        named = {module.name: one.numpy() for module, one in zip(self._trained, self._gradients, strict=True)}
        if len(named) > 1:
            named = {name: gradient for name, gradient in named.items() if gradient.any()} or named
        self._start_round_trip(named, pull=True)
