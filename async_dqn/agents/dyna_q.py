"""Deep Dyna-Q (Sutton 1990; Peng et al. 2018, arXiv 1801.06176): Q-learning on real and on simulated transitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from async_dqn.agents.base import Loss, Params, make_module, make_network
from async_dqn.agents.dqn import CARTPOLE, DQN, DQNConfig
from async_dqn.base import schedules
from async_dqn.base.errors import UserError
from async_dqn.data.experience import Evaluate, Experience, Outputs
from async_dqn.data.planning import SWEEPINGS, DynaExperience, Imagined
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn import losses
from async_dqn.nn.module import Module
from async_dqn.nn.networks import Head
from async_dqn.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class DynaQConfig(DQNConfig):
    """Settings of Dyna-Q."""

    # No flags, other than in DQN: --sweeping says what is learned from.
    noisy: ClassVar[bool] = False  # type: ignore[misc]
    prioritized: ClassVar[bool] = False  # type: ignore[misc]
    priority_exponent: ClassVar[float] = 0.0  # type: ignore[misc]
    importance_exponent: ClassVar[float] = 0.0  # type: ignore[misc]

    n_step: int = setting(
        1,
        "Steps of return before bootstrapping, of real transitions; simulated ones are single.",
        minimum=1,
        maximum=100,
    )
    max_simulated_ratio: float = setting(
        4.0, "Simulated minibatches for each real one, at most.", minimum=0, maximum=1_000
    )
    planning_depth: int = setting(1, "Steps of a simulated trajectory.", minimum=1, maximum=100)
    sweeping: str = setting(
        "uniform",
        "Which real states planning starts from: uniform: any; prioritized: where the Bellman error is large or leads "
        "to a large one; novelty: where few were seen.",
        choices=SWEEPINGS,
    )
    max_model_error: float = setting(
        0.1,
        "Planning waits until the model leaves at most this share of the variance of a state's change unexplained, on "
        "the newest transitions, before it trains on them.",
        minimum=0,
    )
    model_learning_rate: float = setting(1e-3, "Step size of the model.", minimum=0)
    planning: str = setting(
        "auto",
        "With several workers, separate: worker 0 acts and learns, all others train the model and plan; own: each does "
        "all of it; auto: separate where the workers share parameter servers, each at its own pace.",
        choices=("auto", "own", "separate"),
    )
    queue_size: int = setting(
        2,
        "Blocks of simulated minibatches (with --replay=global, of steps) that may wait for worker 0; while so many "
        "do, the workers that send them wait.",
        minimum=1,
        maximum=10_000,
        only_with={"planning": ("auto", "separate")},
    )
    send_period: int = setting(
        16,
        "How many steps of each environment, or simulated minibatches, are sent together; a worker pulls parameters "
        "each time.",
        minimum=1,
        maximum=10_000,
        only_with={"planning": ("auto", "separate")},
    )

    @property
    def has_same_replays(self) -> bool:
        return self.planning == "separate" or (self.planning == "auto" and not self._against_planners())

    @property
    def has_planners(self) -> bool:
        return self.num_workers > 1 and self.has_same_replays

    def _against_planners(self) -> str:
        """What does not go with planners, and why; "" where all does."""
        if self.store != "ps":
            return f"--store={self.store}: --planning=separate needs a parameter server, which holds the queues"
        if self.mode != "async":
            return f"--update_mode={self.mode}: with --planning=separate workers train two networks; leave it out"
        if self.averages != "own":
            return f"--averages={self.averages}: with --planning=separate no network is all workers'; leave it out"
        if self.max_staleness:
            return f"--max_staleness={self.max_staleness}: with --planning=separate planners update too; leave it out"
        if self.replay != "local":
            return f"--replay={self.replay}: with --planning=separate worker 0 acts; give one of the two"
        return ""

    def check(self) -> None:
        super().check()
        if not self.discount:
            raise UserError("--discount=0: must be above 0, as the model tells the end of an episode by it")
        if self.batch_size % self.planning_depth:
            raise UserError(f"--planning_depth={self.planning_depth}: must divide --batch_size={self.batch_size}")
        if self.has_planners and self._against_planners():
            raise UserError(self._against_planners())


class DynaQ(DQN):
    """DQN that also trains a model of the environment, and learns from what the model says."""

    Config = DynaQConfig
    summary = "DQN that learns from a model of the environment too (Sutton 1990; Peng et al. 2018)"
    metrics: ClassVar[tuple[str, ...]] = (
        *DQN.metrics,
        "model_error",
        "simulated_share",
        "real_error",
        "simulated_error",
        "simulated_age",
    )
    network_outputs = DQN.network_outputs | {
        "next_observation": "the model: how the observation changes with each action",
        "reward": "the model: the reward of each action",
        "termination": "the model: the logit of the probability that each action ends the episode",
    }
    presets = {
        # Simulated minibatches make up for fewer real ones, and cost no real steps.
        "cartpole": CARTPOLE | {"train_period": 4, "model_learning_rate": 3e-3},
        # Its engines are noisy and its crashes abrupt: the model explains only about half of the variance.
        "lunarlander": {
            **DQN.presets["lunarlander"],
            "layer_norm": True,
            "n_step": 3,
            "target_period": 512,  # simulated minibatches count too, and those of planners
            "max_simulated_ratio": 1.0,
            "max_model_error": 1.0,
        },
    }

    config: DynaQConfig

    @classmethod
    def check(cls, config: Any, spec: EnvironmentSpec) -> None:
        if spec.is_atari or spec.packing or len(spec.observation_shape) != 1:
            raise UserError(
                f"--agent=dyna_q: its model predicts vectors, but {spec.id} has observations of shape "
                f"{spec.observation_shape}"
            )
        if spec.stack > 1:
            raise UserError(f"--frame_stack={spec.stack}: --agent=dyna_q predicts single observations; leave it out")

    def __init__(self, config: DynaQConfig, spec: EnvironmentSpec, worker: int = 0):
        super().__init__(config, spec, worker)
        size, num_actions = spec.observation_shape[0], spec.num_actions
        heads = {
            "next_observation": Head(num_actions * size, 0.1),
            "reward": Head(num_actions),
            "termination": Head(num_actions),
        }
        self._model = make_network(config, spec, heads)
        model = make_module(config, "model", self._model, has_target=False)
        self.modules = [*self.modules, model._replace(rate=schedules.constant(config.model_learning_rate))]

    def apply(self, params: Params, observation: tf.Tensor, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        outputs = super().apply(params, observation, seed)
        # There is no target copy of the model.
        return outputs | self._model.apply(params["model"], observation) if "model" in params else outputs

    def _imagine(self, outputs: Outputs, observation: np.ndarray) -> Imagined:
        num_states, size = len(observation), self.spec.observation_shape[0]
        change = outputs["next_observation"].reshape(num_states, -1, size)  # [N, A, D]
        probability = 1 / (1 + np.exp(-np.clip(outputs["termination"], -50, 50)))  # [N, A]
        return Imagined(observation[:, -1:] + change, outputs["reward"], probability)

    @property
    def trained(self) -> Sequence[Module]:
        if not self.config.has_planners:
            return self.modules
        return [module for module in self.modules if (module.name == "model") == bool(self.worker)]

    def takes_deltas(self, module: Module) -> bool:
        """As in `Agent`, but the model of several planners takes gradients: so one optimizer serves them all."""
        is_of_several = module.name == "model" and self.config.has_planners and self.config.num_workers > 2
        return super().takes_deltas(module) and not is_of_several

    def make_experience(self, num_envs: int, evaluate: Evaluate) -> Experience:
        config = self.config
        is_planner = config.has_planners and self.worker
        return DynaExperience(
            self._make_replay(num_envs),
            discount=config.discount,
            simulated_ratio=0 if is_planner else config.max_simulated_ratio,
            depth=config.planning_depth,
            sweeping=config.sweeping,
            max_model_error=config.max_model_error,
            num_actions=self.spec.num_actions,
            imagine=self._imagine,
            evaluate=evaluate,
            batch_size=config.batch_size,
            train_period=config.train_period,
            warmup_steps=max(1, config.warmup_steps // config.num_replays),
        )

    def loss(self, params: Params, targets: Params, batch: Any, seed: tf.Tensor) -> Loss:
        outputs_tm1, outputs_t, selector = self._outputs(params, targets, batch, seed)
        q_tm1, q_t = outputs_tm1["q_values"], outputs_t["q_values"]  # [B, A]
        errors = losses.double_q_learning(q_tm1, batch.a_tm1, batch.r_t, batch.discount_t, q_t, selector)  # [B]
        q_loss = losses.weighted_mean(losses.huber(errors), batch.weight)
        size = losses.weighted_mean(tf.abs(errors), batch.weight)
        share = tf.reduce_mean(batch.is_simulated)
        statistics = {
            **self._value_statistics(q_tm1),
            "model_error": tf.reduce_mean(batch.model_error),
            "simulated_share": share,
            "real_error": tf.where(share > 0, np.nan, size),
            "simulated_error": tf.where(share > 0, size, np.nan),
            "simulated_age": tf.where(share > 0, tf.reduce_mean(batch.model_age), np.nan),
        }
        trains_model = any(module.name == "model" for module in self.trained)
        if trains_model:
            q_loss += tf.cond(share > 0, lambda: 0.0, lambda: self._model_loss(params, batch))
        return Loss(q_loss, statistics)

    def _model_loss(self, params: Params, batch: Any) -> tf.Tensor:
        """What the model is trained on: rewards, whether episodes ended, and how states changed where they went on."""
        size = self.spec.observation_shape[0]
        # The statistics of observations have been counted with the values.
        others_held = tf.nest.map_structure(tf.stop_gradient, dict(params)) | {"model": params["model"]}
        found = self.apply(others_held, batch.s_tm1)
        changes = tf.reshape(found["next_observation"], [-1, self.spec.num_actions, size])  # [B, A, D]
        named = {"change": changes, "reward": found["reward"], "termination": found["termination"]}
        chosen = {name: tf.gather(one, batch.a_tm1, batch_dims=1) for name, one in named.items()}
        change = batch.s_1[:, 0] - batch.s_tm1[:, 0]  # [B, D]
        ended = tf.cast(batch.discount_1 == 0, tf.float32)  # [B]
        of_change = losses.relative_errors(chosen["change"], change, batch.deviation[:-1])
        # Squared: where a reward cannot be foreseen, as that of a crash, its mean is what values follow from.
        of_reward = tf.square((chosen["reward"] - batch.r_1) / batch.deviation[-1])
        of_end = tf.nn.sigmoid_cross_entropy_with_logits(labels=ended, logits=chosen["termination"])
        # A state in which nothing goes on has no value: where it lies would but blur where episodes go on.
        return losses.weighted_mean(of_change, 1 - ended) + tf.reduce_mean(of_reward + of_end)
