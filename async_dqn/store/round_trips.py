"""Trips to parameter servers: when to push and to pull, and how a trip overlaps with computation."""

import sys
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.base.background import Background
from async_dqn.base.schedules import Schedule
from async_dqn.nn.aligned import as_tensor, is_aligned
from async_dqn.nn.optimizers import Optimizer
from async_dqn.store.base import Counters, ParameterStore, Pulled, advance
from async_dqn.store.client import ParameterClient


class _Trip(NamedTuple):
    """What came back; None where a push, a pull or a target was not this trip's turn."""

    counters: Counters  # after this worker's own counts came in
    before_push: Counters | None
    pulled: Pulled | None
    target: np.ndarray | None


class TravellingClient(ParameterClient):
    """What both kinds of travelling client share: one trip at a time, in a thread of its own.

    Args:
      overlap: whether trips are made beside the computation.
      max_staleness: the store drops updates that are staler; 0: none.
    """

    def __init__(
        self,
        store: ParameterStore,
        learning_rate: Schedule,
        *,
        overlap: bool,
        max_nonfinite: int,
        max_staleness: int,
    ):
        super().__init__(
            store,
            learning_rate,
            online=tf.Variable(tf.zeros(store.num_parameters), trainable=False),
            target=tf.Variable(tf.zeros(store.num_parameters), trainable=False),
            max_nonfinite=max_nonfinite,
        )
        self._target_version = -1
        self._pulled_updates = 0  # updates in the parameters that `online` was last taken from
        self._max_staleness = max_staleness
        self._overlap = overlap
        self._background = Background("parameter-trips") if overlap else None
        self._trip: Future | None = None
        self._on_the_way = Counters()  # reported by the trip under way
        self._trip_computed_on = 0  # updates in the pull that the update under way was computed on
        self._since_push = 0

    @property
    def env_steps(self) -> int:
        return super().env_steps + self._on_the_way.env_steps

    def start(self) -> None:
        self._target_version = self._store.add_counts(Counters()).target_refreshes
        self.target.assign(self._store.pull_target())
        pulled = self._store.pull()
        self._hear(pulled.counters)
        self._pulled_updates = pulled.counters.updates
        self._begin_with(pulled.online)

    def abandon_trip(self, deadline: float) -> None:
        """After an outage: waits until the trip under way has failed as well, so that it cannot arrive later."""
        if self._trip is not None:
            wait([self._trip], timeout=deadline)

    def restart(self, *, rolled_back: bool) -> None:
        if self._background:
            self._background.close()  # once its last trip is over, in which it may be stuck
            self._background = Background("parameter-trips")
        self._trip, self._on_the_way, self._since_push = None, Counters(), 0
        if rolled_back:
            self._unreported = self.counters = Counters()
        self.start()

    def _begin_with(self, pulled: np.ndarray) -> None:
        """Makes pulled parameters the local ones, whatever those were."""
        self.online.assign(pulled)

    def _take_in(self, pulled: Pulled) -> None:
        self._hear(pulled.counters)
        self._pulled_updates = pulled.counters.updates
        self._adopt(pulled.online)

    def _adopt(self, pulled: np.ndarray) -> None:
        """Makes pulled parameters the local ones."""
        self.online.assign(pulled)

    def _start_trip(self, update: np.ndarray | None, computed_on: int, *, pull: bool) -> None:
        self._finish_trip()
        self._trip_computed_on = computed_on
        rate, version = self.current_learning_rate(), self._target_version
        self._on_the_way = self._take_unreported()._replace(updates=int(update is not None))
        arguments = (update, computed_on, rate, self._on_the_way, pull, version)
        if self._background:
            self._trip = self._background.submit(self._make_trip, *arguments)
        else:
            part = self.clock.enter("waiting")
            trip = self._make_trip(*arguments)
            self.clock.enter(part)
            self._arrive(trip)

    def _is_dropped(self, staleness: int) -> bool:
        return bool(self._max_staleness) and staleness > self._max_staleness

    def _make_trip(
        self, update: np.ndarray | None, computed_on: int, rate: float, counts: Counters, pull: bool, version: int
    ) -> _Trip:
        before = pulled = None
        if update is not None:
            if pull:
                before, pulled = self._store.push_pull(update, rate, counts, computed_on)
            else:
                before = self._store.push(update, rate, counts, computed_on)
            if self._is_dropped(before.updates - computed_on):
                counts = counts._replace(updates=0, dropped=1)
            after = advance(before, counts, sys.maxsize)
        else:
            after = self._store.add_counts(counts)
            pulled = self._store.pull() if pull else None
        refreshed = pulled is not None and pulled.counters.target_refreshes != version
        return _Trip(after, before, pulled, self._store.pull_target() if refreshed else None)

    def _finish_trip(self, *, wait: bool = True) -> None:
        """Takes in the trip under way: once it is back, or if it is back already."""
        if self._trip is None or not (wait or self._trip.done()):
            return
        part = self.clock.enter("waiting")
        trip, self._trip = self._trip.result(), None
        self.clock.enter(part)
        self._arrive(trip)

    def _arrive(self, trip: _Trip) -> None:
        self._hear(trip.counters)
        self._on_the_way = Counters()
        if trip.before_push is not None:
            staleness = trip.before_push.updates - self._trip_computed_on
            if not self._is_dropped(staleness):
                self.stalenesses.append(staleness)
                self.count(staleness_sum=staleness)
                maximum = max(staleness, self._unreported.staleness_max)
                self._unreported = self._unreported._replace(staleness_max=maximum)
        if trip.pulled is not None:
            self._take_in(trip.pulled)
            if trip.target is not None:
                self.target.assign(trip.target)
                self._target_version = trip.pulled.counters.target_refreshes

    def _close(self) -> None:
        self._finish_trip()
        self.report()
        if self._background:
            self._background.close()


