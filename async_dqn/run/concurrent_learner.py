"""A learner that computes its minibatches in a thread of its own, beside acting (Daley & Amato 2021)."""

from __future__ import annotations

import collections
import time
import weakref
from concurrent.futures import Future
from typing import Any

import numpy as np

from async_dqn.base.background import Background
from async_dqn.base.errors import RunFailed
from async_dqn.data.buffered_replay import BufferedReplayExperience
from async_dqn.run.learner import Learner


class ConcurrentLearner(Learner):
    """Starts the minibatches that fall due, and waits for them only where a period ends.

    Its thread draws, computes gradients and applies them. All counting, and with it the refresh of the target network,
    is left to the thread that acts. So what is learned does not depend on the timing of the two.
    """

    _experience: BufferedReplayExperience

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        if not isinstance(self._experience, BufferedReplayExperience):
            raise TypeError(f"cannot learn from {type(self._experience).__name__} while it changes")
        self._background = Background("learner")
        weakref.finalize(self, self._background.close)
        self._under_way: collections.deque[Future] = collections.deque()
        self._busy_seconds, self._looked_at = 0.0, time.perf_counter()

    def learn(self) -> None:
        due = self._experience.take_due()
        if due and not self.has_learned:
            self.has_learned = True
            self._client.start()
        for _ in range(due):
            now = self._client.env_steps, self._client.rates()
            self._under_way.append(self._background.submit(self._compute_beside, *now))
            if (self._client.minibatches + len(self._under_way)) % self._agent.target_period == 0:
                self.settle()  # the next one is to be computed, and acted, on the new target: mostly a period ends here
        while self._under_way and self._under_way[0].done():
            self._take_first()
        if self._experience.ends_period:
            self.settle()

    def settle(self) -> None:
        part = self._client.clock.enter("waiting")
        while self._under_way:
            self._take_first()
        self._client.clock.enter(part)

    def _compute_beside(self, step: int, rates: np.ndarray) -> tuple[np.ndarray, str, float]:
        begin = time.perf_counter()
        statistics, fault = self._compute(step, rates, enter=_nothing)
        return statistics, fault, time.perf_counter() - begin

    def _draw(self, step: int) -> None:
        self._experience.sample(self._rng, step)

    def _take_first(self) -> None:
        statistics, fault, seconds = self._under_way.popleft().result()
        self._busy_seconds += seconds
        try:
            self._count_minibatch(statistics, fault)
        except RunFailed:  # the run ends here; what else is under way counts no more
            while self._under_way:
                self._under_way.popleft().exception()
            raise

    def take_statistics(self) -> dict[str, float]:
        """As of any learner, with `learner_busy`: the share of the time in which its thread computed."""
        now = time.perf_counter()
        busy = self._busy_seconds / max(now - self._looked_at, 1e-9)
        self._busy_seconds, self._looked_at = 0.0, now
        return super().take_statistics() | {"learner_busy": min(busy, 1.0)}


def _nothing(part: str) -> None:
    """The clock of a worker is that of the thread that acts."""
