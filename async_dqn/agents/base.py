"""What an algorithm is. Read this first.

An agent is a description: which networks there are, how actions are chosen, what the loss is and what it learns from.
It holds no machinery. Whatever counts, schedules, saves, shares or recovers is written once, in `run/` and `store/`,
and calls the agent. So the same agent is the single-process baseline and a worker of a cluster.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.base.errors import UserError
from async_dqn.base.schedules import Schedule, falling
from async_dqn.data.experience import Evaluate, Experience, Outputs
from async_dqn.data.rollout import required_bytes
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn import networks, optimizers
from async_dqn.nn.convolutions import MIN_SIDE
from async_dqn.nn.layout import Layout
from async_dqn.nn.module import Module
from async_dqn.settings.config import Config, EntropySettings, ReplaySettings

Params = Mapping[str, Mapping[str, Any]]  # {module: {array name: tensor}}


class Loss(NamedTuple):
    """What a minibatch says."""

    value: tf.Tensor  # scalar, to be made smaller
    statistics: dict[str, tf.Tensor]  # scalars for metrics, by the names in `Agent.metrics`
    per_item: tf.Tensor | None = None  # [B], for `Experience.feedback`: what priorities are made of


class Agent(abc.ABC):
    """One algorithm for one environment.

    A subclass names its settings and presets and fills in the five methods below.

    Attributes:
      config, spec: settings and environment.
      modules: the networks that the store holds.
      summary: one line for `async-dqn agents`.
      presets: settings by name, to start from.
      metrics: names of columns in metrics.csv beside those that every run has: statistics of the loss, or schedules.
      experience_flag: the setting that most decides how much memory experience takes; of rollouts, their length.
      network_outputs: {head: one line on what it means}, of `apply`.
      continuous_actions: whether it can also act where an action is a vector; else discrete ones are all it knows.
      distributed: whether several workers can share its networks; false: it trains in one process, by `baseline`.
      acts_on_target: whether it acts on the target networks in place of the online ones.
      learns_beside: whether minibatches are computed in a thread of their own, beside acting.
      predicts_together: whether one prediction serves all environments of a worker; false: each has its own.
      has_noise: whether it explores by noise in its networks, and `apply` so takes a third argument: a seed [2] int32
        for it. Without that there is none.
      recurrent_size: M, numbers of the recurrent state; 0: there is none. `apply` takes the state as a third argument
        [B, M] float32, zeros where an episode begins, and gives the next one as the head "recurrent_state". The agent
        learns from rollouts.

    Args:
      worker: this worker's task index, of `config.num_workers`.
    """

    Config: ClassVar[type[Config]] = Config
    summary: ClassVar[str] = ""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}
    metrics: ClassVar[tuple[str, ...]] = ()
    experience_flag: ClassVar[str] = "rollout_length"
    continuous_actions: ClassVar[bool] = False
    distributed: ClassVar[bool] = True

    network_outputs: Mapping[str, str] = {}

    acts_on_target = False
    learns_beside = False
    predicts_together = True
    has_noise = False
    recurrent_size = 0
    modules: Sequence[Module]

    def __init__(self, config: Any, spec: EnvironmentSpec, worker: int = 0):
        self.config, self.spec, self.worker = config, spec, worker

    @classmethod
    def default_preset(cls, spec: EnvironmentSpec) -> str:
        """The name of the preset for an environment that was given without one.

        The first that the agent has of those that fit, by their names; else its first one.
        """
        if spec.is_atari:
            names = ["pong", "pong-fast"] * (spec.id == "ALE/Pong-v5") + ["atari", "atari-fast"]
        elif spec.is_continuous:
            names = ["continuous"] * (not spec.id.startswith("Pendulum")) + ["pendulum"]
        else:
            special = ["lunarlander"] * (spec.id == "LunarLander-v3") + ["pictures"] * bool(spec.picture_shape)
            names = [*special, *["vectors"] * (not spec.id.startswith("CartPole")), "cartpole"]
        return next((name for name in names if name in cls.presets), next(iter(cls.presets)))

    @classmethod
    def check(cls, config: Any, spec: EnvironmentSpec) -> None:
        """Raises UserError where it cannot learn in this environment, for more than its kind of actions."""
        del config, spec

    @classmethod
    def preset(cls, name: str, num_workers: int) -> dict[str, Any]:
        """The settings of a preset for so many workers, {setting: value}."""
        del num_workers
        return dict(cls.presets[name])

    @classmethod
    def resumed(cls, saved: Any, num_workers: int) -> dict[str, Any]:
        """The settings {setting: value} of a run of `saved` ones that goes on with so many workers."""
        del num_workers
        return dataclasses.asdict(saved)

    @classmethod
    def experience_bytes(cls, config: Any, spec: EnvironmentSpec) -> int:
        """What one worker's experience takes of memory once it is full: here a rollout."""
        return required_bytes(getattr(config, cls.experience_flag, 0), config.envs_per_worker, spec)

    @abc.abstractmethod
    def apply(self, params: Params, observation: tf.Tensor) -> dict[str, tf.Tensor]:
        """What the networks say of stacked observations [B, S, ...]: {head: [B, ...] float32}. TensorFlow."""

    @abc.abstractmethod
    def act(self, outputs: Outputs, rng: np.random.Generator, step: int) -> np.ndarray:
        """Actions to learn from: [N] int32, or [N, D] float32 where they are continuous.

        Args:
          outputs: of `apply`, for N observations.
          rng: the only source of randomness; the amount drawn does not depend on the values.
          step: agent steps of all workers until now.
        """

    @abc.abstractmethod
    def greedy(self, outputs: Outputs) -> np.ndarray:
        """The actions that are thought best, shaped as those of `act`: evaluation, export, video."""

    @abc.abstractmethod
    def loss(self, params: Params, targets: Params, batch: Any, seed: tf.Tensor) -> Loss:
        """The loss of one minibatch. TensorFlow; gradients by `params` are taken outside.

        Args:
          targets: of the modules that have one.
          batch: as `experience.batch`, of tensors.
          seed: [2] int32, another one for every minibatch, for stateless random operations.
        """

    @abc.abstractmethod
    def make_experience(self, num_envs: int, evaluate: Evaluate) -> Experience:
        """What this worker learns from, empty.

        Args:
          evaluate: the outputs of the present parameters on stacked observations, and on the recurrent state if any.
        """

    def schedules(self, step: int) -> dict[str, float]:
        """What of `metrics` follows from the number of agent steps."""
        return {}

    def values(self, outputs: Outputs) -> np.ndarray:
        """The values of observations: [N, A] for agents that value actions, [N] for those that value states."""
        return outputs["q_values"] if "q_values" in outputs else outputs["value"][:, 0]

    @property
    def trained(self) -> Sequence[Module]:
        """The modules that this worker has gradients for, in the order of `modules`."""
        return self.modules

    def takes_deltas(self, module: Module) -> bool:
        """Whether workers step copies of a module and push how far these got (--local_steps); else, gradients."""
        del module
        return bool(self.config.local_steps)

    @property
    def learns_from_rollouts(self) -> bool:
        """Whether its experience is a `RolloutExperience`; else it is a `ReplayExperience`."""
        return not isinstance(self.config, ReplaySettings)

    @property
    def block_length(self) -> int:
        """Steps of each environment that an actor sends together: a rollout, or what --send_period says."""
        config = self.config
        return config.send_period if isinstance(config, ReplaySettings) else getattr(config, self.experience_flag)

    @property
    def target_period(self) -> int:
        """Minibatches of all workers between two refreshes of the targets; 0: there are none."""
        return getattr(self.config, "target_period", 0)