class GradientClient(TravellingClient):
    """Pushes gradients: the optimizer is the store's.

    Gradients of `push_period` minibatches are summed into one push (n_push of Dean et al. 2012, n_fetch being
    `pull_period`, in minibatches too).
    """

    def __init__(
        self,
        store: ParameterStore,
        learning_rate: Schedule,
        *,
        push_period: int,
        pull_period: int,
        **options: Any,
    ):
        super().__init__(store, learning_rate, **options)
        self._gradient = tf.Variable(tf.zeros(store.num_parameters), trainable=False)
        self._push_period, self._pull_period = push_period, pull_period
        self._since_pull = 0
        self._computed_on = 0

    def consume(self, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        del learning_rate  # it is the store that steps
        self._gradient.assign_add(gradient)

    def after_minibatch(self) -> None:
        if self._since_push == 0:
            self._computed_on = self._pulled_updates
        self._count_minibatch()
        self._nonfinite_in_a_row = 0
        self._since_push += 1
        self._since_pull += 1
        self._finish_trip(wait=False)
        push, pull = self._since_push >= self._push_period, self._since_pull >= self._pull_period
        if push or pull:
            self._start_trip(self._take_gradient() if push else None, self._computed_on, pull=pull)
            self._since_pull = 0 if pull else self._since_pull

    def _take_gradient(self) -> np.ndarray:
        gradient = self._gradient.numpy()
        self._gradient.assign(tf.zeros_like(self._gradient))
        self._since_push = 0
        return gradient

    def restart(self, *, rolled_back: bool) -> None:
        self._gradient.assign(tf.zeros_like(self._gradient))
        self._since_pull = 0
        super().restart(rolled_back=rolled_back)

    def finish(self) -> None:
        if self._since_push:
            self._start_trip(self._take_gradient(), self._computed_on, pull=False)
        self._close()


class DeltaClient(TravellingClient):
    """Steps its own copy with its own optimizer, and pushes how far it got every `local_steps` minibatches (Downpour).

    While a trip is under way the copy goes on from where it was. What comes back holds this worker's last delta and
    everyone else's, so only the difference to the old base is added, and no step is lost or counted twice.

    Args:
      wire_dtype: deltas are rounded to it. What the rounding takes off stays in this copy and goes into the next delta.
    """

    def __init__(
        self,
        store: ParameterStore,
        learning_rate: Schedule,
        *,
        optimizer: Optimizer,
        local_steps: int,
        wire_dtype: str = "float32",
        **options: Any,
    ):
        super().__init__(store, learning_rate, **options)
        self._optimizer = optimizer
        self._base = tf.Variable(tf.zeros(store.num_parameters), trainable=False)
        self._slots = {
            name: tf.Variable(value, trainable=False)
            for name, value in optimizer.initial_slots(store.num_parameters).items()
        }
        self._local_steps = local_steps
        self._computed_on = 0
        # Between a delta and what comes back the copy stands still at its base, if nothing was rounded off.
        self._stands_still = not self._overlap and wire_dtype == "float32"
        signature = tf.TensorSpec([store.num_parameters])

        @tf.function(autograph=False, input_signature=[signature])
        def rebase(pulled: tf.Tensor) -> None:
            self.online.assign_add(pulled - self._base)
            self._base.assign(pulled)

        def go_on(delta: tf.Tensor) -> None:
            if delta.dtype == tf.float32:
                self._base.assign(self.online)
            else:
                self._base.assign_add(tf.cast(delta, tf.float32))

        def go_back() -> None:
            self.online.assign(self._base)

        @tf.function(autograph=False, input_signature=[])
        def take_delta() -> tuple[tf.Tensor, tf.Tensor]:
            delta = tf.cast(self.online - self._base, wire_dtype)
            is_finite = tf.reduce_all(tf.math.is_finite(delta))
            tf.cond(is_finite, lambda: go_on(delta), go_back)
            return delta, is_finite

        self._rebase, self._take_delta = rebase.get_concrete_function(), take_delta.get_concrete_function()

    def _begin_with(self, pulled: np.ndarray) -> None:
        shared = as_tensor(pulled) if is_aligned(pulled) else tf.constant(pulled)
        self.online.assign(shared)  # one memory for both, until an optimizer's step writes to `online`
        self._base.assign(shared)

    def consume(self, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        self._optimizer.apply(self.online, self._slots, gradient, learning_rate)

    def after_minibatch(self) -> None:
        if self._since_push == 0:
            self._computed_on = self._pulled_updates
        self._count_minibatch()
        self._since_push += 1
        self._finish_trip(wait=False)
        if self._since_push >= self._local_steps:
            self._push(pull=True)

    def reject_minibatch(self) -> None:
        if not np.isfinite(self.online.numpy()).all():  # then no loss on it will ever be
            self.online.assign(self._base)
            self._reset_slots()
            self._since_push = 0
        super().reject_minibatch()

    def _reset_slots(self) -> None:
        """After the optimizer overflowed: its averages are spoilt as well."""
        self.restore_slots(self._optimizer.initial_slots(self._store.num_parameters))

    def _push(self, *, pull: bool) -> None:
        self._finish_trip()  # first: a base must not move between delta and trip
        computed_on, self._since_push = self._computed_on, 0
        delta, is_finite = self._take_delta()
        if is_finite:
            self._nonfinite_in_a_row = 0
        else:
            self._reset_slots()
            self.reject_update()
        self._start_trip(np.asarray(delta) if is_finite else None, computed_on, pull=pull)  # `numpy()` would copy

    def _adopt(self, pulled: np.ndarray) -> None:
        if self._stands_still:
            self._begin_with(pulled)
        else:
            self._rebase(pulled)

    def slots(self) -> dict[str, np.ndarray]:
        return {name: slot.numpy() for name, slot in self._slots.items()}

    def restore_slots(self, slots: Mapping[str, np.ndarray]) -> None:
        for name, slot in self._slots.items():
            slot.assign(slots[name])

    def finish(self) -> None:
        if self._since_push:
            self._push(pull=False)
        self._close()
