"""Asynchronous one-step and n-step Q-learning and Sarsa, without replay (Mnih et al. 2016)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.agents.base import Loss, Params
from async_dqn.agents.epsilon_greedy import EpsilonGreedyAgent
from async_dqn.data.experience import Evaluate, Experience
from async_dqn.data.rollout import Rollout, RolloutExperience, flat
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn import losses
from async_dqn.nn.returns import segments
from async_dqn.settings.config import ExplorationSettings, TargetSettings
from async_dqn.settings.fields import setting

_BEST = -1  # in place of an action: the best one by the target network


@dataclasses.dataclass(frozen=True)
class NStepQConfig(ExplorationSettings, TargetSettings):
    """Settings of Q-learning and Sarsa without replay."""

    t_max: int = setting(
        5, "Steps of every environment for each update, and of the longest return.", minimum=1, maximum=100_000
    )
    sarsa: bool = setting(False, "Bootstrap from the action that was taken next, not from the best one.")
    target_period: int = setting(
        250,
        "Minibatches of all workers, of --t_max x --envs_per_worker agent steps each, between two refreshes of the "
        "target network.",
        minimum=1,
    )


class Batch(NamedTuple):
    """All steps of a rollout. `m` is their number from a step to the end of its episode or of the rollout."""

    s_tm1: Any  # [B, S, ...]
    a_tm1: Any  # [B] int32
    r_t: Any  # [B] float32, the discounted sum of m rewards
    discount_t: Any  # [B] float32, gamma ** m; 0 where the last of the m steps terminated
    s_t: Any  # [B, S, ...], m steps later
    a_t: Any  # [B] int32, what was done there, or _BEST


_ATARI = {
    "network": "nips",
    "total_steps": 10_000_000,
    "envs_per_worker": 8,
    "target_period": 250,  # 10,000 agent steps, which are 40,000 frames
    "exploration": "drawn",
    "epsilon_steps": 1_000_000,
    "optimizer": "rmsprop",
    "rmsprop_decay": 0.99,
    "optimizer_epsilon": 0.1 / 5**2,  # 0.1 in the paper, of gradients summed over 5 steps; here they are means
    "learning_rate": 7e-4,
    "final_learning_rate": 0.0,
}


class NStepQ(EpsilonGreedyAgent):
    """Acts epsilon-greedily, learns once from every few steps against a target network."""

    Config = NStepQConfig
    summary = "n-step and one-step Q-learning and Sarsa without replay (Mnih et al. 2016)"
    experience_flag = "t_max"
    presets = {
        # Mnih et al. 2016, with 8 environments in a worker where they have one.
        "atari": _ATARI,
        # A goal for the training games needs an exploration that nearly ends in all environments.
        "pong": _ATARI
        | {"total_steps": 5_000_000, "stop_at_return": 18.0, "exploration": "shared", "epsilon_steps": 200_000},
        "cartpole": {
            "total_steps": 150_000,
            "envs_per_worker": 8,
            "clip_rewards": False,
            "layer_norm": True,  # so that good policies last
            "target_period": 12,  # with twice as many, or half the rate, some networks play badly at the end
            "epsilon_final": 0.02,
            "epsilon_steps": 20_000,
            "optimizer": "rmsprop",
            "rmsprop_decay": 0.99,
            "optimizer_epsilon": 0.1 / 5**2,
            "learning_rate": 4e-3,
            "final_learning_rate": 0.0,
            "log_period": 0.5,
        },
    }

    config: NStepQConfig

    @classmethod
    def experience_bytes(cls, config: NStepQConfig, spec: EnvironmentSpec) -> int:
        return 4 * super().experience_bytes(config, spec)  # from where and to where, in the rollout and in the batch

    def make_experience(self, num_envs: int, evaluate: Evaluate) -> Experience:
        overlap = int(self.config.sarsa)  # what is done after the last step has to be known
        return RolloutExperience(
            self.spec,
            num_envs=num_envs,
            length=self.config.t_max + overlap,
            prepare=self._prepare,
            evaluate=evaluate,
            looks_ahead=False,  # the target network values what comes next
            overlap=overlap,
        )

    def _prepare(self, rollout: Rollout) -> Batch:
        steps = slice(self.config.t_max)
        terminated, truncated = rollout.terminated[steps], rollout.truncated[steps]
        reward, discount, last = segments(rollout.reward[steps], terminated, truncated, self.config.discount)
        times = last.reshape(-1)  # [T * N]
        envs = np.tile(np.arange(last.shape[1]), len(last))  # [T * N]
        a_t = np.full(len(times), _BEST, np.int32)
        if self.config.sarsa:
            follows = ~(terminated | truncated)[times, envs]  # else nothing was done in that state
            a_t[follows] = rollout.action[times[follows] + 1, envs[follows]]
        return Batch(
            flat(rollout.stacked[steps]),
            flat(rollout.action[steps]),
            flat(reward),
            flat(discount),
            rollout.following(times, envs),
            a_t,
        )

    def loss(self, params: Params, targets: Params, batch: Batch, seed: tf.Tensor) -> Loss:
        q_tm1 = self.apply(params, batch.s_tm1)["q_values"]  # [B, A]
        q_t = self.apply(targets, batch.s_t)["q_values"]  # [B, A]
        best = tf.argmax(q_t, axis=1, output_type=tf.int32)  # [B]
        a_t = tf.where(batch.a_t == _BEST, best, batch.a_t)  # [B]
        errors = losses.sarsa(q_tm1, batch.a_tm1, batch.r_t, batch.discount_t, q_t, a_t)  # [B]
        return Loss(0.5 * tf.reduce_mean(errors**2), self._value_statistics(q_tm1))
