"""DQN (Mnih et al. 2015), and as options double Q-learning, dueling streams, noise, n-step returns and priorities."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.agents.base import Loss, Params, make_network
from async_dqn.agents.epsilon_greedy import EpsilonGreedyAgent
from async_dqn.base import schedules
from async_dqn.base.errors import UserError
from async_dqn.data.experience import Evaluate, Experience, ReplayExperience, Sampler
from async_dqn.data.prioritized import PrioritizedSampler, priority_bytes
from async_dqn.data.replay import Replay, required_bytes
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn import losses
from async_dqn.nn.networks import Head, Network
from async_dqn.nn.noise import with_noise
from async_dqn.settings.config import ExplorationSettings, ReplaySettings, TargetSettings
from async_dqn.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class DQNConfig(ExplorationSettings, TargetSettings, ReplaySettings):
    """Settings of DQN."""

    double: bool = setting(True, "Double Q-learning.")
    dueling: bool = setting(False, "Dueling network streams.")
    noisy: bool = setting(False, "Explore by learned noise on the network's linear layers; epsilon is 0 then.")
    prioritized: bool = setting(False, "Draw transitions from replay by their error, not uniformly.")
    priority_exponent: float = setting(
        0.6,
        "With --prioritized: how strongly draws follow the errors; 0: not at all.",
        minimum=0,
        maximum=1,
        only_with={"prioritized": (True,)},
    )
    importance_exponent: float = setting(
        0.4,
        "With --prioritized: the share of the bias of these draws that weights in the loss correct at the start; 1: "
        "all. It rises to 1 over --total_steps.",
        minimum=0,
        maximum=1,
        only_with={"prioritized": (True,)},
    )

    def check(self) -> None:
        super().check()
        if self.noisy and self.exploration != "shared":
            raise UserError(f"--exploration={self.exploration}: with --noisy there is no epsilon; give one of the two")


_ATARI_FAST = {
    "network": "nips",
    "total_steps": 3_000_000,
    "replay_capacity": 200_000,
    "overlap_steps": True,
    "local_steps": 4,
}
CARTPOLE = {
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
    "local_steps": 4,
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
        # A minibatch takes far longer than an agent step. So there are half as many, and none makes the third pass of
        # double Q-learning; longer returns make up for it.
        "pong-fast": _ATARI_FAST
        | {
            "stop_at_return": 18.0,
            "double": False,
            "train_period": 8,
            "layer_norm": True,
            "n_step": 10,
            "final_learning_rate": 1e-4,
            "learning_rate_steps": 500_000,
        },
        # So that good policies last: a replay that does not forget how games are lost, small steps at the end, and
        # layer norm, which keeps values from growing without bound.
        "cartpole": CARTPOLE | {"replay_capacity": 100_000, "final_learning_rate": 1e-5, "layer_norm": True},
        "lunarlander": CARTPOLE
        | {
            "total_steps": 300_000,
            "envs_per_worker": 8,
            "reward_scale": 0.1,
            "target_period": 256,
            "replay_capacity": 100_000,
            "warmup_steps": 2_000,
            "epsilon_steps": 50_000,
            "learning_rate": 5e-4,
            "final_learning_rate": 5e-5,
        },
        # Noise is learned by heart sooner with the contrast that `center_frames` gives, and with n-step returns.
        "pictures": CARTPOLE
        | {
            "total_steps": 200_000,
            "center_frames": False,
            "n_step": 1,
            "target_period": 200,
            "epsilon_steps": 20_000,
            "learning_rate": 5e-4,
        },
    }

    config: DQNConfig

    def __init__(self, config: DQNConfig, spec: EnvironmentSpec, worker: int = 0):
        super().__init__(config, spec, worker, warmup_steps=config.warmup_steps)
        self.has_noise = config.noisy

    def _make_network(self) -> Network:
        network = make_network(self.config, self.spec, self._heads(), dueling=self.config.dueling)
        return with_noise(network) if self.config.noisy else network

    @classmethod
    def experience_bytes(cls, config: DQNConfig, spec: EnvironmentSpec) -> int:
        share = config.replay_capacity // config.num_replays
        num_envs = config.envs_per_worker * config.num_actors // config.num_replays
        priorities = priority_bytes(num_envs, share) if config.prioritized else 0
        return priorities + required_bytes(num_envs, share, spec.observation_shape, spec.observation_dtype)

    def _heads(self) -> dict[str, Head]:
        return {"q_values": Head(self.spec.num_actions)}

    def apply(self, params: Params, observation: tf.Tensor, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        return self._network.apply(params["q"], observation, seed)

    def epsilon(self, step: int) -> np.ndarray:
        return np.zeros(self.config.envs_per_worker) if self.config.noisy else super().epsilon(step)

    def loss(self, params: Params, targets: Params, batch: Any, seed: tf.Tensor) -> Loss:
        outputs_tm1, outputs_t, selector = self._outputs(params, targets, batch, seed)
        q_tm1, q_t = outputs_tm1["q_values"], outputs_t["q_values"]  # [B, A]
        errors = losses.double_q_learning(q_tm1, batch.a_tm1, batch.r_t, batch.discount_t, q_t, selector)  # [B]
        return self._mean(losses.huber(errors), errors, batch, self._value_statistics(q_tm1))

    def _outputs(self, params: Params, targets: Params, batch: Any, seed: tf.Tensor) -> tuple[dict, dict, tf.Tensor]:
        """Of the online network at s_tm1, of the target network at s_t, and the q_values [B, A] to choose a_t by.

        Each pass has noise of its own, if there is any (Fortunato et al. 2018, equation 15).
        """
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3)) if self.has_noise else [None] * 3
        outputs_t = self.apply(targets, batch.s_t, seeds[1])
        chooser = self.apply(params, batch.s_t, seeds[2]) if self.config.double else outputs_t
        return self.apply(params, batch.s_tm1, seeds[0]), outputs_t, chooser["q_values"]

    def _mean(self, item_losses: tf.Tensor, errors: tf.Tensor, batch: Any, statistics: dict[str, tf.Tensor]) -> Loss:
        """The mean over a minibatch, where replay is prioritized by importance and with what priorities follow from."""
        if not self.config.prioritized:
            return Loss(tf.reduce_mean(item_losses), statistics)
        return Loss(tf.reduce_mean(batch.weight * item_losses), statistics, per_item=errors)

    def _make_replay(self, num_envs: int) -> Replay:
        config, spec = self.config, self.spec
        return Replay(
            num_envs=num_envs,
            capacity=config.replay_capacity // config.num_replays,
            observation_shape=spec.observation_shape,
            observation_dtype=spec.observation_dtype,
            stack=spec.stack,
            n_step=config.n_step,
            discount=config.discount,
        )

    def _make_sampler(self, replay: Replay) -> Sampler | None:
        config = self.config
        if not config.prioritized:
            return None  # uniform
        beta = schedules.linear(config.importance_exponent, 1.0, begin=0, steps=config.total_steps)
        return PrioritizedSampler(replay, priority_exponent=config.priority_exponent, importance_exponent=beta)

    def make_experience(self, num_envs: int, evaluate: Evaluate) -> Experience:
        config, replay = self.config, self._make_replay(num_envs)
        return ReplayExperience(
            replay,
            batch_size=config.batch_size,
            train_period=config.train_period,
            warmup_steps=max(1, config.warmup_steps // config.num_replays),
            sampler=self._make_sampler(replay),
        )
