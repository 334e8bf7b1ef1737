"""PQN (Gallici et al. 2024, arXiv 2407.04811): Q(lambda) over rollouts, with neither replay nor a target network."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from async_dqn.agents.base import Loss, Params
from async_dqn.agents.epsilon_greedy import EpsilonGreedyAgent
from async_dqn.data.experience import Evaluate, Experience
from async_dqn.data.rollout import Rollout, RolloutExperience, flat
from async_dqn.nn import losses
from async_dqn.nn.returns import lambda_returns
from async_dqn.settings.config import ExplorationSettings, RolloutSettings
from async_dqn.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class PQNConfig(ExplorationSettings, RolloutSettings):
    """Settings of PQN."""

    trace: float = setting(0.65, "Lambda of the returns.", minimum=0, maximum=1)


class Batch(NamedTuple):
    """A minibatch of steps."""

    observation: Any  # [B, S, ...]
    action: Any  # [B] int32
    return_: Any  # [B] float32


_COMMON = {
    "layer_norm": True,
    "optimizer": "radam",
    "max_gradient_norm": 10.0,
    "final_learning_rate": 0.0,
}
_ATARI = _COMMON | {
    "network": "nips",
    "total_steps": 3_000_000,
    "envs_per_worker": 16,
    "rollout_length": 32,
    "epochs": 3,
    "batch_size": 64,
    "learning_rate": 5e-4,
    "epsilon_final": 0.001,
    "epsilon_steps": 150_000,
}


class PQN(EpsilonGreedyAgent):
    """Acts epsilon-greedily, goes through each rollout a few times; layer norm keeps it stable."""

    Config = PQNConfig
    summary = "Q-learning from rollouts, with layer norm in place of replay and target network (Gallici et al. 2024)"
    presets = {
        "atari": _ATARI,
        "pong": _ATARI | {"total_steps": 2_000_000, "stop_at_return": 18.0},
        "cartpole": _COMMON
        | {
            "total_steps": 150_000,
            "envs_per_worker": 8,
            "clip_rewards": False,
            "rollout_length": 32,
            "epochs": 4,
            "batch_size": 64,
            "trace": 0.95,
            "learning_rate": 1e-3,
            "epsilon_final": 0.02,
            "epsilon_steps": 20_000,
            "log_period": 0.5,
        },
    }

    config: PQNConfig

    def make_experience(self, num_envs: int, evaluate: Evaluate) -> Experience:
        config = self.config
        return RolloutExperience(
            self.spec,
            num_envs=num_envs,
            length=config.rollout_length,
            epochs=config.epochs,
            batch_size=config.batch_size,
            prepare=self._prepare,
            evaluate=evaluate,
        )

    def _prepare(self, rollout: Rollout) -> Batch:
        return_ = lambda_returns(
            rollout.reward,
            rollout.next_outputs["q_values"].max(axis=2),
            rollout.terminated,
            rollout.truncated,
            self.config.discount,
            self.config.trace,
        )
        return Batch(*map(flat, (rollout.stacked, rollout.action, return_)))

    def loss(self, params: Params, targets: Params, batch: Batch, seed: tf.Tensor) -> Loss:
        q_values = self.apply(params, batch.observation)["q_values"]  # [B, A]
        chosen = tf.gather(q_values, batch.action, batch_dims=1)  # [B]
        return Loss(tf.reduce_mean(losses.squared_error(chosen, batch.return_)), self._value_statistics(q_values))
