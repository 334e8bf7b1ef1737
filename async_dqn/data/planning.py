"""Dyna: minibatches of real transitions, and of transitions that a learned model of the environment gives."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from async_dqn.data.experience import Evaluate, Outputs, ReplayExperience, Step
from async_dqn.data.replay import Replay
from async_dqn.nn.aligned import aligned_empty

SWEEPINGS = ("uniform", "prioritized", "novelty")
_CHECK_PERIOD = 50  # minibatches between two looks at the model's error
_CHECKED = 1_024  # transitions of which the held-out ones are looked at
_HELD_OUT = 10  # the model never trains on one state in so many
_CANDIDATES = 4  # states that are drawn for each that is planned from
_HASH_BITS = 10  # of the random projection that tells whether a state is new


class Imagined(NamedTuple):
    """What the model says of N states, for each of A actions."""

    next_observation: np.ndarray  # [N, A, D]
    reward: np.ndarray  # [N, A]
    termination: np.ndarray  # [N, A] probability that the episode ends


class DynaBatch(NamedTuple):
    """A minibatch, of real or of simulated transitions."""

    s_tm1: np.ndarray  # [B, 1, D] float32
    a_tm1: np.ndarray  # [B] int32
    r_t: np.ndarray  # [B] float32
    discount_t: np.ndarray  # [B] float32
    s_t: np.ndarray  # [B, 1, D] float32
    is_simulated: np.ndarray  # [B] float32, 0 or 1, the same in all rows
    weight: np.ndarray  # [B] float32, 0 for simulated rows that come after the end of an episode
    is_held_out: np.ndarray  # [B] float32, 1 for real transitions that the model is only tested on


def held_out(observation: np.ndarray) -> np.ndarray:
    """Whether the model is only tested on states [N, ...] float32: [N] bool, by their bits, the same for ever."""
    bits = np.ascontiguousarray(observation, np.float32).reshape(len(observation), -1).view(np.uint32)
    mixed = (bits.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).sum(axis=1, dtype=np.uint64)
    return (mixed >> np.uint64(40)) % np.uint64(_HELD_OUT) == 0


class VisitCounts:
    """How often states were seen, by the signs of random projections (SimHash; Tang et al. 2017).

    Args:
      size: numbers in a state.
    """

    def __init__(self, size: int):
        rng = np.random.default_rng(0)  # the same projections for every worker and for a resumed run
        self._projection = rng.normal(size=(size, _HASH_BITS))
        self._offset = rng.normal(scale=0.1, size=_HASH_BITS)
        self.counts = np.zeros(2**_HASH_BITS, np.int64)

    def add(self, observation: np.ndarray) -> None:
        """Counts states [N, D]."""
        np.add.at(self.counts, self._codes(observation), 1)

    def of(self, observation: np.ndarray) -> np.ndarray:
        """[N] visits of states [N, D], those included that only look alike."""
        return self.counts[self._codes(observation)]

    def _codes(self, observation: np.ndarray) -> np.ndarray:
        flat = observation.reshape(len(observation), -1)  # [N, D]
        return (flat @ self._projection + self._offset > 0) @ (1 << np.arange(_HASH_BITS))


class DynaExperience(ReplayExperience):
    """Minibatches of real transitions from replay, and of ones that the model imagines, once it is good enough.

    Planning starts from real states, with any action, and goes on greedily. There are never more simulated minibatches
    for each real one than asked for, and none for as long as the model's error is above `max_model_error`.

    Args:
      simulated_ratio: simulated minibatches for each real one.
      depth: steps of a simulated trajectory, which divides the batch size.
      sweeping: how states to plan from are chosen, one of `SWEEPINGS`: any of replay; those with a large Bellman error
        or that lead to one (Moore & Atkeson 1993); those that were seldom seen.
      max_model_error: share of the variance of the change of a state that the model may fail to explain, on held-out
        transitions.
      imagine: outputs of the networks, observations [N, 1, D] -> what the model says of them.
      evaluate: the networks' outputs on stacked observations.
    """

    def __init__(
        self,
        replay: Replay,
        *,
        discount: float,
        simulated_ratio: float,
        depth: int,
        sweeping: str,
        max_model_error: float,
        imagine: Callable[[Outputs, np.ndarray], Imagined],
        evaluate: Evaluate,
        batch_size: int,
        train_period: int,
        warmup_steps: int,
    ):
        super().__init__(replay, batch_size=batch_size, train_period=train_period, warmup_steps=warmup_steps)
        real = self.batch
        self._num_starts = batch_size // depth
        self._candidates = replay.make_batch(_CANDIDATES * self._num_starts)
        self._checked = replay.make_batch(_CHECKED)
        self._discount, self._depth, self._sweeping = discount, depth, sweeping
        self._simulated_ratio, self._max_model_error = simulated_ratio, max_model_error
        self._imagine, self._evaluate = imagine, evaluate
        flags = [aligned_empty((batch_size,), np.float32) for _ in range(3)]
        self.batch: Any = DynaBatch(*real, *flags)
        self._real = real
        self._visits = VisitCounts(real.s_tm1[0].size)
        self._planned = 0.0  # simulated minibatches that the real ones until now call for
        self._until_check = 0
        self.model_error = float("nan")  # when last looked at

    @property
    def plans(self) -> bool:
        """Whether the model is good enough."""
        return self.model_error <= self._max_model_error

    def add_to(self, envs: np.ndarray | None, step: Step, num_steps: int) -> None:
        super().add_to(envs, step, num_steps)
        self._visits.add(step.observation)

    def due(self) -> int:
        return super().due() + int(self._planned)

    def draw(self, rng: np.random.Generator, step: int) -> None:
        if self._planned >= 1:
            self._planned -= 1
            self._plan(rng)
        else:
            super().draw(rng, step)

    def sample(self, rng: np.random.Generator, step: int) -> None:
        del step
        if self._until_check == 0:
            self.model_error = self._look(rng)
            self._until_check = _CHECK_PERIOD
        self._until_check -= 1
        self._replay.sample(len(self._real.a_tm1), rng, self._real)
        self.batch.is_simulated[:], self.batch.weight[:] = 0, 1
        self.batch.is_held_out[:] = held_out(self._real.s_tm1)
        if self.plans:
            self._planned += self._simulated_ratio

    def _look(self, rng: np.random.Generator) -> float:
        """The share of the variance of held-out changes that the model does not explain."""
        self._replay.sample(_CHECKED, rng, self._checked)
        kept = held_out(self._checked.s_tm1)
        if kept.sum() < 2:
            return float("nan")
        s_tm1, s_t = self._checked.s_tm1[kept], self._checked.s_t[kept]
        imagined = self._imagine(self._evaluate(s_tm1), s_tm1)
        found = imagined.next_observation[np.arange(len(s_tm1)), self._checked.a_tm1[kept]]  # [H, D]
        change = s_t[:, 0] - s_tm1[:, 0]  # [H, D]
        variance = change.var(axis=0)  # [D]
        errors = ((found - s_t[:, 0]) ** 2).mean(axis=0)[variance > 0] / variance[variance > 0]
        return float(errors.mean()) if len(errors) else 0.0

    def _plan(self, rng: np.random.Generator) -> None:
        """Fills the minibatch with simulated transitions."""
        batch, count = self.batch, self._num_starts
        self._replay.sample(len(self._candidates.a_tm1), rng, self._candidates)
        state = self._candidates.s_tm1[self._chosen(rng)]  # [P, 1, D]
        outputs, each, alive = self._evaluate(state), np.arange(count), np.ones(count, bool)
        action = rng.integers(outputs["q_values"].shape[1], size=count, dtype=np.int32)
        batch.is_simulated[:], batch.is_held_out[:] = 1, 0
        for depth in range(self._depth):
            if depth:
                outputs = self._evaluate(state)
                action = outputs["q_values"].argmax(axis=1).astype(np.int32)
            imagined = self._imagine(outputs, state)
            rows = slice(depth * count, (depth + 1) * count)
            termination = imagined.termination[each, action]
            following = imagined.next_observation[each, action][:, None]  # [P, 1, D]
            batch.s_tm1[rows], batch.a_tm1[rows], batch.s_t[rows] = state, action, following
            batch.r_t[rows] = imagined.reward[each, action]
            batch.discount_t[rows] = self._discount * (1 - termination)  # its mean: nothing is drawn
            batch.weight[rows] = alive
            alive &= termination < 0.5
            state = following

    def _chosen(self, rng: np.random.Generator) -> np.ndarray:
        """Indices of the candidates to plan from, drawn without replacement in proportion to what they promise."""
        gumbel = rng.gumbel(size=len(self._candidates.a_tm1))
        if self._sweeping == "uniform":
            promise = np.ones(len(gumbel))
        elif self._sweeping == "novelty":
            promise = 1 / np.sqrt(1 + self._visits.of(self._candidates.s_tm1))
        else:
            promise = self._bellman_errors() + 1e-6
        return np.argpartition(-(np.log(promise) + gumbel), self._num_starts - 1)[: self._num_starts]

    def _bellman_errors(self) -> np.ndarray:
        """[C] of the candidates: the larger of their own error and that of where they lead, as the model says it."""
        own = self._errors(self._candidates.s_tm1, self._candidates.a_tm1)
        return np.maximum(own, self._candidates.discount_t * self._errors(self._candidates.s_t, None))

    def _errors(self, state: np.ndarray, action: np.ndarray | None) -> np.ndarray:
        """[C] sizes of the one-step errors of actions, or of the best ones, in states [C, 1, D]."""
        outputs, each = self._evaluate(state), np.arange(len(state))
        q_values = outputs["q_values"]
        action = q_values.argmax(axis=1) if action is None else action
        imagined = self._imagine(outputs, state)
        following = self._evaluate(imagined.next_observation[each, action][:, None])["q_values"].max(axis=1)
        discount = self._discount * (1 - imagined.termination[each, action])
        return np.abs(imagined.reward[each, action] + discount * following - q_values[each, action])

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        arrays, values = super().state()
        error = None if np.isnan(self.model_error) else self.model_error
        return arrays | {"visits": self._visits.counts.copy()}, values | {
            "model_error": error,
            "until_check": self._until_check,
            "planned": self._planned,
        }

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        super().restore(arrays, values)
        self._visits.counts[:] = arrays["visits"]
        error = values["model_error"]
        self.model_error = float("nan") if error is None else float(error)
        self._until_check, self._planned = values["until_check"], values["planned"]
