"""What an agent learns from, as the learner sees it: replay, or rollouts."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from async_dqn.base.types import Transition
from async_dqn.data.replay import Replay

Outputs = Mapping[str, np.ndarray]  # what the networks say of N observations: {head: [N, ...]}
# Stacked observations [N, S, ...], and the recurrent state [N, M] if any -> outputs of the present parameters.
Evaluate = Callable[..., Outputs]
NO_RECURRENT_STATE = np.empty((0, 0), np.float32)


class Step(NamedTuple):
    """One step of all N environments."""

    observation: np.ndarray  # [N, ...], what was acted on
    stacked: np.ndarray  # [N, S, ...], the same with the observations before it
    action: np.ndarray  # [N] int32, or [N, D] float32
    outputs: Outputs  # of the networks, on which the actions were chosen
    reward: np.ndarray  # [N] float32, as it is learned from
    terminated: np.ndarray  # [N] bool
    truncated: np.ndarray  # [N] bool
    next_observation: np.ndarray  # [N, ...], where the step led
    recurrent_state: np.ndarray = NO_RECURRENT_STATE  # [N, M] float32, before it; empty for agents without one


class StepTaker(Protocol):
    """Takes steps in."""

    def add(self, step: Step, num_steps: int) -> None:
        """Takes in one step of all environments, `num_steps` of which count."""

    def truncate(self, envs: np.ndarray | None = None) -> None:
        """The environments, or these, start anew: what comes next follows from nothing.

        Nothing is learned from their newest step: their games ended where it was taken.
        """


class Sink(StepTaker, Protocol):
    """Takes steps in, and keeps what comes of them.

    Attributes:
      ring: the replay that is to be kept on disk; None where `state` has all there is.
    """

    ring: Replay | None

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and plain values to go on from, those of `ring` aside."""

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Puts `state()` back. Raises KeyError or ValueError where it does not fit."""


class Source(Protocol):
    """Gives minibatches out.

    Attributes:
      batch: the arrays of a minibatch, fit for `as_tensor`; each `draw` writes the next one there.
    """

    batch: Any  # a named tuple of arrays [B, ...]

    def due(self) -> int:
        """Minibatches that the steps taken in until now call for."""

    def draw(self, rng: np.random.Generator, step: int) -> None:
        """Writes the next minibatch to `batch`; one less is due.

        Args:
          step: agent steps of all workers until now.
        """

    def feedback(self, per_item: np.ndarray) -> None:
        """Takes what the loss says of each item [B] of the minibatch drawn last, where it does: `Loss.per_item`."""


class Experience(Sink, Source, Protocol):
    """Takes steps in, gives minibatches out."""


class Sampler(Protocol):
    """Which transitions of a replay make up a minibatch."""

    def make_batch(self, batch_size: int) -> Any:
        """The arrays that `sample` fills, fit for `as_tensor`: `Transition`, or that with more columns."""

    def sample(self, rng: np.random.Generator, step: int, out: Any) -> None:
        """Writes a minibatch to `out`; `step` is the agent steps of all workers until now."""

    def feedback(self, per_item: np.ndarray) -> None:
        """As of `Experience`."""

    def state(self) -> dict[str, np.ndarray]:
        """Arrays to go on from, those of the replay aside."""

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Puts `state()` back. Raises KeyError or ValueError where it does not fit."""


class UniformSampler:
    """Every transition is as likely as any other."""

    def __init__(self, replay: Replay):
        self.make_batch = replay.make_batch
        self._replay = replay

    def sample(self, rng: np.random.Generator, step: int, out: Transition) -> None:
        del step
        self._replay.sample(len(out.a_tm1), rng, out)

    def feedback(self, per_item: np.ndarray) -> None:
        """Nothing here depends on it."""

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """There is nothing to put back."""


class ReplayExperience:
    """Minibatches drawn from replay, one for every `train_period` agent steps once it is warm.

    Args:
      replay: of this worker.
      batch_size: B.
      train_period: agent steps for each minibatch.
      warmup_steps: transitions in replay before the first minibatch.
      sampler: draws from the replay; None: uniformly.
    """

    def __init__(
        self, replay: Replay, *, batch_size: int, train_period: int, warmup_steps: int, sampler: Sampler | None = None
    ):
        self.ring: Replay | None = replay
        self._replay, self._sampler = replay, sampler or UniformSampler(replay)
        self.batch: Any = self._sampler.make_batch(batch_size)
        self.feedback = self._sampler.feedback
        self._train_period, self._warmup_steps = train_period, warmup_steps
        self._owed_steps = 0  # agent steps for which no minibatch was drawn yet
        self._was_warm = False

    def add(self, step: Step, num_steps: int) -> None:
        self.add_to(None, step, num_steps)

    def add_to(self, envs: np.ndarray | None, step: Step, num_steps: int) -> None:
        """Takes in one step of these environments alone, which are N then; None: of all."""
        self._replay.add(
            step.observation, step.action, step.reward, step.terminated, step.truncated, step.next_observation, envs
        )
        if self._has_warmed_up():
            self._owed_steps += num_steps

    def _has_warmed_up(self) -> bool:
        """Whether replay has ever held enough, or all that it can; until then, to count is to look at all of it."""
        replay = self._replay
        is_full = replay.num_slots == replay.num_envs * replay.slots_per_env
        if not self._was_warm and (is_full or replay.num_slots >= self._warmup_steps):
            self._was_warm = len(replay) >= (1 if is_full else self._warmup_steps)
        return self._was_warm

    def due(self) -> int:
        return self._owed_steps // self._train_period

    def draw(self, rng: np.random.Generator, step: int) -> None:
        self._owed_steps -= self._train_period
        self.sample(rng, step)

    def sample(self, rng: np.random.Generator, step: int) -> None:
        """Writes a minibatch to `batch`, whether one is due or not."""
        self._sampler.sample(rng, step, self.batch)

    def truncate(self, envs: np.ndarray | None = None) -> None:
        self._replay.truncate(envs)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return self._sampler.state(), {"owed_steps": self._owed_steps}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        self._sampler.restore(arrays)
        self._owed_steps = values["owed_steps"]
        self._was_warm = False  # the replay may be another one
