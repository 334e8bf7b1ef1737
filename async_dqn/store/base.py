"""The parameter store as a worker sees it: its protocol, and the counters that all workers share."""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np

from async_dqn.nn.optimizers import Optimizer


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
