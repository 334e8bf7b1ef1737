"""Small stand-ins that several tests share."""

import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.base.errors import Outage
from async_dqn.base.schedules import constant
from async_dqn.base.types import Episode, StepResult
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn import optimizers
from async_dqn.nn.module import Module
from async_dqn.store.base import Counters, ParameterStore, Pulled, Standing, Update, WorkerStatus
from async_dqn.store.client import DirectClient, ParameterClient
from async_dqn.store.delta_client import DeltaClient
from async_dqn.store.gradient_client import GradientClient
from async_dqn.store.local import LocalParameterStore


def descent() -> optimizers.Optimizer:
    """Parameters minus learning rate times update: easy to follow by hand."""

    def apply(parameters, slots, update, learning_rate):
        return parameters.assign_sub(learning_rate * update, read_value=False)

    def step(parameters, slots, update, learning_rate):
        parameters -= np.float32(learning_rate) * update

    return optimizers.Optimizer("descent", lambda size: {}, apply, step)


def heavy_ball() -> optimizers.Optimizer:
    """Adds the sum of all updates so far, its one slot: an optimizer that an overflow spoils for good."""

    def apply(parameters, slots, update, learning_rate):
        slots["sum"].assign_add(update)
        return parameters.assign_add(slots["sum"].read_value())

    def step(parameters, slots, update, learning_rate):
        slots["sum"] += update
        parameters += slots["sum"]

    return optimizers.Optimizer("heavy_ball", lambda size: {"sum": np.zeros(size, np.float32)}, apply, step)


def make_module(
    size: int = 2,
    name: str = "q",
    *,
    optimizer: optimizers.Optimizer | None = None,
    rate: float = 1.0,
    has_target: bool = True,
    is_trained: bool = True,
) -> Module:
    """A module of exactly `size` parameters, which start at 0; it adds every update up unless told otherwise."""
    layout: Any = SimpleNamespace(num_parameters=size, flatten=lambda arrays: arrays[name])
    return Module(
        name,
        layout,
        lambda rng: {name: np.zeros(size, np.float32)},
        optimizer or optimizers.add(),
        constant(rate),
        has_target,
        is_trained,
    )


def make_store(online: Sequence[float] | np.ndarray = (0.0, 0.0), **options: Any) -> LocalParameterStore:
    """An initialised store in this process with one module, "q"; for the options see `QStore`."""
    return QStore(online, **options)


class QStore(LocalParameterStore):
    """An initialised store with one module, "q"; options that are not named here are those of `make_module`."""

    def __init__(
        self,
        online: Sequence[float] | np.ndarray,
        *,
        total_steps: int = 1_000,
        target_period: int = 0,
        **options: Any,
    ):
        super().__init__([make_module(len(online), **options)], total_steps, target_period)
        self.initialize({"q": np.array(online, np.float32)})


def direct_client(store: LocalParameterStore, *, max_nonfinite: int = 10) -> DirectClient:
    """A started client of a store in this process."""
    client = DirectClient(store, max_nonfinite=max_nonfinite)
    client.start()
    return client


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"overlap": False, "max_nonfinite": 10, "max_staleness": 0, **given}


def gradient_client(store: ParameterStore, **options: Any) -> GradientClient:
    """A started client, without overlap unless told otherwise."""
    client = GradientClient(store, **_options(options))
    client.start()
    return client


def delta_client(
    store: ParameterStore, *, local_steps: int = 1, optimizer: optimizers.Optimizer | None = None, **options: Any
) -> DeltaClient:
    """A started client, without overlap and adding every gradient up unless told otherwise."""
    modules = [module._replace(optimizer=optimizer or optimizers.add()) for module in store.modules]
    client = DeltaClient(store, trained=modules, local_steps=local_steps, **_options(options))
    client.start()
    return client


def minibatch(client: ParameterClient, *update: float) -> None:
    """One minibatch of a client, whose gradient of the one module is `update`."""
    client.consume([as_tensor(*update)], tf.constant(client.rates()))
    client.after_minibatch()


def push(store: ParameterStore, *update: float, rate: float = 1.0, computed_on: int = 0, **counts: int) -> Counters:
    """Pushes one update to "q", as another worker does; gives the counters before."""
    counters = Counters(**{"updates": 1} | counts)
    return store.push({"q": Update(np.array(update, np.float32), rate)}, counters, computed_on)


def online(client: ParameterClient) -> list[float]:
    """The client's copy of "q"."""
    return client.online["q"].numpy().tolist()


def global_online(store: ParameterStore) -> list[float]:
    """The store's "q"."""
    return store.pull().online["q"].tolist()


def as_tensor(*values: float) -> tf.Tensor:
    """A float32 vector."""
    return tf.constant(values, tf.float32)


Updates = Mapping[str, Update]


class GatedStore(QStore):
    """A store whose round trips wait for `gate`, mere pushes do not; `arrived` is set as soon as one waits."""

    def __init__(self, online: Sequence[float] | np.ndarray):
        super().__init__(online)
        self.arrived, self.gate = threading.Event(), threading.Event()

    def push_pull(self, updates: Updates, counts: Counters, computed_on: int) -> tuple[Counters, Pulled]:
        self.arrived.set()
        assert self.gate.wait(30), "nobody opened the gate"
        return super().push_pull(updates, counts, computed_on)