def make_module(config: Config, name: str, network: networks.Network, *, has_target: bool) -> Module:
    """A module with the optimizer and the learning rate of the settings."""
    return Module(name, Layout(network.shapes), network.init, make_optimizer(config), make_rate(config), has_target)


def network_name(config: Config, spec: EnvironmentSpec) -> str:
    """The network that the settings choose for an environment."""
    if config.network != "auto":
        return config.network
    if not spec.picture_shape:
        return "mlp"
    return "small" if min(spec.picture_shape[:2]) < MIN_SIDE["nature"] else "nips"


def is_small(config: Config, spec: EnvironmentSpec) -> bool:
    """Whether the network is too small to gain by bfloat16 or by other kernels for convolutions."""
    return network_name(config, spec) in ("mlp", "small")


def make_network(config: Config, spec: EnvironmentSpec, heads: Mapping[str, networks.Head], **options: Any) -> Any:
    """The network of the settings for an environment; options are those of `networks.make_network`."""
    of_actions = any(head.outputs == spec.num_actions for head in heads.values())  # else it may be a value's network
    if spec.packing and spec.packing.mask and of_actions and not any(head in networks.MASKED for head in heads):
        raise UserError(f"--action_mask: --agent={config.agent} cannot obey it; leave the flag out")
    return networks.make_network(
        network_name(config, spec),
        spec.observation_shape,
        spec.stack,
        heads,
        center_frames=config.center_frames,
        layer_norm=config.layer_norm,
        compute_dtype="float32" if config.compute_dtype == "auto" else config.compute_dtype,  # nobody has decided
        bounds=spec.bounds,
        packing=spec.packing,
        **options,
    )


_ADAM_DECAYS = (0.9, 0.999)  # beta1 and beta2 of Kingma & Ba 2015


def make_optimizer(config: Config) -> optimizers.Optimizer:
    """The update rule of the settings.

    With `--averages=shared` each of N workers' optimizers sees one minibatch in N, and its averages forget as much over
    that one as a single optimizer's would over all N. Else momentum would span N times the minibatches, a delay that
    adds to staleness (Mitliagkas et al. 2016).
    """
    power = config.num_learners if config.averages == "shared" else 1
    if config.optimizer in ("adam", "radam"):
        beta1, beta2 = (decay**power for decay in _ADAM_DECAYS)
        make = optimizers.adam if config.optimizer == "adam" else optimizers.radam
        return make(beta1=beta1, beta2=beta2, epsilon=config.optimizer_epsilon)
    return optimizers.rmsprop(
        decay=config.rmsprop_decay**power,
        epsilon=config.optimizer_epsilon,
        centered=config.optimizer == "centered_rmsprop",
    )


def make_rate(config: Config) -> Schedule:
    """The step size over global agent steps."""
    steps = config.learning_rate_steps or config.total_steps
    return falling(config.learning_rate, config.final_learning_rate, steps)


def make_entropy_cost(config: EntropySettings) -> Schedule:
    """The weight of the entropy bonus over global agent steps."""
    return falling(config.entropy_cost, config.final_entropy_cost, config.entropy_steps or config.total_steps)
