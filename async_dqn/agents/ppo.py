"""PPO (Schulman et al. 2017, arXiv 1707.06347): a clipped surrogate over rollouts, with GAE."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from async_dqn.agents.actor_critic import ActorCritic, ActorCriticSettings
from async_dqn.base.errors import UserError
from async_dqn.data.experience import Evaluate, Experience
from async_dqn.data.rollout import Rollout, RolloutExperience, flat
from async_dqn.nn import losses
from async_dqn.settings.config import RolloutSettings
from async_dqn.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class PPOConfig(RolloutSettings, ActorCriticSettings):
    """Settings of PPO."""

    trace: float = setting(0.95, "Lambda of generalised advantage estimation.", minimum=0, maximum=1)
    clip: float = setting(0.1, "How far the probability of an action may move, as a ratio less 1.", minimum=0.001)

    def check(self) -> None:
        super().check()
        if self.batch_size == 1:
            raise UserError("--batch_size=1: nothing is left of an advantage that is normalised alone; at least 2")


class Batch(NamedTuple):
    """A minibatch of steps."""

    observation: Any  # [B, S, ...]
    action: Any  # [B] int32, or [B, D] float32
    advantage: Any  # [B] float32
    return_: Any  # [B] float32
    entropy_cost: Any  # [B] float32, the same for all
    old_log_prob: Any  # [B] float32, of the action when it was taken


_FALLING = {"final_learning_rate": 0.0, "max_gradient_norm": 0.5}
_VECTORS = _FALLING | {"clip_rewards": False, "clip": 0.2}
_ATARI = _FALLING | {
    "network": "nips",
    "total_steps": 3_000_000,
    "envs_per_worker": 16,
    "batch_size": 64,
    "learning_rate": 5e-4,
    "local_steps": 16,  # one epoch of a rollout
}


class PPO(ActorCritic):
    """Samples from its policy, goes through each rollout a few times."""

    Config = PPOConfig
    summary = "clipped policy gradients over rollouts, with a value network (Schulman et al. 2017)"
    metrics = ("entropy", "clip_share", "kl", "explained_variance", "policy_loss", "value_loss")
    presets = {
        "atari": _ATARI,
        "pong": _ATARI
        | {
            "stop_at_return": 18.0,
            "entropy_cost": 0.02,
            "final_entropy_cost": 0.0,
            "entropy_steps": 1_000_000,
        },
        "pictures": _ATARI
        | {
            "network": "auto",
            "total_steps": 500_000,
            "envs_per_worker": 8,
            "batch_size": 256,
            "clip_rewards": False,
            "center_frames": False,
            "local_steps": 0,
        },
        "cartpole": _VECTORS
        | {
            "total_steps": 100_000,
            "envs_per_worker": 8,
            "rollout_length": 32,
            "epochs": 4,
            "batch_size": 64,
            "learning_rate": 1e-3,
            "log_period": 0.5,
        },
        "lunarlander": _VECTORS
        | {
            "total_steps": 500_000,
            "envs_per_worker": 16,
            "reward_scale": 0.1,
            "discount": 0.999,
            "rollout_length": 128,
            "trace": 0.98,
            "epochs": 4,
            "batch_size": 256,
            "learning_rate": 1e-3,
        },
        "continuous": _VECTORS
        | {
            "total_steps": 1_000_000,
            "envs_per_worker": 8,
            "reward_scale": 0.1,
            "normalize_observations": True,
            "share_torso": False,
            "rollout_length": 256,
            "epochs": 10,
            "batch_size": 64,
            "entropy_cost": 0.0,
            "learning_rate": 3e-4,
        },
        "pendulum": _VECTORS
        | {
            "total_steps": 300_000,
            "envs_per_worker": 8,
            "reward_scale": 0.1,
            "discount": 0.95,
            "rollout_length": 128,
            "epochs": 10,
            "batch_size": 128,
            "entropy_cost": 0.0,
            "learning_rate": 1e-3,
        },
    }

    config: PPOConfig

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
        old_log_prob = self._policy.log_prob_of(rollout.outputs, rollout.action)  # [T, N]
        return Batch(*map(flat, (*self._columns(rollout, *self._advantages(rollout)), old_log_prob)))

    def _policy_loss(self, log_prob: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        clip = self.config.clip
        # Normalised for each minibatch, as OpenAI's code has it; the paper does not.
        advantage = losses.normalize(batch.advantage)  # [B]
        loss = tf.reduce_mean(losses.clipped_surrogate(log_prob, batch.old_log_prob, advantage, clip))
        statistics = {
            "clip_share": losses.clip_share(log_prob, batch.old_log_prob, clip),
            "kl": losses.sampled_kl(log_prob, batch.old_log_prob),
        }
        return loss, statistics