class RecordingStore(QStore):
    """A store that keeps the list of requests to it: ("push", update, learning rate), ("pull",), ("target",)."""

    def __init__(self, online: Sequence[float] | np.ndarray, **options: Any):
        self.requests: list[tuple] = []
        super().__init__(online, **options)

    @property
    def pushes(self) -> list[list[float]]:
        """The updates pushed until now."""
        return [request[1] for request in self.requests if request[0] == "push"]

    def push(self, updates: Updates, counts: Counters, computed_on: int) -> Counters:
        self.requests.append(("push", updates["q"].value.tolist(), updates["q"].rate))
        return super().push(updates, counts, computed_on)

    def pull(self) -> Pulled:
        self.requests.append(("pull",))
        return super().pull()

    def pull_target(self) -> dict[str, np.ndarray]:
        self.requests.append(("target",))
        return super().pull_target()


class DroppingStore(QStore):
    """A store that drops what is too stale, and counts it, as the ledger of parameter servers does."""

    def __init__(self, online: Sequence[float] | np.ndarray, max_staleness: int):
        super().__init__(online)
        self._max_staleness = max_staleness

    def push(self, updates: Updates, counts: Counters, computed_on: int) -> Counters:
        before = self.pull().counters
        if before.updates - computed_on <= self._max_staleness:
            return super().push(updates, counts, computed_on)
        self.add_counts(counts._replace(updates=0, dropped=counts.updates))
        return before


class FragileStore(QStore):
    """A store that is out of reach while `is_out`.

    Like that of parameter servers, it keeps the counts that it was given meanwhile, and adds them in `settle`.
    """

    def __init__(self, online: Sequence[float] | np.ndarray, **options: Any):
        self.is_out = False
        self._unsettled: list[Counters] = []
        super().__init__(online, **options)

    def push(self, updates: Updates, counts: Counters, computed_on: int) -> Counters:
        self._refuse(counts)
        return super().push(updates, counts, computed_on)

    def pull(self) -> Pulled:
        self._refuse(Counters())
        return super().pull()

    def pull_target(self) -> dict[str, np.ndarray]:
        self._refuse(Counters())
        return super().pull_target()

    def claim_steps(self, wanted: int, counts: Counters) -> tuple[int, Counters]:
        self._refuse(counts)
        return super().claim_steps(wanted, counts)

    def settle(self) -> None:
        """It is in reach again, and nothing was lost."""
        self.is_out = False
        while self._unsettled:
            counts = self._unsettled.pop()
            self.add_counts(counts._replace(updates=0, dropped=counts.dropped + counts.updates))

    def roll_back(self, state: Mapping[str, np.ndarray]) -> None:
        """It is in reach again, as it was once."""
        self.is_out = False
        self._unsettled.clear()
        self.restore(state)

    def _refuse(self, counts: Counters) -> None:
        if self.is_out:
            self._unsettled.append(counts)
            raise Outage("ps 0 has ended")


def make_spec(shape: tuple[int, ...] = (1,), dtype: Any = np.float32, stack: int = 1) -> EnvironmentSpec:
    """What the observations of an environment of two actions look like."""
    return EnvironmentSpec(
        id="Counting-v0",
        is_atari=False,
        protocol="none",
        num_actions=2,
        observation_shape=shape,
        observation_dtype=np.dtype(dtype),
        frame_skip=1,
        stack=stack,
        max_episode_steps=None,
    )


class CountingEnv:
    """N environments whose observation is the step number; every step gives `reward`, every `length` a game ends."""

    def __init__(self, num_envs: int, length: int = 3, reward: float = 1.0):
        self.num_envs, self._length, self._reward = num_envs, length, reward
        self.num_steps = 0
        self._is_stepping = False
        self.spec = make_spec()

    def reset(self) -> np.ndarray:
        self.num_steps = 0
        return self._observe()

    def send(self, actions: np.ndarray) -> None:
        assert actions.shape == (self.num_envs,)
        assert not self._is_stepping
        self._is_stepping = True

    def receive(self) -> StepResult:
        assert self._is_stepping
        self._is_stepping = False
        self.num_steps += 1
        ended = np.full(self.num_envs, self.num_steps % self._length == 0)
        score = self._reward * self._length
        episodes = [Episode(int(i), score, self._length) for i in np.flatnonzero(ended)]
        seen, reward = self._observe(), np.full(self.num_envs, self._reward, np.float32)
        return StepResult(seen, seen, reward, ended, np.zeros(self.num_envs, bool), episodes)

    def close(self) -> None:
        pass

    def _observe(self) -> np.ndarray:
        return np.full((self.num_envs, 1), self.num_steps, np.float32)


class RecordingAgent:
    """An agent that always takes action 0, and keeps the list of what it was asked to do."""

    def __init__(self, num_envs: int):
        self._num_envs = num_envs
        self.calls: list[tuple] = []

    def reset(self, observation: np.ndarray) -> None:
        self.calls.append(("reset", observation.shape))

    def act(self) -> np.ndarray:
        self.calls.append(("act",))
        return np.zeros(self._num_envs, np.int32)

    def observe(self, actions: np.ndarray, result: StepResult, num_steps: int) -> None:
        self.calls.append(("observe", float(result.next_observation[0, 0]), num_steps))

    def learn(self) -> None:
        self.calls.append(("learn",))

    def settle(self) -> None:
        """Nothing is ever under way."""


class StandingStore(LocalParameterStore):
    """A store whose workers stand as a test says."""

    states = ("active", "active", "active")

    def check(self) -> Standing:
        return Standing(super().check().counters, [WorkerStatus(state, 1, Counters()) for state in self.states])
