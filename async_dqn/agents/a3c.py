"""A3C (Mnih et al. 2016, arXiv 1602.01783): policy gradients over short rollouts, each of which gives one update."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.agents.base import Agent, Loss, Params, make_module, make_network
from async_dqn.data.experience import Evaluate, Experience, Outputs
from async_dqn.data.rollout import Rollout, RolloutExperience, required_bytes
from async_dqn.envs.vector_env import EnvironmentSpec
from async_dqn.nn import losses
from async_dqn.nn.distributions import make_distribution
from async_dqn.nn.networks import Head
from async_dqn.nn.returns import generalized_advantages, vtrace
from async_dqn.settings.config import Config, DataParallelSettings
from async_dqn.settings.fields import setting

_T_MAX = 5  # the paper's


@dataclasses.dataclass(frozen=True)
class A3CConfig(DataParallelSettings):
    """Settings of A3C."""

    t_max: int = setting(
        _T_MAX, "Steps of every environment in a rollout, all of which give one update.", minimum=1, maximum=100_000
    )
    trace: float = setting(
        1.0, "Lambda of generalised advantage estimation; 1: n-step returns, as in the paper.", minimum=0, maximum=1
    )
    vtrace: bool = setting(
        False, "Correct for the age of rollouts with V-trace (--parallelism=data); --trace is its lambda then."
    )
    share_torso: bool = setting(True, "Policy and value share all layers but the last; false: they are two networks.")
    entropy_cost: float = setting(0.01, "Weight of the entropy bonus.", minimum=0)
    value_cost: float = setting(0.5, "Weight of the value loss.", minimum=0)


class Batch(NamedTuple):
    """A rollout: B steps, time before environment."""

    observation: Any  # [B, S, ...]
    action: Any  # [B] int32, or [B, D] float32
    advantage: Any  # [B] float32
    return_: Any  # [B] float32


_RMSPROP = {"optimizer": "rmsprop", "rmsprop_decay": 0.99}  # the paper's decay
_FALLING = {"final_learning_rate": 0.0, "max_gradient_norm": 0.5}
ATARI = {
    **_RMSPROP,
    **_FALLING,
    "network": "nips",
    "total_steps": 3_000_000,
    "envs_per_worker": 16,
    "learning_rate": 5e-4,
    "optimizer_epsilon": 1e-8,
    "t_max": 8,
    "trace": 0.95,
}
PAPER = ATARI | {
    "center_frames": False,
    "total_steps": 80_000_000,
    "envs_per_worker": 1,
    "learning_rate": 7e-4,
    # 0.1 in the paper, whose gradients are sums over the steps of a rollout. Here they are means.
    "optimizer_epsilon": 0.1 / _T_MAX**2,
    "max_gradient_norm": 40.0,
    "t_max": _T_MAX,
    "trace": 1.0,
}
CARTPOLE = {
    **_RMSPROP,
    **_FALLING,
    "total_steps": 200_000,
    "envs_per_worker": 8,
    "clip_rewards": False,
    "learning_rate": 4e-3,
    "optimizer_epsilon": 1e-5,
    "log_period": 0.5,
    "t_max": 16,
    "trace": 0.95,
}


PENDULUM = CARTPOLE | {
    "total_steps": 1_000_000,
    "reward_scale": 0.1,
    "discount": 0.95,
    "learning_rate": 1e-3,
    "entropy_cost": 0.0,
}


class A3C(Agent):
    """Samples from its policy, and learns from each rollout once."""

    Config: ClassVar[type[Config]] = A3CConfig
    summary = "policy gradients over short rollouts, with a value network (Mnih et al. 2016)"
    metrics = ("entropy", "explained_variance", "policy_loss", "value_loss")
    experience_flag = "t_max"
    continuous_actions = True
    presets = {
        "paper": PAPER,
        "atari": ATARI,
        "pong": ATARI | {"stop_at_return": 18.0},
        "cartpole": CARTPOLE,
        "pendulum": PENDULUM,
    }

    config: A3CConfig

    def __init__(self, config: A3CConfig, spec: EnvironmentSpec, worker: int = 0):
        super().__init__(config, spec, worker)
        self._policy = make_distribution(spec)
        self.network_outputs = {**self._policy.meanings, "value": "of the state"}
        policy, value = self._policy.heads, {"value": Head(1)}
        heads = {"policy_value": {**policy, **value}} if config.share_torso else {"policy": policy, "value": value}
        self._networks = {name: make_network(config, spec, own) for name, own in heads.items()}
        self.modules = [make_module(config, name, one, has_target=False) for name, one in self._networks.items()]

    @classmethod
    def experience_bytes(cls, config: A3CConfig, spec: EnvironmentSpec) -> int:
        # The rollout, and the minibatch that it becomes.
        return 2 * required_bytes(config.t_max, config.envs_per_worker, spec)

    def apply(self, params: Params, observation: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs: dict[str, tf.Tensor] = {}
        for name, network in self._networks.items():
            outputs |= network.apply(params[name], observation)
        return outputs

    def act(self, outputs: Outputs, rng: np.random.Generator, step: int) -> np.ndarray:
        return self._policy.sample(outputs, rng)

    def greedy(self, outputs: Outputs) -> np.ndarray:
        return self._policy.mode(outputs)

    def make_experience(self, num_envs: int, evaluate: Evaluate) -> Experience:
        config, spec = self.config, self.spec
        return RolloutExperience(
            num_envs=num_envs,
            length=config.t_max,
            observation_shape=(spec.stack, *spec.observation_shape),
            observation_dtype=spec.observation_dtype,
            epochs=1,
            batch_size=config.t_max * num_envs,
            prepare=lambda rollout: self._prepare(rollout, evaluate),
            evaluate=evaluate,
            action_shape=spec.action_shape,
            action_dtype=spec.action_dtype,
        )

    def _prepare(self, rollout: Rollout, evaluate: Evaluate) -> Batch:
        value, next_value = rollout.outputs["value"][..., 0], rollout.next_outputs["value"][..., 0]  # [T, N]
        ends = rollout.terminated, rollout.truncated
        discount, trace = self.config.discount, self.config.trace
        if self.config.vtrace:
            present = evaluate(rollout.stacked.reshape(-1, *rollout.stacked.shape[2:]))
            outputs = {name: one.reshape(*value.shape, *one.shape[1:]) for name, one in present.items()}
            log_prob = self._policy.log_prob_of
            log_ratio = log_prob(outputs, rollout.action) - log_prob(rollout.outputs, rollout.action)  # [T, N]
            value = outputs["value"][..., 0]
            goes_on = ~(rollout.terminated | rollout.truncated)[:-1]
            next_value = next_value.copy()  # after a truncation and at the end they are of the present parameters
            next_value[:-1][goes_on] = value[1:][goes_on]
            advantage, return_ = vtrace(log_ratio, rollout.reward, value, next_value, *ends, discount, trace)
        else:
            advantage, return_ = generalized_advantages(rollout.reward, value, next_value, *ends, discount, trace)
        columns = Batch(rollout.stacked, rollout.action, advantage, return_)  # each [T, N, ...]
        return Batch(*(one.reshape(-1, *one.shape[2:]) for one in columns))

    def loss(self, params: Params, targets: Params, batch: Batch, seed: tf.Tensor) -> Loss:
        config = self.config
        outputs = self.apply(params, batch.observation)
        value = outputs["value"][:, 0]  # [B]
        log_prob = self._policy.log_prob(outputs, batch.action)  # [B]
        policy_loss = tf.reduce_mean(losses.policy_gradient(log_prob, batch.advantage))
        value_loss = tf.reduce_mean(losses.squared_error(value, batch.return_))
        entropy = tf.reduce_mean(self._policy.entropy(outputs))
        statistics = {
            "entropy": entropy,
            "explained_variance": losses.explained_variance(value, batch.return_),
            "policy_loss": policy_loss,
            "value_loss": value_loss,
        }
        return Loss(policy_loss + config.value_cost * value_loss - config.entropy_cost * entropy, statistics)
