"""The two parts of an agent that plans apart: the worker that acts and learns values, and planners."""

from __future__ import annotations

import numpy as np

from async_dqn.agents.base import Agent
from async_dqn.base.errors import RunError
from async_dqn.data.block import Block
from async_dqn.data.planners import Broadcast, ReceivedPlans, simulate
from async_dqn.data.planning import DynaExperience
from async_dqn.data.queue import ExperienceQueue
from async_dqn.run.actor_learner import ActorLearner
from async_dqn.run.separate import SeparateLearner
from async_dqn.store.round_trip import RoundTripClient


class PlannedActorLearner(ActorLearner):
    """Acts, sends what happens to the planners, and learns from that and from what they simulate.

    It never waits for a planner: without any it learns from real transitions alone.
    """

    _client: RoundTripClient

    def __init__(self, agent: Agent, client: RoundTripClient, queue: ExperienceQueue, seeds: np.random.SeedSequence):
        super().__init__(agent, client, seeds)
        experience = self.experience
        assert isinstance(experience, DynaExperience)
        self._plans = ReceivedPlans(queue, lambda: client.counters.model_updates)
        experience.learn_from(self._plans)
        self._sink = self._broadcast = Broadcast(
            experience, queue, length=agent.block_length, version=lambda: client.version
        )

    def learn(self) -> None:
        """Sends the block that is whole, and computes the minibatches that are due."""
        if self._broadcast.has_block:
            # Round trips bring the values alone. The newest model meets steps that no planner has seen: by its error on
            # these it is trusted.
            self._client.pull()
            self._broadcast.send()
        super().learn()

    def begin_stream(self) -> None:
        """The parameters were put back: what planners made of them later is dropped."""
        self._broadcast.begin_stream()
        self._plans.clear()


class Planner(SeparateLearner):
    """Trains the model on real transitions that it receives, and sends simulated ones back.

    Each planner receives all transitions. Several train by turns, each on a block of its own and on the newest model:
    gradients of many at a time would be stale by one another.
    """

    _client: RoundTripClient

    def __init__(self, agent: Agent, client: RoundTripClient, queue: ExperienceQueue, seeds: np.random.SeedSequence):
        super().__init__(agent, client, queue, seeds)
        self._queue = queue
        self._rng = np.random.default_rng(seeds.spawn(1)[0])
        self._number = 0  # of the plans to come, in this stream
        self._encoded: np.ndarray | None = None  # plans that wait for room

    def _has_turn(self, number: int) -> bool:
        num_planners = self.agent.config.num_workers - 1
        return number % num_planners == self.agent.worker - 1

    def _on_block(self, block: Block) -> None:
        super()._on_block(block)
        if self.agent.config.num_workers > 2 and self.experience.inner.due():
            self._client.pull()  # others have stepped the model since this one has

    def plan(self) -> bool:
        """Sends simulated minibatches; False: there is no room, or the model is not good enough yet."""
        experience = self.experience.inner
        assert isinstance(experience, DynaExperience)
        if self._encoded is None:
            if not (self._learner.has_learned and experience.plans):
                return False
            self._client.pull()
            version = self._client.counters.model_updates
            self._encoded = simulate(experience, self.agent.block_length, self._rng, version)
        if not self._queue.put(self._number, self._encoded):
            return False
        self._number += 1
        self._encoded = None
        return True

    def is_done(self) -> bool:
        """Whether the run is over.

        Raises:
          RunError: it is not, but worker 0 was lost and has not come back.
        """
        if self._client.is_over:
            return True
        if self._watch.misses(self._client, lambda workers: workers[0].state != "lost"):
            raise RunError("worker 0, which acts, was lost, and nobody learns from what this worker plans")
        return False

    def begin_stream(self) -> None:
        """Drops the plans that were not sent: the parameters were put back to before they were made."""
        self._number, self._encoded = 0, None
