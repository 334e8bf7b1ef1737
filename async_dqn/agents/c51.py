"""C51 (Bellemare et al. 2017): DQN that learns the distribution of returns, not only its mean."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from async_dqn.agents.base import Loss, Params
from async_dqn.agents.dqn import CARTPOLE, DQN, DQNConfig
from async_dqn.base.errors import UserError
from async_dqn.nn import losses
from async_dqn.nn.networks import Head
from async_dqn.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class C51Config(DQNConfig):
    """Settings of C51."""

    num_atoms: int = setting(
        51, "How many returns a distribution is over, at equal distances.", minimum=2, maximum=1_000
    )
    v_min: float = setting(-10.0, "The smallest return of a distribution.", minimum=-1e9, maximum=1e9)
    v_max: float = setting(10.0, "The largest return of a distribution.", minimum=-1e9, maximum=1e9)

    def check(self) -> None:
        super().check()
        if self.v_min >= self.v_max:
            raise UserError(f"--v_min={self.v_min}: must be less than --v_max={self.v_max}")


class C51(DQN):
    """DQN whose network gives the probabilities of some returns for each action; the action's value is their mean."""

    Config = C51Config
    summary = "DQN that learns the distribution of returns (Bellemare et al. 2017)"
    metrics: ClassVar[tuple[str, ...]] = (*DQN.metrics, "outside_support")
    network_outputs = {**DQN.network_outputs, "atom_logits": "of the probability of each return, for each action"}
    presets = {
        "paper": {
            **DQN.presets["nature"],
            "optimizer": "adam",
            "optimizer_epsilon": 0.01 / 32,
            "epsilon_final": 0.01,
            "epsilon_steps": 250_000,
        },
        "atari-fast": DQN.presets["atari-fast"],
        "pong-fast": DQN.presets["pong-fast"],
        # Rewards of 1 a step for up to 500 steps: with the discount of 0.99 their sum stays below 100.
        "cartpole": {**CARTPOLE, "v_min": 0.0, "v_max": 100.0},
        "vectors": {**CARTPOLE, "v_min": -100.0, "v_max": 100.0},  # whatever the sign of rewards is
        "pictures": DQN.presets["pictures"],
        "lunarlander": {**DQN.presets["lunarlander"], "v_min": -40.0, "v_max": 40.0},
    }

    config: C51Config

    @property
    def _support(self) -> np.ndarray:
        """The returns that the atoms stand for, [K] float32."""
        return np.linspace(self.config.v_min, self.config.v_max, self.config.num_atoms, dtype=np.float32)

    def _heads(self) -> dict[str, Head]:
        return {"atom_logits": Head(self.spec.num_actions, atoms=self.config.num_atoms)}

    def apply(self, params: Params, observation: tf.Tensor, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        outputs = super().apply(params, observation, seed)
        probabilities = tf.nn.softmax(outputs["atom_logits"])  # [B, A, K]
        return outputs | {"q_values": tf.reduce_sum(probabilities * self._support, axis=2)}

    def loss(self, params: Params, targets: Params, batch: Any, seed: tf.Tensor) -> Loss:
        outputs_tm1, outputs_t, selector = self._outputs(params, targets, batch, seed)
        divergences = losses.categorical_q_learning(
            outputs_tm1["atom_logits"],
            batch.a_tm1,
            batch.r_t,
            batch.discount_t,
            outputs_t["atom_logits"],
            selector,
            tf.constant(self._support),
        )  # [B]
        q_t = tf.gather(outputs_t["q_values"], tf.argmax(selector, axis=1), batch_dims=1)  # [B]
        target = batch.r_t + batch.discount_t * q_t  # [B]
        outside = (target < self.config.v_min) | (target > self.config.v_max)  # [B]
        statistics = {"outside_support": tf.reduce_mean(tf.cast(outside, tf.float32))}
        statistics |= self._value_statistics(outputs_tm1["q_values"])
        return self._mean(divergences, divergences, batch, statistics)
