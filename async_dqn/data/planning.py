"""Dyna: minibatches of real transitions, and of transitions that a learned model of the environment gives."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from async_dqn.data.experience import Evaluate, Outputs, ReplayExperience, Step
from async_dqn.data.replay import Replay
from async_dqn.nn.aligned import aligned_empty

SWEEPINGS = ("uniform", "prioritized", "novelty")
_MEMORY = 0.995  # what averages over transitions keep with each
_CANDIDATES = 4  # states that are drawn for each that is planned from
_CATCH_UP = 16  # real minibatches whose simulated ones are made up for, where these were not at hand
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
    r_1: np.ndarray  # [B] float32, of the first step alone, which the model learns from; meaningless where simulated
    discount_1: np.ndarray  # [B] float32
    s_1: np.ndarray  # [B, 1, D] float32
    is_simulated: np.ndarray  # [B] float32, 0 or 1, the same in all rows
    weight: np.ndarray  # [B] float32, 0 for simulated rows that come after the end of an episode
    model_error: np.ndarray  # [B] float32, of the model now, the same in all rows
    model_age: np.ndarray  # [B] float32, updates of the model since it gave a simulated row, the same in all rows
    deviation: np.ndarray  # [D + 1] float32, of the D changes of the state and of the reward, not one a row


class Simulated(Protocol):
    """Simulated minibatches that come from elsewhere."""

    def at_hand(self, wanted: int) -> int:
        """How many there are without waiting, at most `wanted`."""

    def fill(self, batch: DynaBatch) -> None:
        """Writes the next one, which is at hand, to its columns, `model_error` and `is_simulated` aside."""


class ModelError:
    """How wrong the model is about transitions that it has not trained on yet: the newest ones, when they come in.

    What ends an episode is left out: the model need not know where it leads.

    Args:
      size: numbers D in a state.
    """

    def __init__(self, size: int):
        self.sums = np.zeros((3, size))  # of squared errors, changes and squared changes, older ones counting less
        self.weight = np.zeros(())  # of all that is in the sums

    def add(self, found: np.ndarray, change: np.ndarray) -> None:
        """Takes in what the model said of some changes of a state, and what they were, [N, D] each."""
        for error, one in zip(found - change, change, strict=True):
            self.sums = _MEMORY * self.sums + np.stack([error**2, one, one**2])
            self.weight = _MEMORY * self.weight + 1

    @property
    def share(self) -> float:
        """The share of the variance of changes that the model fails to explain; 1 for a model that says the mean.

        Each of the D numbers counts in units of its own variance, those that hardly vary less. NaN before there is
        anything to say.
        """
        if not self.weight:
            return float("nan")
        squared, mean, square = self.sums / self.weight
        variance = square - mean**2  # [D]
        unit = np.maximum(variance, 0.05 * variance.mean())  # [D]
        if not variance.max() > 0:  # it always changes in the same way
            return float(squared.max() > 1e-8)
        return float((squared / unit).sum() / (variance / unit).sum())


class RunningDeviation:
    """Standard deviations of changes of the state and of rewards, over the latest real minibatches.

    Args:
      size: numbers D in a state.
    """

    def __init__(self, size: int):
        self.sums = np.zeros((3, size + 1))  # of ones, values and squared values, older ones counting less

    def add(self, change: np.ndarray, goes_on: np.ndarray, reward: np.ndarray) -> None:
        """Takes in a minibatch: changes [B, D], which count where the episode goes on, [B] bool, and rewards [B]."""
        values = np.column_stack([change, reward]).astype(np.float64)  # [B, D + 1]
        counts = np.ones_like(values)
        counts[~goes_on, :-1] = 0
        self.sums = _MEMORY * self.sums + np.stack([counts, counts * values, counts * values**2]).sum(axis=1)

    @property
    def deviation(self) -> np.ndarray:
        """[D + 1] standard deviations of the D changes and of the reward; 1 where nothing varies."""
        count, total, squares = self.sums
        mean, square = total / np.maximum(count, 1), squares / np.maximum(count, 1)
        variance = square - mean**2
        return np.sqrt(np.where(variance > 1e-12 * np.maximum(square, 1), variance, 1.0))  # above rounding errors


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
    for each real one than asked for, wherever they come from, and none follow a real one while the model's error is
    above `max_model_error`.

    Args:
      simulated_ratio: simulated minibatches for each real one.
      depth: steps of a simulated trajectory, which divides the batch size.
      sweeping: how states to plan from are chosen, one of `SWEEPINGS`: any of replay; those with a large Bellman error
        or that lead to one (Moore & Atkeson 1993); those that were seldom seen.
      max_model_error: share of the variance of the change of a state that the model may fail to explain.
      num_actions: A.
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
        num_actions: int,
        imagine: Callable[[Outputs, np.ndarray], Imagined],
        evaluate: Evaluate,
        batch_size: int,
        train_period: int,
        warmup_steps: int,
    ):
        super().__init__(replay, batch_size=batch_size, train_period=train_period, warmup_steps=warmup_steps)
        real = self.batch
        self._num_starts, self._num_actions = batch_size // depth, num_actions
        self._candidates = replay.make_batch(self._num_starts * (1 if sweeping == "uniform" else _CANDIDATES))
        self._discount, self._depth, self._sweeping = discount, depth, sweeping
        self._simulated_ratio, self._max_model_error = simulated_ratio, max_model_error
        self._imagine, self._evaluate = imagine, evaluate
        self._real, self._one_step = real, replay.make_batch(batch_size)
        _, _, *of_one_step = self._one_step
        for column in of_one_step:
            column[:] = 0  # a minibatch may be simulated before there was a real one
        size = real.s_tm1[0].size
        own = [aligned_empty((length,), np.float32) for length in [batch_size] * 4 + [size + 1]]
        self.batch: Any = DynaBatch(*real, *of_one_step, *own)
        self.batch.deviation[:] = 1
        self._visits, self._error, self._spread = VisitCounts(size), ModelError(size), RunningDeviation(size)
        self._planned = 0.0  # simulated minibatches that the real ones until now call for
        self._simulated: Simulated | None = None  # None: it plans itself

    def learn_from(self, simulated: Simulated) -> None:
        """Takes what others simulate from now on, as far as it is at hand, in place of planning itself."""
        self._simulated = simulated

    @property
    def plans(self) -> bool:
        """Whether the model is good enough."""
        return self._error.share <= self._max_model_error

    def add_to(self, envs: np.ndarray | None, step: Step, num_steps: int) -> None:
        super().add_to(envs, step, num_steps)
        self._visits.add(step.observation)
        state = step.observation[:, None]  # [N, 1, D]
        outputs = step.outputs or self._evaluate(state)  # what comes from another process has none
        found = self._imagine(outputs, state).next_observation
        goes_on = np.flatnonzero(~step.terminated)
        before = step.observation[goes_on]
        self._error.add(found[goes_on, step.action[goes_on]] - before, step.next_observation[goes_on] - before)

    def due(self) -> int:
        return super().due() + self._num_ready(int(self._planned))

    def _num_ready(self, wanted: int) -> int:
        """How many simulated minibatches can be had now, at most `wanted`."""
        if self._simulated is None:
            return wanted
        return self._simulated.at_hand(wanted) if self.plans else 0

    def draw(self, rng: np.random.Generator, step: int) -> None:
        if self._planned < 1 or not self._num_ready(1):
            super().draw(rng, step)
            return
        self._planned -= 1
        if self._simulated is None:
            self.simulate(rng)
        else:
            self._simulated.fill(self.batch)
            self.batch.is_simulated[:], self.batch.model_error[:] = 1, self._error.share

    def sample(self, rng: np.random.Generator, step: int) -> None:
        del step
        starts = self._replay.draw(len(self._real.a_tm1), rng)
        self._replay.gather(*starts, self._real)
        self._replay.gather(*starts, self._one_step, n_step=1)
        change = (self.batch.s_1 - self.batch.s_tm1)[:, 0]  # [B, D]
        self._spread.add(change, self.batch.discount_1 > 0, self.batch.r_1)
        self.batch.deviation[:] = self._spread.deviation
        self.batch.is_simulated[:], self.batch.weight[:], self.batch.model_age[:] = 0, 1, 0
        self.batch.model_error[:] = self._error.share
        if self.plans:
            ratio = self._simulated_ratio
            self._planned = min(self._planned + ratio, 1 + _CATCH_UP * ratio)

    def simulate(self, rng: np.random.Generator) -> None:
        """Fills the minibatch with simulated transitions."""
        batch, count = self.batch, self._num_starts
        state, action = self._starts(rng)
        outputs, each, alive = self._evaluate(state), np.arange(count), np.ones(count, bool)
        batch.is_simulated[:], batch.model_error[:], batch.model_age[:] = 1, self._error.share, 0
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

    def _starts(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """States [P, 1, D] of replay and random actions [P] in them to plan from.

        The pairs are drawn from candidates without replacement, in proportion to what they promise.
        """
        count = len(self._candidates.a_tm1)
        self._replay.sample(count, rng, self._candidates)
        state, action = self._candidates.s_tm1, rng.integers(self._num_actions, size=count, dtype=np.int32)
        if self._sweeping == "uniform":
            return state, action
        if self._sweeping == "novelty":
            promise = 1 / np.sqrt(1 + self._visits.of(state))
        else:
            promise = self._bellman_errors(state, action) + 1e-6
        order = np.log(promise) + rng.gumbel(size=count)
        chosen = np.argpartition(-order, self._num_starts - 1)[: self._num_starts]
        return state[chosen], action[chosen]

    def _bellman_errors(self, state: np.ndarray, action: np.ndarray) -> np.ndarray:
        """[C] of actions [C] in states [C, 1, D]: the larger of the error there and of that where they lead."""
        outputs = self._evaluate(state)
        own, discount, following, outputs = self._error_of(outputs, state, action)
        after, *_ = self._error_of(outputs, following, outputs["q_values"].argmax(axis=1))
        return np.maximum(own, discount * after)

    def _error_of(
        self, outputs: Outputs, state: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, Outputs]:
        """What the model says of actions [C]: size of the error [C], discount [C], next state and outputs there."""
        each, imagined = np.arange(len(state)), self._imagine(outputs, state)
        following = imagined.next_observation[each, action][:, None]  # [C, 1, D]
        discount = self._discount * (1 - imagined.termination[each, action])
        next_outputs = self._evaluate(following)
        target = imagined.reward[each, action] + discount * next_outputs["q_values"].max(axis=1)
        return np.abs(target - outputs["q_values"][each, action]), discount, following, next_outputs

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        arrays, values = super().state()
        own = {"visits": self._visits.counts.copy(), "error_sums": self._error.sums, "error_weight": self._error.weight}
        own["spread_sums"] = self._spread.sums
        return arrays | own, values | {"planned": self._planned}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        super().restore(arrays, values)
        self._visits.counts[:] = arrays["visits"]
        self._error.sums, self._error.weight = arrays["error_sums"], arrays["error_weight"]
        self._spread.sums = arrays["spread_sums"]
        self.batch.deviation[:] = self._spread.deviation
        self._planned = values["planned"]
