"""The client of a worker that only acts: it counts and pulls, and pushes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from async_dqn.store.base import ParameterStore
from async_dqn.store.round_trip import RoundTripClient


class ActingClient(RoundTripClient):
    """A copy of the parameters that is replaced by the newest ones whenever `pull` is called."""

    def __init__(self, store: ParameterStore, *, max_nonfinite: int):
        super().__init__(store, overlap=False, max_nonfinite=max_nonfinite, max_staleness=0)

    def consume(self, gradients: Sequence[tf.Tensor], rates: tf.Tensor) -> Any:
        raise AssertionError("a worker that only acts has no gradients")

    def finish(self) -> None:
        self._close()
