"""Small stand-ins that several tests share."""

import threading
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from async_dqn import optimizers
from async_dqn.environments import EnvironmentSpec
from async_dqn.parameters import Counters, LocalParameterStore, Pulled
from async_dqn.types import Episode, StepResult


def descent() -> optimizers.Optimizer:
    """Parameters minus learning rate times update: easy to follow by hand."""

    def apply(parameters, slots, update, learning_rate):
        return parameters.assign_sub(learning_rate * update, read_value=False)

    return optimizers.Optimizer("descent", lambda size: {}, apply)


def make_store(
    online: Sequence[float] | np.ndarray = (0.0, 0.0),
    *,
    optimizer: optimizers.Optimizer | None = None,
    total_steps: int = 1_000,
) -> LocalParameterStore:
    """An initialised store in this process, which adds every update up unless told otherwise."""
    store = LocalParameterStore(len(online), optimizer or optimizers.add(), total_steps)
    store.initialize(np.array(online, np.float32))
    return store


class GatedStore(LocalParameterStore):
    """A store whose pushes wait at `gate`; `arrived` is set as soon as one stands there."""

    def __init__(self, online: Sequence[float] | np.ndarray):
        super().__init__(len(online), optimizers.add(), 1_000)
        self.initialize(np.array(online, np.float32))
        self.arrived, self.gate = threading.Event(), threading.Event()

    def push(self, update: np.ndarray, learning_rate: float, counts: Counters) -> Counters:
        self.arrived.set()
        assert self.gate.wait(30), "nobody opened the gate"
        return super().push(update, learning_rate, counts)


class RecordingStore(LocalParameterStore):
    """A store that keeps the list of trips made to it: ("push", update, learning rate), ("pull",), ("target",)."""

    def __init__(self, online: Sequence[float] | np.ndarray, optimizer: optimizers.Optimizer):
        super().__init__(len(online), optimizer, 1_000)
        self.trips: list[tuple] = []
        self.initialize(np.array(online, np.float32))

    def push(self, update: np.ndarray, learning_rate: float, counts: Counters) -> Counters:
        self.trips.append(("push", update.tolist(), learning_rate))
        return super().push(update, learning_rate, counts)

    def pull(self) -> Pulled:
        self.trips.append(("pull",))
        return super().pull()

    def pull_target(self) -> np.ndarray:
        self.trips.append(("target",))
        return super().pull_target()


class CountingEnv:
    """N environments whose observation is the step number; every step gives `reward`, every `length` a game ends."""

    def __init__(self, num_envs: int, length: int = 3, reward: float = 1.0):
        self.num_envs, self._length, self._reward = num_envs, length, reward
        self.num_steps = 0
        self.spec = EnvironmentSpec(
            id="Counting-v0",
            is_atari=False,
            protocol="none",
            num_actions=2,
            observation_shape=(1,),
            observation_dtype=np.dtype(np.float32),
            frame_skip=1,
            stack=1,
            max_episode_steps=None,
        )

    def reset(self) -> np.ndarray:
        self.num_steps = 0
        return self._observe()

    def step(self, actions: np.ndarray) -> StepResult:
        assert actions.shape == (self.num_envs,)
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

    def observe(self, actions: np.ndarray, result: StepResult) -> None:
        self.calls.append(("observe", float(result.next_observation[0, 0])))

    def learn(self, num_steps: int) -> None:
        self.calls.append(("learn", num_steps))


def as_tensor(*values: float) -> tf.Tensor:
    """A float32 vector."""
    return tf.constant(values, tf.float32)
