"""The parameter store: one flat float32 vector, its target copy, its optimizer and the global counters.

An agent pulls parameters from a store and pushes updates to it, and never knows which store it has: the one here
lives in the same process, `cluster.remote_store` keeps the same vector in shards on parameter servers.
"""

import collections
import math
import threading
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from async_dqn.optimizers import Optimizer

_ROW = 16  # floats; 64 bytes, to which TensorFlow aligns a tensor


class Layout:
    """Where each named array lies in the flat vector.

    The order is that of `shapes`; `flatten` and `unflatten` are inverse to each other. Every array begins on a boundary
    of 64 bytes, after zeros if need be, so that TensorFlow reads it where it lies: all arrays of a network cost a copy
    of it otherwise, every time. The zeros stay zeros: their gradient is 0.

    Attributes:
      num_parameters: P, the length of the flat vector, zeros included.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]):
        self.shapes = dict(shapes)
        self._sizes = [math.prod(shape) for shape in self.shapes.values()]
        self._rows = [math.ceil(size / _ROW) for size in self._sizes]
        self.num_parameters = sum(self._rows) * _ROW

    def flatten(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """{name: array} -> [P] float32. Raises ValueError where names or shapes are not the layout's."""
        given = {name: np.shape(array) for name, array in arrays.items()}
        if given != self.shapes:
            raise ValueError(f"parameters {given} do not fit the layout {self.shapes}")
        flat = np.zeros(self.num_parameters, np.float32)
        begins = np.cumsum([0, *self._rows]) * _ROW
        for name, begin, size in zip(self.shapes, begins, self._sizes, strict=False):
            flat[begin : begin + size] = np.ravel(arrays[name])
        return flat

    def unflatten(self, flat: tf.Tensor) -> dict[str, tf.Tensor]:
        """[P] -> {name: tensor}. One `split`, whose gradient is one `concat`: slices would each pad to full size."""
        parts = tf.split(tf.reshape(flat, [-1, _ROW]), self._rows)
        return {
            name: tf.reshape(_first(tf.reshape(part, [-1]), size, rows * _ROW), shape)
            for (name, shape), part, size, rows in zip(self.shapes.items(), parts, self._sizes, self._rows, strict=True)
        }


def _first(flat: tf.Tensor, size: int, given: int) -> tf.Tensor:
    return flat if size == given else flat[:size]


class Counters(NamedTuple):
    """What all workers together have done.

    As an argument: what to add (`staleness_max` and `stopped`: what to take the maximum with).
    """

    claimed_steps: int = 0  # agent steps handed out to workers
    env_steps: int = 0  # agent steps taken
    minibatches: int = 0
    updates: int = 0  # gradients, or accumulated deltas, applied
    dropped: int = 0  # updates that were too stale to be applied
    nonfinite: int = 0  # minibatches, or deltas, that were not finite and so never applied
    staleness_sum: int = 0  # over all updates
    staleness_max: int = 0
    episodes: int = 0
    target_refreshes: int = 0
    stopped: int = 0  # not 0: everyone ends now, for the `Stop` that it is


class Stop(IntEnum):
    """Why a run is ended before its budget is spent; of several, the highest counts."""

    SOLVED = 1
    INTERRUPTED = 2
    FAILED = 3


class Pulled(NamedTuple):
    """The online parameters [P] float32, for the receiver until its next pull but one, and the counters just before."""

    online: np.ndarray
    counters: Counters


class EpisodeReport(NamedTuple):
    """A finished game, on its way to the chief."""

    worker: int
    episode_return: float
    length: int
    env_steps: int  # global, as the worker knew it when the game ended
    time: float  # seconds since the epoch


class WorkerStatus(NamedTuple):
    """One worker as the store knows it."""

    state: str
    starts: int  # processes that have been this worker
    counters: Counters  # its own, since the store was last set


class Standing(NamedTuple):
    """The run at one moment."""

    counters: Counters
    workers: list[WorkerStatus]


class ParameterStore(Protocol):
    """The global network as a worker sees it. Every method may be called from any thread.

    Any of them may raise `Outage` where the network is out of reach or lost.
    """

    num_parameters: int
    total_steps: int  # the budget

    def initialize(self, online: np.ndarray) -> None:
        """Sets online and target to [P], slots and counters to their start. The chief's, once a run."""

    def pull(self) -> Pulled:
        """The newest online parameters."""

    def pull_target(self) -> np.ndarray:
        """The target parameters [P]."""

    def push(self, update: np.ndarray, learning_rate: float, counts: Counters, computed_on: int) -> Counters:
        """Applies one update [P] with the store's optimizer and adds `counts`; gives the counters before.

        Args:
          update: float32, or rounded to bfloat16.
          computed_on: `updates` in the pull that the update was computed on. A store may drop what is too stale.
        """

    def push_pull(
        self, update: np.ndarray, learning_rate: float, counts: Counters, computed_on: int
    ) -> tuple[Counters, Pulled]:
        """Pushes, then pulls, as one: the parameters have the update in them, unless the store dropped it."""

    def refresh_target(self) -> None:
        """Copies online to target and counts a refresh."""

    def claim_steps(self, wanted: int, counts: Counters) -> tuple[int, Counters]:
        """Takes up to `wanted` agent steps out of the budget; adds `counts`, whose negative `claimed_steps` give back.

        Returns the number granted (0: the budget is spent or the run stopped) and the counters after.
        """

    def add_counts(self, counts: Counters) -> Counters:
        """Adds `counts`; gives the counters after. With `Counters()` it only reads them."""

    def report_episodes(self, episodes: list[EpisodeReport]) -> None:
        """Hands finished games to the chief."""

    def take_episodes(self) -> list[EpisodeReport]:
        """The games reported since the last call. The chief's."""

    def check(self) -> Standing:
        """Makes sure that everything is still there (else Outage); gives how the run stands."""

    def state(self) -> dict[str, np.ndarray]:
        """Everything to save: online, target, slots, counters. The same whatever the number of shards."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Puts a saved state back. Raises ValueError where it is not one of this network and optimizer."""


def advance(counters: Counters, counts: Counters, budget: int) -> Counters:
    """The counters after `counts` came in: sums, a maximum, and no more steps claimed than the budget has."""
    added = Counters(*(a + b for a, b in zip(counters, counts, strict=True)))
    ceiling = counters.claimed_steps if counters.stopped else max(budget, counters.claimed_steps)
    return added._replace(
        claimed_steps=min(added.claimed_steps, ceiling),
        staleness_max=max(counters.staleness_max, counts.staleness_max),
        stopped=max(counters.stopped, counts.stopped),
    )


def check_state(state: Mapping[str, np.ndarray], num_parameters: int, optimizer: Optimizer) -> None:
    """Raises ValueError unless `state` belongs to a network of this size under this optimizer."""
    expected = {
        "online": (num_parameters,),
        "target": (num_parameters,),
        "counters": (len(Counters._fields),),
    }
    slots = optimizer.initial_slots(num_parameters)
    expected |= {f"slot/{name}": value.shape for name, value in slots.items()}
    found = {name: np.shape(state[name]) for name in expected if name in state}
    if found != expected:
        raise ValueError(f"saved arrays {found} are not those of this network and optimizer, {expected}")


def initial_state(online: np.ndarray, optimizer: Optimizer) -> dict[str, np.ndarray]:
    """The state of a store that begins with parameters [P]: they are the target too, and nothing is counted yet."""
    slots = {f"slot/{name}": value for name, value in optimizer.initial_slots(len(online)).items()}
    return {"online": online, "target": online, "counters": np.array(Counters(), np.int64)} | slots


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
