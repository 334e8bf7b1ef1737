"""Round trips to a store: push, pull, what came back, and how they overlap with computation."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.base.background import Background
from async_dqn.store.base import Counters, ParameterStore, Pulled, Update, advance
from async_dqn.store.client import ParameterClient


class _RoundTrip(NamedTuple):
    """What came back; None where nothing was pushed or pulled, or targets are as they were."""

    counters: Counters  # after this worker's own counts came in
    before_push: Counters | None
    pulled: Pulled | None
    target: dict[str, np.ndarray] | None
    num_bytes: int


class RoundTripClient(ParameterClient):
    """What clients share that push and pull: one round trip at a time. As it is, the one of a worker that only acts.

    Args:
      overlap: whether round trips are made in a thread beside the computation.
      max_staleness: the store drops updates that are staler; 0: none.
      drops_stale: the store drops all updates that are stale at all.
      trains_model: what this worker pushes are updates of a model of the environment, and counted as such.
    """

    def __init__(
        self,
        store: ParameterStore,
        *,
        overlap: bool,
        max_nonfinite: int,
        max_staleness: int,
        drops_stale: bool = False,
        trains_model: bool = False,
    ):
        super().__init__(
            store,
            online={one.name: _variable(one.size) for one in store.modules},
            target={one.name: _variable(one.size) for one in store.modules if one.has_target},
            max_nonfinite=max_nonfinite,
        )
        self._target_version = -1
        self.version = 0  # updates in the parameters that `online` was last taken from
        self._computed_on = 0  # the same for the first minibatch of the update to come
        self._max_staleness, self._drops_stale = max_staleness, drops_stale
        self._trains_model = trains_model
        self._overlap = overlap
        self._background = Background("round-trips") if overlap else None
        self._under_way: Future | None = None
        self._reported = Counters()  # by the round trip under way
        self._pushed_on = 0  # `computed_on` of the update under way
        self._since_push = 0

    @property
    def env_steps(self) -> int:
        return super().env_steps + self._reported.env_steps

    def start(self) -> None:
        self._target_version = self._store.add_counts(Counters()).target_refreshes
        self._take_target(self._store.pull_target())
        pulled = self._store.pull()
        self._hear(pulled.counters)
        self.version = pulled.counters.updates
        self._begin_with(pulled.online)

    def pull(self) -> None:
        """Reports what is counted, and takes the newest parameters of all modules."""
        self._start_round_trip(None, pull=True)
        self._finish_round_trip()

    def abandon_round_trip(self, deadline: float) -> None:
        """After an outage: waits until the one under way has failed as well, so that it cannot arrive later."""
        if self._under_way is not None:
            wait([self._under_way], timeout=deadline)

    def restart(self, *, rolled_back: bool) -> None:
        """Goes on after an outage with the parameters that are there now.

        Args:
          rolled_back: the store was put back to a checkpoint, so that nothing counted since matters.
        """
        if self._background:
            self._background.close()  # once its last round trip is over, in which it may be stuck
            self._background = Background("round-trips")
        self._under_way, self._reported, self._since_push = None, Counters(), 0
        if rolled_back:
            self._unreported = self.counters = Counters()
        self.start()

    def after_minibatch(self) -> None:
        if self._since_push == 0:
            self._computed_on = self.version
        super().after_minibatch()
        self._since_push += 1
        self._finish_round_trip(wait=False)

    def _begin_with(self, pulled: Mapping[str, np.ndarray]) -> None:
        """Makes pulled parameters the local ones, whatever those were."""
        for name, value in pulled.items():
            self.online[name].assign(value)

    def _adopt(self, pulled: Mapping[str, np.ndarray]) -> None:
        """Makes what a round trip pulled the local parameters."""
        self._begin_with(pulled)

    def _take_target(self, target: Mapping[str, np.ndarray]) -> None:
        for name, value in target.items():
            self.target[name].assign(value)

    def _start_round_trip(self, values: Mapping[str, np.ndarray] | None, *, pull: bool) -> None:
        """Pushes an update to each named module (None: nothing is pushed), and pulls if asked to."""
        self._finish_round_trip()
        rates = dict(zip((module.name for module in self.modules), self.rates().tolist(), strict=True))
        updates = {name: Update(value, rates[name]) for name, value in (values or {}).items()}
        self._pushed_on, self._since_push = self._computed_on, 0
        pushed = int(values is not None)
        self.count(model_updates=pushed * self._trains_model)
        self._reported = self._take_unreported()._replace(updates=pushed)
        arguments = (updates, self._pushed_on, self._reported, pull, self._target_version)
        if self._background:
            self._under_way = self._background.submit(self._make_round_trip, *arguments)
        else:
            part = self.clock.enter("waiting")
            result = self._make_round_trip(*arguments)
            self.clock.enter(part)
            self._arrive(result)

    def _is_dropped(self, staleness: int) -> bool:
        return (self._drops_stale or bool(self._max_staleness)) and staleness > self._max_staleness

    def _make_round_trip(
        self, updates: Mapping[str, Update], computed_on: int, counts: Counters, pull: bool, version: int
    ) -> _RoundTrip:
        before = pulled = None
        if updates:
            if pull:
                before, pulled = self._store.push_pull(updates, counts, computed_on)
                after = pulled.counters
            else:
                before = self._store.push(updates, counts, computed_on)
                if self._is_dropped(before.updates - computed_on):
                    counts = counts._replace(updates=0, dropped=1)
                after = advance(before, counts, sys.maxsize)
        else:
            after = self._store.add_counts(counts)
            pulled = self._store.pull() if pull else None
        refreshed = pulled is not None and pulled.counters.target_refreshes != version
        target = self._store.pull_target() if refreshed else None
        arrays = [update.value for update in updates.values()]
        for found in (pulled and pulled.online, target):
            arrays += (found or {}).values()
        return _RoundTrip(after, before, pulled, target, sum(array.nbytes for array in arrays))

    def _finish_round_trip(self, *, wait: bool = True) -> None:
        """Takes in the round trip under way: once it is back, or if it is back already."""
        if self._under_way is None or not (wait or self._under_way.done()):
            return
        part = self.clock.enter("waiting")
        result, self._under_way = self._under_way.result(), None
        self.clock.enter(part)
        self._arrive(result)

    def _arrive(self, result: _RoundTrip) -> None:
        self._hear(result.counters)
        self._reported = Counters()
        self.exchanged_bytes += result.num_bytes
        if result.before_push is not None:
            staleness = result.before_push.updates - self._pushed_on
            if not self._is_dropped(staleness):
                self._count_staleness(staleness)
        if result.pulled is not None:
            self._hear(result.pulled.counters)
            self.version = result.pulled.counters.updates
            self._adopt(result.pulled.online)
            if result.target is not None:
                self._take_target(result.target)
                self._target_version = result.pulled.counters.target_refreshes

    def finish(self) -> None:
        self._finish_round_trip()
        self.report()
        if self._background:
            self._background.close()


def _variable(size: int) -> tf.Variable:
    return tf.Variable(tf.zeros(size), trainable=False)
