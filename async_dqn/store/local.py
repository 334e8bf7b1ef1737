"""The store of the single-process baseline: the parameters in this process's memory."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from async_dqn.nn.module import Module
from async_dqn.store.base import (
    Counters,
    EpisodeReport,
    ParameterStore,
    Pulled,
    Standing,
    Update,
    WorkerStatus,
    advance,
    check_state,
    counter_state,
    saved_counters,
)


class LocalParameterStore(ParameterStore):
    """The networks as variables of this process.

    Attributes:
      online, target: {module: variable [P]}, which a `DirectClient` computes on.
      apply: {module: the function (update [P], learning rate) that steps `online`}.
    """

    def __init__(self, modules: Sequence[Module], total_steps: int, target_period: int = 0):
        self.modules = modules
        self.total_steps = total_steps
        self._target_period = target_period
        self.online = {module.name: tf.Variable(tf.zeros(module.size)) for module in modules}
        self.target = {module.name: tf.Variable(tf.zeros(module.size)) for module in modules if module.has_target}
        self._slots = {
            module.name: {
                name: tf.Variable(value) for name, value in module.optimizer.initial_slots(module.size).items()
            }
            for module in modules
        }
        self.apply = {module.name: self._make_apply(module) for module in modules}
        self._counters = Counters()
        self._episodes: collections.deque[EpisodeReport] = collections.deque()
        self._lock = threading.RLock()

    def _make_apply(self, module: Module) -> Callable[[tf.Tensor, tf.Tensor], None]:
        online, slots = self.online[module.name], self._slots[module.name]

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([module.size]), tf.TensorSpec([])])
        def apply(update: tf.Tensor, learning_rate: tf.Tensor) -> None:
            module.optimizer.apply(online, slots, update, learning_rate)

        return apply

    def pull(self) -> Pulled:
        with self._lock:
            return Pulled({name: variable.numpy() for name, variable in self.online.items()}, self._counters)

    def pull_target(self) -> dict[str, np.ndarray]:
        return {name: variable.numpy() for name, variable in self.target.items()}

    def push(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> Counters:
        del computed_on  # one process cannot be late
        with self._lock:
            before = self._counters
            for name, update in updates.items():
                self.apply[name](update.value.astype(np.float32, copy=False), tf.constant(update.rate, tf.float32))
            self._count(counts)
            return before

    def push_pull(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> tuple[Counters, Pulled]:
        with self._lock:
            before = self.push(updates, counts, computed_on)
            pulled = self.pull()
        return before, pulled._replace(online={name: pulled.online[name] for name in updates})

    def _count(self, counts: Counters) -> None:
        before = self._counters
        self._counters = advance(before, counts, self.total_steps, self._target_period)
        if self._counters.target_refreshes > before.target_refreshes:
            for name, target in self.target.items():
                target.assign(self.online[name])

    def claim_steps(self, wanted: int, counts: Counters) -> tuple[int, Counters]:
        with self._lock:
            self._count(counts)
            before = self._counters
            self._count(Counters(claimed_steps=wanted))
            return self._counters.claimed_steps - before.claimed_steps, self._counters

    def report_episodes(self, episodes: list[EpisodeReport]) -> None:
        self._episodes.extend(episodes)

    def take_episodes(self) -> list[EpisodeReport]:
        return [self._episodes.popleft() for _ in range(len(self._episodes))]

    def check(self) -> Standing:
        return Standing(self._counters, [WorkerStatus("active", 1, self._counters)])

    def state(self) -> dict[str, np.ndarray]:
        with self._lock:
            state = counter_state(self._counters)
            for name, online in self.online.items():
                state[f"{name}/online"] = online.numpy()
                state |= {f"{name}/slot/{slot}": value.numpy() for slot, value in self._slots[name].items()}
            return state | {f"{name}/target": target.numpy() for name, target in self.target.items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        check_state(state, self.modules)
        with self._lock:
            for name, online in self.online.items():
                online.assign(state[f"{name}/online"])
                for slot, variable in self._slots[name].items():
                    variable.assign(state[f"{name}/slot/{slot}"])
            for name, target in self.target.items():
                target.assign(state[f"{name}/target"])
            self._counters = saved_counters(state)
