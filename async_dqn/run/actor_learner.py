"""One agent at work: it acts, gathers experience and learns from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from async_dqn.agents.base import Agent
from async_dqn.base.types import StepResult
from async_dqn.data.experience import Outputs, Step
from async_dqn.envs.frame_stack import FrameStack
from async_dqn.run.build import make_evaluate
from async_dqn.run.concurrent_learner import ConcurrentLearner
from async_dqn.run.learner import Learner
from async_dqn.run.one_by_one import OneByOne
from async_dqn.store.client import ParameterClient

_SLOT = "slot/"


class ActorLearner:
    """Acts in N environments on this worker's copy of the networks, and learns.

    Attributes:
      agent: the algorithm.
      experience: what it learns from.
      evaluate: what its copy of the networks says of stacked observations [N, S, ...]: {head: [N, ...]}.

    Args:
      client: this worker's copy of the parameters and its way to the global ones.
      seeds: of its random numbers.
    """

    def __init__(self, agent: Agent, client: ParameterClient, seeds: np.random.SeedSequence):
        config, spec = agent.config, agent.spec
        self.agent = agent
        self._client = client
        self._rng = np.random.default_rng(seeds)
        self._learner_rng = np.random.default_rng(seeds.spawn(1)[0])
        self._frame_stack = FrameStack(
            config.envs_per_worker, spec.stack, spec.observation_shape, spec.observation_dtype
        )
        self._observation = np.empty(0)  # [N, ...]
        self._stacked = np.empty(0)  # [N, S, ...]
        self._outputs: Outputs = {}
        acting = {**client.online, **client.target} if agent.acts_on_target else client.online
        self.evaluate = make_evaluate(agent, acting)
        if not agent.predicts_together:
            self.evaluate = OneByOne(self.evaluate, config.envs_per_worker)
        self._explore = make_evaluate(agent, acting, noise=self._rng) if agent.has_noise else self.evaluate
        self.experience = agent.make_experience(config.envs_per_worker, self.evaluate)
        self._learner = (ConcurrentLearner if agent.learns_beside else Learner)(
            agent,
            client,
            self.experience,
            max_gradient_norm=config.max_gradient_norm,
            rng=self._learner_rng,
        )

    def reset(self, observation: np.ndarray) -> None:
        """Begins with the first observations [N, ...] of all environments, whatever episodes were going on."""
        self.experience.truncate()
        self._observation = observation
        self._stacked = self._frame_stack.reset(observation)

    def act(self) -> np.ndarray:
        """Actions [N] for where the environments stand."""
        self._outputs = self._explore(self._stacked)
        return self.agent.act(self._outputs, self._rng, self._client.env_steps)

    def observe(self, actions: np.ndarray, result: StepResult, num_steps: int) -> None:
        """Takes in what one step of all environments gave, `num_steps` of which count."""
        config = self.agent.config
        rewards = result.reward * np.float32(config.reward_scale)
        if config.clip_rewards:
            rewards = np.clip(rewards, -1, 1)
        step = Step(
            self._observation,
            self._stacked,
            actions,
            self._outputs,
            rewards,
            result.terminated,
            result.truncated,
            result.next_observation,
        )
        self.experience.add(step, num_steps)
        self._learner.largest_reward = float(np.maximum(self._learner.largest_reward, np.abs(rewards).max()))
        if result.bad_values:
            self.experience.truncate(result.spoilt())
        self._observation = result.observation
        self._stacked = self._frame_stack.push(result.observation, result.first())

    def learn(self) -> None:
        """Computes the minibatches that are due."""
        self._learner.learn()

    def settle(self) -> None:
        """Waits for what is learned beside; counts, parameters and experience agree then."""
        self._learner.settle()

    def metrics(self) -> dict[str, float]:
        """The agent's own columns of metrics.csv and the loss, of the time since the last call."""
        row = dict.fromkeys(self.agent.metrics, float("nan"))
        return row | self._learner.take_statistics() | self.agent.schedules(self._client.env_steps)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """All that this worker needs to go on, its replay aside: arrays, and plain values for JSON."""
        self.settle()
        arrays, values = self.experience.state()
        slots = {f"{_SLOT}{name}": value for name, value in self._client.slots().items()}
        return arrays | slots | {"observation": self._observation, "stacked": self._stacked}, {
            "rng": self._rng.bit_generator.state,
            "learner_rng": self._learner_rng.bit_generator.state,
            "has_learned": self._learner.has_learned,
            "experience": values,
        }

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], *, in_episode: bool) -> None:
        """Puts `state()` back.

        Args:
          in_episode: environments and replay stand exactly where they stood then, so that no `reset` follows.

        Raises:
          ValueError: it is the state of another agent.
        """
        slots = {name.removeprefix(_SLOT): array for name, array in arrays.items() if name.startswith(_SLOT)}
        self._client.restore_slots(slots)
        self._rng.bit_generator.state = values["rng"]
        self._learner_rng.bit_generator.state = values["learner_rng"]
        if in_episode:  # else its experience may be gone, and there is nothing to learn from
            self.experience.restore(arrays, values["experience"])
            self._learner.has_learned = values["has_learned"]
            self._observation = arrays["observation"]
            self._stacked = self._frame_stack.restore(arrays["stacked"])
