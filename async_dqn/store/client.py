"""A worker's own copy of the networks, and what it has yet to report to the parameter store.

The learner computes on `online` and `target` and hands every gradient to `consume`. Here is what all clients share,
and the client of a store in the same process; those that make round trips to a store are in `round_trip`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from async_dqn.base.cycle import CycleClock
from async_dqn.base.errors import RunFailed
from async_dqn.store.base import Counters, EpisodeReport, ParameterStore, Standing
from async_dqn.store.local import LocalParameterStore

# Why losses and updates are usually not finite.
OPTIMIZER = "the optimizer is the cause, not the data: a lower --learning_rate or a --max_gradient_norm may help"


class ParameterClient:
    """What all clients share: the local copy and the counts.

    Attributes:
      modules: the networks, in the order of gradients and rates.
      online, target: {module: variable [P]} that the learner computes with.
      counters: the global counters as last heard.
      stalenesses: of this worker's own updates, since the caller last emptied the list.
      clock: where the time of the thread that calls goes.
      own_minibatches: computed by this worker.
      exchanged_bytes: of updates, parameters and experience that this process has sent or fetched, by whatever means.

    Args:
      max_nonfinite: minibatches in a row with a loss or gradient that is not finite, at which `RunFailed` is raised.
    """

    def __init__(
        self,
        store: ParameterStore,
        *,
        online: Mapping[str, tf.Variable],
        target: Mapping[str, tf.Variable],
        max_nonfinite: int,
    ):
        self.modules = store.modules
        self.online, self.target = online, target
        self.counters = Counters()
        self.stalenesses: list[int] = []
        self.clock = CycleClock()
        self.own_minibatches = 0
        self.exchanged_bytes = 0
        self._store = store
        self._max_nonfinite = max_nonfinite
        self._in_a_row = {"minibatches": 0, "updates": 0}  # not finite
        self._unreported = Counters()

    def start(self) -> None:
        """Takes the first copy of all networks."""
        raise NotImplementedError

    def before_minibatch(self) -> None:  # noqa: B027
        """Called before a gradient is computed on `online`."""

    def consume(self, gradients: Sequence[tf.Tensor], rates: tf.Tensor) -> None:
        """Takes one minibatch's gradients, [P] for each module. TensorFlow code, called inside a `tf.function`.

        One of several that is zero throughout is of a module that the minibatch says nothing of: its optimizer makes no
        step, which would let its averages forget.

        Args:
          rates: [M] float32, the step size of each module.
        """
        raise NotImplementedError

    def after_minibatch(self) -> None:
        """Counts a minibatch that was consumed, and makes the round trip that is due."""
        self._in_a_row["minibatches"] = 0
        self._count_minibatch()

    def reject_minibatch(self, cause: str = OPTIMIZER) -> None:
        """Counts a minibatch whose loss or gradient was not finite, and that was not consumed.

        Args:
          cause: what is to be said of it.

        Raises:
          RunFailed: it is one too many in a row.
        """
        self._count_minibatch()
        self._count_nonfinite("minibatches", cause)

    def _count_nonfinite(self, what: str, cause: str) -> None:
        self.count(nonfinite=1)
        self._in_a_row[what] += 1
        if self._in_a_row[what] >= self._max_nonfinite:
            raise RunFailed(
                f"{self._in_a_row[what]} {what} in a row gave a loss, gradient or update that is not finite, and none "
                f"of them was applied; {cause}; --resume goes on from the last checkpoint"
            )

    def finish(self) -> None:
        """Pushes what is left, reports all counts and ends the thread."""
        raise NotImplementedError

    def slots(self) -> dict[str, np.ndarray]:
        """The optimizers' state where this worker holds it, as MODULE/SLOT."""
        return {}

    def restore_slots(self, slots: Mapping[str, np.ndarray]) -> None:
        """Puts `slots()` back. A module that was not among them begins anew; one that is not held here now is left out.

        Raises ValueError where they are those of another network or optimizer.
        """
        own = self.slots()
        common = {name.split("/")[0] for name in own} & {name.split("/")[0] for name in slots}

        def shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
            return {name: value.shape for name, value in arrays.items() if name.split("/")[0] in common}

        if shapes(slots) != shapes(own):
            raise ValueError("it holds the slots of another optimizer or network")

    def rates(self) -> np.ndarray:
        """The step size of each module at the global step, [M] float32."""
        return np.array([module.rate(self.env_steps) for module in self.modules], np.float32)

    @property
    def env_steps(self) -> int:
        """Agent steps of all workers, as far as known here."""
        return self.counters.env_steps + self._unreported.env_steps

    @property
    def minibatches(self) -> int:
        """Minibatches of all workers, as far as known here."""
        return self.counters.minibatches + self._unreported.minibatches

    @property
    def is_over(self) -> bool:
        """Whether all workers together have taken all steps of the budget, or the run was stopped."""
        return bool(self.counters.stopped) or self.counters.env_steps >= self._store.total_steps

    def count(self, **counts: int) -> None:
        """Adds to what the next round trip or claim reports."""
        self._unreported = self._unreported._replace(
            **{name: getattr(self._unreported, name) + value for name, value in counts.items()}
        )

    def _count_minibatch(self) -> None:
        self.count(minibatches=1)
        self.own_minibatches += 1

    def _count_staleness(self, staleness: int) -> None:
        self.stalenesses.append(staleness)
        self.count(staleness_sum=staleness)
        most = max(staleness, self._unreported.staleness_max)
        self._unreported = self._unreported._replace(staleness_max=most)

    def claim_steps(self, wanted: int) -> int:
        """Takes up to `wanted` agent steps out of the budget; 0: all of it is claimed, for the moment."""
        part = self.clock.enter("waiting")
        granted, counters = self._store.claim_steps(wanted, self._take_unreported())
        self.clock.enter(part)
        self._hear(counters)
        return granted

    def report_episodes(self, episodes: list[EpisodeReport]) -> None:
        """Hands finished games to the chief."""
        part = self.clock.enter("waiting")
        self._store.report_episodes(episodes)
        self.clock.enter(part)

    def report(self) -> None:
        """Reports all that is counted here, and hears how the others stand."""
        self._hear(self._store.add_counts(self._take_unreported()))

    def check(self) -> Standing:
        """How the run stands, asked anew."""
        standing = self._store.check()
        self._hear(standing.counters)
        return standing

    def _take_unreported(self) -> Counters:
        counts, self._unreported = self._unreported, Counters()
        return counts

    def _hear(self, counters: Counters) -> None:
        """Takes in counters, which may arrive out of order: none of them ever falls."""
        self.counters = Counters(*map(max, self.counters, counters))


