"""What A3C and PPO have in common: a policy and the values of states, both learned from rollouts."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.agents.base import Agent, Loss, Params, make_entropy_cost, make_module, make_network
from async_dqn.data.experience import Outputs
from async_dqn.data.recurrent_state import HEAD
from async_dqn.data.rollout import Rollout
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn import losses
from async_dqn.nn.distributions import make_distribution
from async_dqn.nn.networks import Head
from async_dqn.nn.returns import generalized_advantages
from async_dqn.settings.config import DataParallelSettings, EntropySettings
from async_dqn.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class ActorCriticSettings(EntropySettings, DataParallelSettings):
    """Settings of what has a policy and values of states."""

    share_torso: bool = setting(True, "Policy and value share all layers but the last; false: they are two networks.")
    value_cost: float = setting(0.5, "Weight of the value loss.", minimum=0)


class ActorCritic(Agent):
    """Samples from its policy. What the loss of the policy is, a subclass says.

    Args:
      config: of a subclass, with `trace` for the advantages.
      lstm: whether the networks have a recurrent state.
    """

    continuous_actions = True

    def __init__(self, config: Any, spec: EnvironmentSpec, worker: int = 0, *, lstm: bool = False):
        super().__init__(config, spec, worker)
        self._policy = make_distribution(spec)
        self._entropy_cost = make_entropy_cost(config)
        self.network_outputs = {**self._policy.meanings, "value": "of the state"}
        policy, value = self._policy.heads, {"value": Head(1)}
        heads = {"policy_value": {**policy, **value}} if config.share_torso else {"policy": policy, "value": value}
        self._networks = {name: make_network(config, spec, own, lstm=lstm) for name, own in heads.items()}
        self.modules = [make_module(config, name, one, has_target=False) for name, one in self._networks.items()]
        self._recurrent_sizes = [one.recurrent_size for one in self._networks.values()]
        self.recurrent_size = sum(self._recurrent_sizes)
        if self.recurrent_size:
            self.network_outputs = {**self.network_outputs, HEAD: "of the LSTM cells after this step"}

    def apply(
        self,
        params: Params,
        observation: tf.Tensor,
        recurrent_state: tf.Tensor | None = None,
        is_first: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """As of `Agent`; what has a recurrent state also takes rollouts, with `is_first`, as `LSTM.apply` does."""
        if recurrent_state is None:
            inputs: list[tuple[tf.Tensor, ...]] = [()] * len(self._networks)
        else:
            inputs = [(part, is_first) for part in tf.split(recurrent_state, self._recurrent_sizes, axis=1)]
        outputs: dict[str, tf.Tensor] = {}
        kept = []
        for (name, network), own in zip(self._networks.items(), inputs, strict=True):
            outputs |= network.apply(params[name], observation, *own)
            kept += [outputs.pop(HEAD)] if own else []
        return {**outputs, HEAD: tf.concat(kept, axis=1)} if kept else outputs

    def act(self, outputs: Outputs, rng: np.random.Generator, step: int) -> np.ndarray:
        return self._policy.sample(outputs, rng)

    def greedy(self, outputs: Outputs) -> np.ndarray:
        return self._policy.mode(outputs)

    def _advantages(self, rollout: Rollout) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and returns, [T, N] each."""
        value, next_value = (outputs["value"][..., 0] for outputs in (rollout.outputs, rollout.next_outputs))
        ends, config = (rollout.terminated, rollout.truncated), self.config
        return generalized_advantages(rollout.reward, value, next_value, *ends, config.discount, config.trace)

    def _columns(self, rollout: Rollout, advantage: np.ndarray, return_: np.ndarray) -> list[np.ndarray]:
        """The first columns of a minibatch, up to `entropy_cost`, [T, N, ...] each."""
        entropy_cost = np.full_like(advantage, self._entropy_cost(rollout.global_step))
        return [rollout.stacked, rollout.action, advantage, return_, entropy_cost]

    def loss(self, params: Params, targets: Params, batch: Any, seed: tf.Tensor) -> Loss:
        outputs, batch = self._outputs(params, batch)
        value = outputs["value"][:, 0]  # [B]
        log_prob = self._policy.log_prob(outputs, batch.action)  # [B]
        policy_loss, own_statistics = self._policy_loss(log_prob, batch)
        value_loss = tf.reduce_mean(losses.squared_error(value, batch.return_))
        entropy = tf.reduce_mean(self._policy.entropy(outputs))
        statistics = {
            "entropy": entropy,
            **own_statistics,
            "explained_variance": losses.explained_variance(value, batch.return_),
            "policy_loss": policy_loss,
            "value_loss": value_loss,
        }
        bonus = tf.reduce_mean(batch.entropy_cost) * entropy
        return Loss(policy_loss + self.config.value_cost * value_loss - bonus, statistics)

    def _outputs(self, params: Params, batch: Any) -> tuple[dict[str, tf.Tensor], Any]:
        """What the networks say of a minibatch, and the minibatch as rows of steps."""
        return self.apply(params, batch.observation), batch

    @abc.abstractmethod
    def _policy_loss(self, log_prob: tf.Tensor, batch: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of a policy that gives the actions these log-probabilities [B]; and statistics of its own."""
