"""The parameter store: one flat float32 vector, its target copy, its optimizer and the global counters.

An agent pulls parameters from a store and pushes updates to it, and never knows which store it has: the one here
lives in the same process, `cluster.remote_store` keeps the same vector in shards on parameter servers.
"""

import collections
import threading
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from async_dqn.nn.optimizers import Optimizer
from async_dqn.store.base import (
    Counters,
    EpisodeReport,
    Pulled,
    Standing,
    WorkerStatus,
    advance,
    check_state,
    initial_state,
)


class LocalParameterStore:
    """The store of the single-process baseline: the same vector in this process's memory.

    Attributes:
      online, target: its variables [P], which a `LocalClient` computes on.
      apply: the function (update [P], learning rate) that steps `online`.
    """

    def __init__(self, num_parameters: int, optimizer: Optimizer, total_steps: int):
        self.num_parameters = num_parameters
        self.total_steps = total_steps
        self._optimizer = optimizer
        self.online = tf.Variable(tf.zeros(num_parameters))
        self.target = tf.Variable(tf.zeros(num_parameters))
        self._slots = {name: tf.Variable(value) for name, value in optimizer.initial_slots(num_parameters).items()}
        self._counters = Counters()
        self._episodes: collections.deque[EpisodeReport] = collections.deque()
        self._lock = threading.RLock()

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([num_parameters]), tf.TensorSpec([])])
        def apply(update: tf.Tensor, learning_rate: tf.Tensor) -> None:
            optimizer.apply(self.online, self._slots, update, learning_rate)

        self.apply = apply

    def initialize(self, online: np.ndarray) -> None:
        self.restore(initial_state(online, self._optimizer))

    def pull(self) -> Pulled:
        with self._lock:
            return Pulled(self.online.numpy(), self._counters)

    def pull_target(self) -> np.ndarray:
        return self.target.numpy()

    def push(self, update: np.ndarray, learning_rate: float, counts: Counters, computed_on: int) -> Counters:
        del computed_on  # one process cannot be late
        with self._lock:
            before = self._counters
            self.apply(update.astype(np.float32, copy=False), tf.constant(learning_rate, tf.float32))
            self._counters = advance(before, counts, self.total_steps)
            return before

    def push_pull(
        self, update: np.ndarray, learning_rate: float, counts: Counters, computed_on: int
    ) -> tuple[Counters, Pulled]:
        return self.push(update, learning_rate, counts, computed_on), self.pull()

    def refresh_target(self) -> None:
        with self._lock:
            self.target.assign(self.online)
            self.add_counts(Counters(target_refreshes=1))

    def claim_steps(self, wanted: int, counts: Counters) -> tuple[int, Counters]:
        with self._lock:
            before = self._counters = advance(self._counters, counts, self.total_steps)
            self._counters = advance(before, Counters(claimed_steps=wanted), self.total_steps)
            return self._counters.claimed_steps - before.claimed_steps, self._counters

    def add_counts(self, counts: Counters) -> Counters:
        return self.claim_steps(0, counts)[1]

    def report_episodes(self, episodes: list[EpisodeReport]) -> None:
        self._episodes.extend(episodes)

    def take_episodes(self) -> list[EpisodeReport]:
        return [self._episodes.popleft() for _ in range(len(self._episodes))]

    def check(self) -> Standing:
        return Standing(self._counters, [WorkerStatus("active", 1, self._counters)])

    def state(self) -> dict[str, np.ndarray]:
        with self._lock:
            slots = {f"slot/{name}": slot.numpy() for name, slot in self._slots.items()}
            counters = np.array(self._counters, np.int64)
            return {
                "online": self.online.numpy(),
                "target": self.target.numpy(),
                "counters": counters,
            } | slots

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        check_state(state, self.num_parameters, self._optimizer)
        with self._lock:
            self.online.assign(state["online"])
            self.target.assign(state["target"])
            for name, slot in self._slots.items():
                slot.assign(state[f"slot/{name}"])
            self._counters = Counters(*map(int, state["counters"]))