class PromptClient(ParameterClient):
    """A client that reports each minibatch at once, as nothing is on its way."""

    def start(self) -> None:
        self.report()

    def reject_minibatch(self, cause: str = OPTIMIZER) -> None:
        super().reject_minibatch(cause)
        self.report()

    def finish(self) -> None:
        self.report()


def step_each(gradients: Sequence[tf.Tensor], step: Callable[[int, tf.Tensor], object]) -> None:
    """Calls step(index, gradient) for each gradient, but for those of several that are zero throughout."""
    for index, gradient in enumerate(gradients):
        if len(gradients) == 1:
            step(index, gradient)
        else:
            tf.cond(tf.reduce_any(gradient != 0), functools.partial(_call, step, index, gradient), lambda: None)


def _call(step: Callable[[int, tf.Tensor], object], index: int, gradient: tf.Tensor) -> None:
    step(index, gradient)  # what it gives is no branch's result


class DirectClient(PromptClient):
    """The client of a store in this process: computes on the store's own variables, so that nothing is ever copied."""

    def __init__(self, store: LocalParameterStore, *, max_nonfinite: int):
        super().__init__(store, online=store.online, target=store.target, max_nonfinite=max_nonfinite)
        self._apply = [store.apply[module.name] for module in store.modules]

    def consume(self, gradients: Sequence[tf.Tensor], rates: tf.Tensor) -> None:
        step_each(gradients, lambda index, gradient: self._apply[index](gradient, rates[index]))

    def after_minibatch(self) -> None:
        super().after_minibatch()
        self.count(updates=1)
        self.stalenesses.append(0)
        self.report()
