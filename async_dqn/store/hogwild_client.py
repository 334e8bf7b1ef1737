"""The client that steps the shared parameters where they lie, without a lock (Hogwild, Recht et al. 2011)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from async_dqn.nn.aligned import as_tensor
from async_dqn.store.client import PromptClient
from async_dqn.store.shared_memory import SharedMemoryStore


class HogwildClient(PromptClient):
    """Computes on the memory of the store itself, which all workers read and write whenever they like.

    So a gradient may be computed on numbers of several versions. An update is added number by number to what lies
    there, so that those of others stay; of two that write the same number in the same instant, one may be lost.

    Its staleness is how many updates of others were counted while it was computed.

    Args:
      store: its updates of more than `max_staleness` are dropped.
    """

    _store: SharedMemoryStore

    def __init__(self, store: SharedMemoryStore, *, max_nonfinite: int):
        arrays = store.arrays
        super().__init__(
            store,
            online={one.name: _alias(arrays[f"{one.name}/online"]) for one in store.modules},
            target={one.name: _alias(arrays[f"{one.name}/target"]) for one in store.modules if one.has_target},
            max_nonfinite=max_nonfinite,
        )
        self._gradients = [tf.Variable(tf.zeros(module.size), trainable=False) for module in store.modules]
        self._computed_on = 0

    def before_minibatch(self) -> None:
        self._computed_on = self._store.num_updates

    def consume(self, gradients: Sequence[tf.Tensor], rates: tf.Tensor) -> None:
        del rates  # they are those of `rates()`
        for variable, gradient in zip(self._gradients, gradients, strict=True):
            variable.assign(gradient)

    def after_minibatch(self) -> None:
        super().after_minibatch()
        store, staleness = self._store, self._store.num_updates - self._computed_on
        if store.max_staleness and staleness > store.max_staleness:
            self.count(dropped=1)
        else:
            rates = self.rates().tolist()
            for module, variable, rate in zip(self.modules, self._gradients, rates, strict=True):
                gradient = np.asarray(variable.read_value())  # `numpy()` would copy
                if len(rates) == 1 or gradient.any():
                    store.step(module.name, gradient, rate)
            self.count(updates=1)
            self._count_staleness(staleness)
        self.report()


def _alias(array: np.ndarray) -> tf.Variable:
    """A variable whose memory is that of the array, for as long as no operation of TensorFlow writes to it."""
    with tf.device("CPU"):
        variable = tf.Variable(tf.zeros(array.shape), trainable=False)
        variable.assign(as_tensor(array))
    return variable
