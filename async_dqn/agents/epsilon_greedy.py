"""What the agents have in common that value actions and explore by epsilon."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import tensorflow as tf

from async_dqn.agents.base import Agent, Params, make_module, make_network
from async_dqn.base import schedules
from async_dqn.data.experience import Outputs
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn import policies
from async_dqn.nn.networks import Head, Network
from async_dqn.settings.config import ExplorationSettings


class EpsilonGreedyAgent(Agent):
    """Takes the action of the highest value, or with probability epsilon a random one.

    It has one network of action values, the module "q", with a target if the settings have a `target_period`.

    Args:
      warmup_steps: agent steps of all workers before epsilon begins to fall.
    """

    metrics: ClassVar[tuple[str, ...]] = ("epsilon", "q_mean")
    network_outputs = {"q_values": "the value of each action"}

    config: ExplorationSettings

    def __init__(self, config: ExplorationSettings, spec: EnvironmentSpec, worker: int = 0, *, warmup_steps: int = 0):
        super().__init__(config, spec, worker)
        self._network = self._make_network()
        self.modules = [make_module(config, "q", self._network, has_target=self.target_period > 0)]
        count = config.envs_per_worker
        first, total = config.actor_index(worker) * count, config.num_actors * count
        if config.exploration == "ape_x":
            self._first_epsilon = self._last_epsilon = policies.ape_x_epsilons(first, count, total)  # [N]
        else:
            drawn = config.exploration == "drawn"
            last = policies.drawn_epsilons(config.seed, first, count) if drawn else config.epsilon_final
            self._first_epsilon, self._last_epsilon = np.full(count, config.epsilon_start), np.full(count, last)
        self._progress = schedules.linear(0.0, 1.0, begin=warmup_steps, steps=config.epsilon_steps)

    def _make_network(self) -> Network:
        return make_network(self.config, self.spec, {"q_values": Head(self.spec.num_actions)})

    def apply(self, params: Params, observation: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._network.apply(params["q"], observation)

    def epsilon(self, step: int) -> np.ndarray:
        """The exploration in each of this worker's environments [N] at an agent step."""
        return self._first_epsilon + self._progress(step) * (self._last_epsilon - self._first_epsilon)

    def act(self, outputs: Outputs, rng: np.random.Generator, step: int) -> np.ndarray:
        q_values = outputs["q_values"]
        return policies.epsilon_greedy(q_values, np.resize(self.epsilon(step), len(q_values)), rng)

    def greedy(self, outputs: Outputs) -> np.ndarray:
        return policies.greedy(outputs["q_values"])

    @staticmethod
    def _value_statistics(q_tm1: tf.Tensor) -> dict[str, tf.Tensor]:
        """Of a minibatch with values [B, A]: what its states are worth, by their best actions."""
        return {"q_mean": tf.reduce_mean(tf.reduce_max(q_tm1, axis=1))}

    def schedules(self, step: int) -> dict[str, float]:
        return {"epsilon": float(np.mean(self.epsilon(step)))}
