"""A3C (Mnih et al. 2016, arXiv 1602.01783): policy gradients over short rollouts, each of which gives one update."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.agents.actor_critic import ActorCritic, ActorCriticSettings
from async_dqn.agents.base import Params
from async_dqn.base.errors import UserError
from async_dqn.data.experience import Evaluate, Experience, Outputs
from async_dqn.data.recurrent_state import HEAD, forgotten
from async_dqn.data.rollout import Rollout, RolloutExperience, flat
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn import losses
from async_dqn.nn.lstm import CELLS
from async_dqn.nn.returns import vtrace
from async_dqn.settings.config import Config
from async_dqn.settings.fields import setting

_T_MAX = 5  # the paper's
_MAX_UNROLLED = 256  # steps through time, each of which has TensorFlow operations of its own


@dataclasses.dataclass(frozen=True)
class A3CConfig(ActorCriticSettings):
    """Settings of A3C."""

    # A worker plays a rollout by its own copy and computes the gradient on the same one. Where it plays by parameters
    # that others change meanwhile, the gradient is of another policy than the one that played.
    default_modes: ClassVar[Mapping[str, str]] = {**ActorCriticSettings.default_modes, "shared_memory": "locked"}

    t_max: int = setting(
        _T_MAX, "Steps of every environment in a rollout, all of which give one update.", minimum=1, maximum=100_000
    )
    trace: float = setting(
        1.0, "Lambda of generalised advantage estimation; 1: n-step returns, as in the paper.", minimum=0, maximum=1
    )
    vtrace: bool = setting(
        True,
        "Correct for the age of rollouts with V-trace (--parallelism=data); --trace is its lambda then.",
        only_with={"parallelism": ("data",)},
    )
    lstm: bool = setting(False, "Remember earlier observations: a layer of 256 LSTM cells before policy and value.")
    normalize_advantages: bool = setting(
        False, "Scale the advantages of each minibatch to mean 0 and standard deviation 1, as PPO does."
    )

    def check(self) -> None:
        super().check()
        if self.lstm and self.t_max > _MAX_UNROLLED:
            raise UserError(f"--t_max={self.t_max}: with --lstm at most {_MAX_UNROLLED}")
        if self.normalize_advantages and self.t_max * self.envs_per_worker == 1:
            raise UserError(
                "--normalize_advantages=True: of the advantage of a single step nothing is left; leave it out"
            )


class Batch(NamedTuple):
    """A rollout: B steps, time before environment."""

    observation: Any  # [B, S, ...]
    action: Any  # [B] int32, or [B, D] float32
    advantage: Any  # [B] float32
    return_: Any  # [B] float32
    entropy_cost: Any  # [B] float32, the same for all


class Sequences(NamedTuple):
    """A rollout of an agent that remembers: T steps of N environments, environment before time."""

    observation: Any  # [N, T, S, ...]
    action: Any  # [N, T] int32, or [N, T, D] float32
    advantage: Any  # [N, T] float32
    return_: Any  # [N, T] float32
    entropy_cost: Any  # [N, T] float32, the same for all
    is_first: Any  # [N, T] bool, whether a step begins an episode
    counts: Any  # [N, T] bool; false: it was taken back
    recurrent_state: Any  # [N, M] float32, what was remembered before the first step


RMSPROP = {"optimizer": "rmsprop", "rmsprop_decay": 0.99}  # the paper's decay
_FALLING = {"final_learning_rate": 0.0, "max_gradient_norm": 0.5}
ATARI = {
    **_FALLING,
    "network": "nips",
    "layer_norm": True,
    "total_steps": 5_000_000,
    "envs_per_worker": 8,
    "learning_rate": 5e-4,
    "optimizer_epsilon": 1e-5,
    "entropy_cost": 0.003,
    "final_entropy_cost": 0.0003,
    "entropy_steps": 2_000_000,
    "t_max": 10,
    "trace": 0.95,
}
PAPER = {
    **RMSPROP,
    "final_learning_rate": 0.0,
    "network": "nips",
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
    **RMSPROP,
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

LUNARLANDER = CARTPOLE | {
    "total_steps": 1_000_000,
    "envs_per_worker": 16,
    "reward_scale": 0.1,
    "discount": 0.995,
    "layer_norm": True,
    "learning_rate": 1e-3,
    "final_entropy_cost": 0.0,
    "entropy_steps": 500_000,
    "trace": 0.98,
}
PENDULUM = CARTPOLE | {
    "total_steps": 1_000_000,
    "reward_scale": 0.1,
    "discount": 0.95,
    "learning_rate": 1e-3,
    "entropy_cost": 0.0,
}


class A3C(ActorCritic):
    """Samples from its policy, and learns from each rollout once."""

    Config: ClassVar[type[Config]] = A3CConfig
    summary = "policy gradients over short rollouts, with a value network (Mnih et al. 2016)"
    metrics = ("entropy", "explained_variance", "policy_loss", "value_loss")
    experience_flag = "t_max"
    presets = {
        "paper": PAPER,
        "atari": ATARI,
        "pong": ATARI | {"stop_at_return": 18.0},
        "cartpole": CARTPOLE,
        "lunarlander": LUNARLANDER,
        "pendulum": PENDULUM,
    }

    config: A3CConfig

    def __init__(self, config: A3CConfig, spec: EnvironmentSpec, worker: int = 0):
        super().__init__(config, spec, worker, lstm=config.lstm)

    @classmethod
    def experience_bytes(cls, config: A3CConfig, spec: EnvironmentSpec) -> int:
        # The rollout, and the minibatch that it becomes; of the recurrent state the rollout alone.
        num_steps = config.t_max * config.envs_per_worker
        remembered = num_steps * 2 * CELLS * np.dtype(np.float32).itemsize * (1 if config.share_torso else 2)
        return 2 * super().experience_bytes(config, spec) + config.lstm * remembered

    def make_experience(self, num_envs: int, evaluate: Evaluate) -> Experience:
        return RolloutExperience(
            self.spec,
            num_envs=num_envs,
            length=self.config.t_max,
            prepare=lambda rollout: self._prepare(rollout, evaluate),
            evaluate=evaluate,
            recurrent_size=self.recurrent_size,
        )

    def _prepare(self, rollout: Rollout, evaluate: Evaluate) -> Batch | Sequences:
        may_lag = self.config.separates  # else rollouts are of the policy that learns from them
        corrects = self.config.vtrace and may_lag
        advantages = self._corrected(rollout, evaluate) if corrects else self._advantages(rollout)
        columns = self._columns(rollout, *advantages)
        if self.recurrent_size:
            of_steps = (one.swapaxes(0, 1) for one in (*columns, _is_first(rollout), ~rollout.void))
            return Sequences(*[*of_steps, rollout.recurrent_state])
        return Batch(*map(flat, columns))

    def _corrected(self, rollout: Rollout, evaluate: Evaluate) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and returns, [T, N] each, for the present policy."""
        outputs = self._present(rollout, evaluate)
        log_prob = self._policy.log_prob_of
        log_ratio = log_prob(outputs, rollout.action) - log_prob(rollout.outputs, rollout.action)  # [T, N]
        value = outputs["value"][..., 0]
        goes_on = ~(rollout.terminated | rollout.truncated)[:-1]
        next_value = rollout.next_outputs["value"][..., 0].copy()
        next_value[:-1][goes_on] = value[1:][goes_on]  # all others are of the present parameters already
        if self.recurrent_size:  # but not of what these would have remembered
            times, envs, stacked = rollout.ends()
            next_value[times, envs] = evaluate(stacked, outputs[HEAD][times, envs])["value"][..., 0]
        ends, config = (rollout.terminated, rollout.truncated), self.config
        return vtrace(log_ratio, rollout.reward, value, next_value, *ends, config.discount, config.trace)

    def _present(self, rollout: Rollout, evaluate: Evaluate) -> Outputs:
        """What the present parameters say of a rollout, from what was remembered before it: {head: [T, N, ...]}."""
        length, num_envs = rollout.reward.shape
        if not self.recurrent_size:
            found = evaluate(flat(rollout.stacked))
            return {name: one.reshape(length, num_envs, *one.shape[1:]) for name, one in found.items()}
        recurrent_state, steps = rollout.recurrent_state, []
        for stacked, first in zip(rollout.stacked, _is_first(rollout), strict=True):
            steps.append(evaluate(stacked, forgotten(recurrent_state, first)))
            recurrent_state = steps[-1][HEAD]
        return {name: np.stack([one[name] for one in steps]) for name in steps[0]}

    def _outputs(self, params: Params, batch: Batch | Sequences) -> tuple[dict[str, tf.Tensor], Batch]:
        """Of what remembers only the steps that count. Gradients go through time."""
        if isinstance(batch, Batch):
            return super()._outputs(params, batch)
        observation = _flat(batch.observation)
        outputs = self.apply(params, observation, batch.recurrent_state, batch.is_first)
        counts = tf.reshape(batch.counts, [-1])  # [N * T]
        outputs = {name: tf.boolean_mask(one, counts) for name, one in outputs.items() if name != HEAD}
        columns = (batch.action, batch.advantage, batch.return_, batch.entropy_cost)
        return outputs, Batch(observation, *(tf.boolean_mask(_flat(one), counts) for one in columns))

    def _policy_loss(self, log_prob: tf.Tensor, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        advantage = losses.normalize(batch.advantage) if self.config.normalize_advantages else batch.advantage  # [B]
        return tf.reduce_mean(losses.policy_gradient(log_prob, advantage)), {}


def _is_first(rollout: Rollout) -> np.ndarray:
    """Whether a step begins an episode, [T, N] bool; of the first one, the recurrent state before it tells."""
    ended = rollout.terminated | rollout.truncated
    return np.concatenate([np.zeros_like(ended[:1]), ended[:-1]])


def _flat(column: tf.Tensor) -> tf.Tensor:
    """[N, T, ...] -> [N * T, ...]"""
    return tf.reshape(column, [-1, *column.shape[2:]])
