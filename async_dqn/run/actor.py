"""One agent that acts: in all environments of this worker, on this worker's copy of the networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from async_dqn.agents.base import Agent
from async_dqn.base.types import StepResult
from async_dqn.data.experience import Evaluate, Outputs, Sink, Step, StepTaker
from async_dqn.data.recurrent_state import RecurrentState
from async_dqn.envs.frame_stack import FrameStack
from async_dqn.store.client import ParameterClient


class Actor:
    """Acts in N environments, and hands on what happens there.

    Attributes:
      agent: the algorithm.
      experience: takes what happens.

    Args:
      client: this worker's copy of the parameters and its way to the global ones.
      explore: what its copy of the networks says of stacked observations [N, S, ...], with noise where the agent has
        some: {head: [N, ...]}; of an agent with a recurrent state, and of what is remembered [N, M].
      rng: of its actions.
    """

    def __init__(
        self, agent: Agent, client: ParameterClient, experience: Sink, explore: Evaluate, rng: np.random.Generator
    ):
        config, spec = agent.config, agent.spec
        self.agent, self.experience = agent, experience
        self._sink: StepTaker = experience  # where it hands on what happens
        self._explore = explore
        self._client, self._rng = client, rng
        self._frame_stack = FrameStack(
            config.envs_per_worker, spec.stack, spec.observation_shape, spec.observation_dtype
        )
        self._recurrent_state = RecurrentState(config.envs_per_worker, agent.recurrent_size)
        self._observation = np.empty(0)  # [N, ...]
        self._stacked = np.empty(0)  # [N, S, ...]
        self._outputs: Outputs = {}

    def reset(self, observation: np.ndarray) -> None:
        """Begins with the first observations [N, ...] of all environments, whatever episodes were going on."""
        self._sink.truncate()
        self._observation = observation
        self._stacked = self._frame_stack.reset(observation)
        self._recurrent_state.forget(np.arange(len(observation)))

    def act(self) -> np.ndarray:
        """Actions [N] for where the environments stand."""
        self._outputs = self._recurrent_state.evaluate(self._explore, self._stacked)
        return self.agent.act(self._outputs, self._rng, self._client.env_steps)

    def observe(self, actions: np.ndarray, result: StepResult, num_steps: int) -> np.ndarray:
        """Takes in what one step of all environments gave, `num_steps` of which count.

        Returns:
          [N] float32, the rewards as they are learned from.
        """
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
            self._recurrent_state.now,
        )
        self._sink.add(step, num_steps)
        if result.bad_values:
            self._sink.truncate(result.spoilt())
        first = result.first()
        self._observation = result.observation
        self._stacked = self._frame_stack.push(result.observation, first)
        self._recurrent_state.keep(self._outputs)
        self._recurrent_state.forget(first)
        return rewards

    def learn(self) -> None:
        """Learns what is due: nothing here."""

    def settle(self) -> None:
        """Waits for what is learned beside: nothing here."""

    def finish(self) -> None:
        """The run has ended: there is nothing to do."""

    def begin_stream(self) -> None:
        """The parameters were put back: what it gathered is kept, as it is experience all the same."""

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """All that this worker needs to go on, its replay aside: arrays, and plain values for JSON."""
        arrays, values = self.experience.state()
        arrays |= {"observation": self._observation, "stacked": self._stacked}
        if self.agent.recurrent_size:
            arrays["recurrent_state"] = self._recurrent_state.now
        return arrays, {"rng": self._rng.bit_generator.state, "experience": values}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], *, in_episode: bool) -> None:
        """Puts `state()` back.

        Args:
          in_episode: environments and replay stand exactly where they stood then, so that no `reset` follows.

        Raises:
          ValueError: it is the state of another agent.
        """
        self._rng.bit_generator.state = values["rng"]
        if in_episode:  # else its experience may be gone, and there is nothing to learn from
            self.experience.restore(arrays, values["experience"])
            self._observation = arrays["observation"]
            self._stacked = self._frame_stack.restore(arrays["stacked"])
            if self.agent.recurrent_size:
                self._recurrent_state.restore(arrays["recurrent_state"])
