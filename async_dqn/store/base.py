"""The parameter store as a worker sees it: its protocol, and the counters that all workers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np

from async_dqn.nn.module import Module

_COUNTER = "counter/"


class Counters(NamedTuple):
    """What all workers together have done.

    As an argument: what to add (`staleness_max` and `stopped`: what to take the maximum with).
    """

    claimed_steps: int = 0  # agent steps handed out to workers
    env_steps: int = 0  # agent steps taken
    minibatches: int = 0
    updates: int = 0  # gradients, or accumulated deltas, applied
    dropped: int = 0  # updates that were too stale to be applied, or lost on their way
    nonfinite: int = 0  # minibatches, or deltas, that were not finite and so never applied
    staleness_sum: int = 0  # over all updates
    staleness_max: int = 0
    bad_values: int = 0  # steps that had one, see `types.BadValue`
    target_refreshes: int = 0  # the store's to count: what a worker adds to it is not taken
    received: int = 0  # agent steps whose experience has crossed to the learner
    age_sum: int = 0  # over these: updates between the parameters they were taken with and those that learn from them
    model_updates: int = 0  # updates by planners, of a model of the environment
    stopped: int = 0  # not 0: everyone ends now, for the `Stop` that it is


class Stop(IntEnum):
    """Why a run is ended before its budget is spent; of several, the highest counts."""

    SOLVED = 1
    INTERRUPTED = 2
    FAILED = 3


class Pulled(NamedTuple):
    """Online parameters {module: [P] float32}, the receiver's until its next pull but one; the counters just before."""

    online: dict[str, np.ndarray]
    counters: Counters


class Update(NamedTuple):
    """What is pushed to one module."""

    value: np.ndarray  # [P] float32, or rounded to bfloat16
    rate: float  # step size


class EpisodeReport(NamedTuple):
    """A finished game, on its way to the chief."""

    worker: int
    episode_return: float
    length: int
    env_steps: int  # global, as the worker knew it when the game ended
    time: float  # seconds since the epoch


def episode_report(cells: Sequence[Any]) -> EpisodeReport:
    """Makes a report of its five values, as numbers or as text. Raises ValueError where one is no number."""
    worker, episode_return, length, env_steps, when = map(float, cells)
    return EpisodeReport(int(worker), episode_return, int(length), int(env_steps), when)


