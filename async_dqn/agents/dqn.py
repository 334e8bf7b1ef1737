"""DQN (Mnih et al. 2015), with double Q-learning, dueling streams and n-step returns as options."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from async_dqn.agents.base import Loss, Params, make_module, make_network
from async_dqn.agents.epsilon_greedy import EpsilonGreedyAgent
from async_dqn.data.experience import Evaluate, Experience, ReplayExperience
from async_dqn.data.replay import Replay, required_bytes
from async_dqn.envs.vector_env import EnvironmentSpec
from async_dqn.nn import losses
from async_dqn.nn.networks import Head
from async_dqn.settings.config import ExplorationSettings, ReplaySettings, TargetSettings
from async_dqn.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class DQNConfig(ExplorationSettings, TargetSettings, ReplaySettings):
    """Settings of DQN."""

    double: bool = setting(True, "Double Q-learning.")
    dueling: bool = setting(False, "Dueling network streams.")


_ATARI_FAST = {
    "network": "nips",
    "total_steps": 3_000_000,
    "replay_capacity": 200_000,
    "overlap_steps": True,
    "local_steps": 4,
}
_CARTPOLE = {
    "network": "mlp",
    "total_steps": 30_000,
    "envs_per_worker": 4,
    "clip_rewards": False,
    "batch_size": 64,
    "train_period": 2,
    "target_period": 100,
    "replay_capacity": 30_000,
    "warmup_steps": 500,
    "epsilon_final": 0.02,
    "epsilon_steps": 5_000,
    "learning_rate": 1e-3,
    "log_period": 0.5,
    "local_steps": 1,
}


class DQN(EpsilonGreedyAgent):
    """Acts epsilon-greedily, learns from replay against a target network."""

    Config = DQNConfig
    summary = "Q-learning from replay with a target network (Mnih et al. 2015)"
    experience_flag = "replay_capacity"
    presets = {
        # Mnih et al. 2015 as DeepMind's code and dqn_zoo have it: the target is refreshed every 40,000 frames and
        # epsilon falls over 4 M frames. The paper's text says 10,000 updates (160,000 frames) and 1 M frames.
        "nature": {
            "network": "nature",
            "total_steps": 50_000_000,
            "envs_per_worker": 1,
            "double": False,
            "center_frames": False,
            "n_step": 1,
            "target_period": 2_500,
            "replay_capacity": 1_000_000,
            "warmup_steps": 50_000,
            "epsilon_final": 0.1,
            "epsilon_steps": 1_000_000,
            "optimizer": "centered_rmsprop",
            # 0.01 in the paper, whose gradients are sums over the 32 transitions (what `backward` gives in their
            # NeuralQLearner.lua is not divided). Here they are means.
            "optimizer_epsilon": 0.01 / 32**2,
        },
        # The smaller network, n-step double Q-learning, early exploitation: results on CPU cores while one waits.
        "atari-fast": _ATARI_FAST,
        "pong-fast": _ATARI_FAST
        | {
            "stop_at_return": 18.0,
            "final_learning_rate": 1e-4,
            "learning_rate_steps": 500_000,
        },
        "cartpole": _CARTPOLE,
    }

    config: DQNConfig

    def __init__(self, config: DQNConfig, spec: EnvironmentSpec, worker: int = 0):
        super().__init__(config, spec, worker, warmup_steps=config.warmup_steps)
        heads = {"q_values": Head(spec.num_actions)}
        self._network = make_network(config, spec, heads, dueling=config.dueling)
        self.modules = [make_module(config, "q", self._network, has_target=True)]

    @classmethod
    def default_preset(cls, spec: EnvironmentSpec) -> str:
        if not spec.is_atari:
            return "cartpole"
        return "pong-fast" if spec.id == "ALE/Pong-v5" else "atari-fast"

    @classmethod
    def experience_bytes(cls, config: DQNConfig, spec: EnvironmentSpec) -> int:
        share = config.replay_capacity // config.num_workers
        return required_bytes(config.envs_per_worker, share, spec.observation_shape, spec.observation_dtype)

    def apply(self, params: Params, observation: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._network.apply(params["q"], observation)

    def loss(self, params: Params, targets: Params, batch: Any, seed: tf.Tensor) -> Loss:
        q_tm1 = self.apply(params, batch.s_tm1)["q_values"]  # [B, A]
        q_t = self.apply(targets, batch.s_t)["q_values"]  # [B, A]
        selector = self.apply(params, batch.s_t)["q_values"] if self.config.double else q_t  # [B, A]
        errors = losses.double_q_learning(q_tm1, batch.a_tm1, batch.r_t, batch.discount_t, q_t, selector)  # [B]
        return Loss(tf.reduce_mean(losses.huber(errors)), {})

    def _make_replay(self, num_envs: int) -> Replay:
        config, spec = self.config, self.spec
        return Replay(
            num_envs=num_envs,
            capacity=config.replay_capacity // config.num_workers,
            observation_shape=spec.observation_shape,
            observation_dtype=spec.observation_dtype,
            stack=spec.stack,
            n_step=config.n_step,
            discount=config.discount,
        )

    def make_experience(self, num_envs: int, evaluate: Evaluate) -> Experience:
        config = self.config
        return ReplayExperience(
            self._make_replay(num_envs),
            batch_size=config.batch_size,
            train_period=config.train_period,
            warmup_steps=max(1, config.warmup_steps // config.num_workers),
        )
