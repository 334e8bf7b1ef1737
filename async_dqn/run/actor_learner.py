"""One agent at work: it acts, gathers experience and learns from it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from async_dqn.agents.base import Agent
from async_dqn.base.types import StepResult
from async_dqn.data.experience import Evaluate, Experience, Outputs
from async_dqn.run.actor import Actor
from async_dqn.run.build import make_evaluate
from async_dqn.run.concurrent_learner import ConcurrentLearner
from async_dqn.run.learner import Learner
from async_dqn.store.client import ParameterClient


class ActorLearner(Actor):
    """Acts in N environments on this worker's copy of the networks, and learns.

    Attributes:
      experience: what it learns from.
      evaluate: what its copy of the networks says of stacked observations [N, S, ...]: {head: [N, ...]}; of an agent
        with a recurrent state, and of what is remembered [N, M].

    Args:
      client: this worker's copy of the parameters and its way to the global ones.
      seeds: of its random numbers.
    """

    experience: Experience

    def __init__(self, agent: Agent, client: ParameterClient, seeds: np.random.SeedSequence):
        config = agent.config
        acting = {**client.online, **client.target} if agent.acts_on_target else client.online
        evaluate = make_evaluate(agent, acting)
        if not agent.predicts_together:
            evaluate = _one_by_one(evaluate, config.envs_per_worker)
        rng = np.random.default_rng(seeds)
        explore = make_evaluate(agent, acting, noise=rng) if agent.has_noise else evaluate
        experience = agent.make_experience(config.envs_per_worker, evaluate)
        super().__init__(agent, client, experience, explore, rng)
        self.evaluate = evaluate
        self._learner = (ConcurrentLearner if agent.learns_beside else Learner)(
            agent, client, experience, rng=np.random.default_rng(seeds.spawn(1)[0])
        )

    def observe(self, actions: np.ndarray, result: StepResult, num_steps: int) -> np.ndarray:
        """As `Actor.observe`; the learner hears of the rewards."""
        rewards = super().observe(actions, result, num_steps)
        self._learner.hear(rewards)
        return rewards

    def learn(self) -> None:
        """Computes the minibatches that are due."""
        self._learner.learn()

    def settle(self) -> None:
        """Waits for what is learned beside; counts, parameters and experience agree then."""
        self._learner.settle()

    def metrics(self) -> dict[str, float]:
        """The agent's own columns of metrics.csv and the loss, of the time since the last call."""
        return self._learner.metrics()

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """As `Actor.state`, with the learner's."""
        self.settle()
        arrays, values = super().state()
        learner_arrays, learner_values = self._learner.state()
        return arrays | learner_arrays, values | learner_values

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], *, in_episode: bool) -> None:
        """As `Actor.restore`, with the learner's."""
        self._learner.restore(arrays, values, has_experience=in_episode)
        super().restore(arrays, values, in_episode=in_episode)


def _one_by_one(evaluate: Evaluate, num_rows: int) -> Evaluate:
    """The same, asked for each row [1, S, ...] in a thread of its own: what batched predictions are compared with."""
    threads = ThreadPoolExecutor(num_rows, "prediction")

    def of_each(stacked: np.ndarray) -> Outputs:
        rows = list(threads.map(evaluate, (stacked[n : n + 1] for n in range(len(stacked)))))
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}

    return of_each