class MemberState(IntEnum):
    """What a store that workers share knows of one."""

    EXPECTED = 0  # it has not come yet
    ACTIVE = 1
    DONE = 2
    LOST = 3  # its lease ran out, or its process has ended


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
    """The global networks as a worker sees them. Every method may be called from any thread.

    Any of them may raise `Outage` where the networks are out of reach or lost. Whenever the count of minibatches
    passes a multiple of the target period, the store copies online parameters to the targets, once.
    """

    modules: Sequence[Module]
    total_steps: int  # the budget

    def initialize(self, online: Mapping[str, np.ndarray]) -> None:
        """Sets online and target of every module to [P], slots and counters to their start. The chief's, once a run."""
        self.restore(initial_state(online, self.modules))

    def pull(self) -> Pulled:
        """The newest online parameters of all modules."""

    def pull_target(self) -> dict[str, np.ndarray]:
        """The target parameters [P] of the modules that have one."""

    def push(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> Counters:
        """Applies one update to each named module and adds `counts`; gives the counters before.

        Args:
          computed_on: `updates` in the pull that the update was computed on. A store may drop what is too stale.
        """

    def push_pull(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> tuple[Counters, Pulled]:
        """Pushes, then pulls the same modules, as one: they have the update in them, unless the store dropped it."""

    def claim_steps(self, wanted: int, counts: Counters) -> tuple[int, Counters]:
        """Takes up to `wanted` agent steps out of the budget; adds `counts`, whose negative `claimed_steps` give back.

        Returns the number granted (0: the budget is spent or the run stopped) and the counters after.
        """

    def add_counts(self, counts: Counters) -> Counters:
        """Adds `counts`; gives the counters after. With `Counters()` it only reads them."""
        return self.claim_steps(0, counts)[1]

    def report_episodes(self, episodes: list[EpisodeReport]) -> None:
        """Hands finished games to the chief."""

    def take_episodes(self) -> list[EpisodeReport]:
        """The games reported since the last call. The chief's."""

    def check(self) -> Standing:
        """Makes sure that everything is still there (else Outage); gives how the run stands."""

    def state(self) -> dict[str, np.ndarray]:
        """Everything to save, by name: MODULE/online, MODULE/target, MODULE/slot/NAME, counter/NAME.

        The same whatever the number of shards.
        """

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Puts a saved state back; a counter that it lacks starts at 0. Raises ValueError where it does not fit."""


def advance(counters: Counters, counts: Counters, budget: int, target_period: int = 0) -> Counters:
    """The counters after `counts` came in: sums, maxima, and no more steps claimed than the budget has.

    Args:
      target_period: minibatches; where their count passes a multiple of it, one target refresh is counted. 0: none.
    """
    added = Counters(*(a + b for a, b in zip(counters, counts, strict=True)))
    ceiling = counters.claimed_steps if counters.stopped else max(budget, counters.claimed_steps)
    return added._replace(
        claimed_steps=min(added.claimed_steps, ceiling),
        staleness_max=max(counters.staleness_max, counts.staleness_max),
        stopped=max(counters.stopped, counts.stopped),
        target_refreshes=counters.target_refreshes + passes(counters.minibatches, added.minibatches, target_period),
    )


def passes(before: int, after: int, period: int) -> bool:
    """Whether a count that rose from `before` to `after` passed a multiple of `period`; never where that is 0."""
    return bool(period) and after // period > before // period


def counter_state(counters: Counters) -> dict[str, np.ndarray]:
    """The counters as arrays to save, by name."""
    return {f"{_COUNTER}{name}": np.int64(value) for name, value in counters._asdict().items()}  # type: ignore[misc]


def saved_counters(state: Mapping[str, np.ndarray]) -> Counters:
    """The inverse of `counter_state`: what is missing is 0, what this version does not know is left out."""
    return Counters(**{name: int(state.get(f"{_COUNTER}{name}", 0)) for name in Counters._fields})


def check_state(state: Mapping[str, np.ndarray], modules: Iterable[Module]) -> None:
    """Raises ValueError unless `state` belongs to these modules under their optimizers."""
    found, expected = _shapes(state), state_shapes(modules)
    if found != expected:
        wrong = next(name for name in [*expected, *found] if found.get(name) != expected.get(name))
        there, needed = found.get(wrong, "none"), expected.get(wrong, "none")
        raise ValueError(
            f"saved arrays {', '.join(found)} are not those of these networks and optimizers: {wrong} has the shape "
            f"{there}, and {needed} is needed"
        )


def with_moved_slots(
    state: Mapping[str, np.ndarray], modules: Iterable[Module]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """A saved state made ready for settings by which the store holds other optimizers, and workers the rest.

    Returns:
      The state: slots that the store did not have begin anew, and slots that workers have now are left out. And the
      names of the modules that these are of.

    Raises:
      ValueError: these would be the counts of running means, which are nothing without them.
    """
    fitting, moved = dict(state), []
    for module in modules:
        slots = _initial_slots(module)
        saved = [name for name in state if name.startswith(f"{module.name}/slot/")]
        if (slots and not saved) or (saved and module.optimizer.name == "add"):
            if not module.is_trained:
                remedy = "give --local_steps=0" if saved else "go on with `local` and the --local_steps that it had"
                held = f"with --local_steps workers hold the counts of {module.name}, without it the store does"
                raise ValueError(f"{held}; {remedy}")
            fitting = {name: array for name, array in fitting.items() if name not in saved} | slots
            moved.append(module.name)
    return fitting, moved


def state_shapes(modules: Iterable[Module]) -> dict[str, tuple[int, ...]]:
    """The shapes of all float32 arrays that a store holds, by their names in a saved state."""
    modules = list(modules)
    online = {module.name: np.broadcast_to(np.float32(0), module.size) for module in modules}
    return _shapes(initial_state(online, modules))


def _shapes(state: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(array) for name, array in state.items() if not name.startswith(_COUNTER)}


def initial_state(online: Mapping[str, np.ndarray], modules: Iterable[Module]) -> dict[str, np.ndarray]:
    """The state of a store that begins with parameters {module: [P]}: targets are the same, nothing is counted yet."""
    state = counter_state(Counters())
    for module in modules:
        state[f"{module.name}/online"] = online[module.name]
        if module.has_target:
            state[f"{module.name}/target"] = online[module.name]
        state |= _initial_slots(module)
    return state


def _initial_slots(module: Module) -> dict[str, np.ndarray]:
    slots = module.optimizer.initial_slots(module.size)
    return {f"{module.name}/slot/{name}": value for name, value in slots.items()}
