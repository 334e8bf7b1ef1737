"""What is measured: cases, and the work that each of them does."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from async_dqn.agents import table
from async_dqn.settings.config import Config

_ENDLESS = {"total_steps": 10**9, "stop_at_return": math.inf}  # the benchmark ends the program

# What Mnih et al. 2015 compute for one minibatch, and with it most other programs; how updates travel is the preset's.
_NATURE = {
    "env": "pong",
    "protocol": "classic",
    "network": "nature",
    "envs_per_worker": 8,
    "batch_size": 32,
    "train_period": 4,
    "optimizer": "adam",
    "double": False,
    "center_frames": False,
    "compute_dtype": "float32",
    "n_step": 1,
    "replay_capacity": 50_000,
    "warmup_steps": 2_000,
    # A program that draws a random action before it predicts one would be timed without its predictions.
    "epsilon_final": 0.01,
    "epsilon_steps": 1,
}
# One step on the rollouts of 16 environments, with the same network: what most programs do as "A2C".
_A2C = {
    "env": "pong",
    "protocol": "classic",
    "network": "nature",
    "envs_per_worker": 16,
    "t_max": 5,
    "trace": 1.0,
    "optimizer": "rmsprop",
    "rmsprop_decay": 0.99,
    "optimizer_epsilon": 1e-5,
    "learning_rate": 7e-4,
    "final_learning_rate": -1.0,  # it stays
    "entropy_cost": 0.01,
    "final_entropy_cost": -1.0,
    "center_frames": False,
    "layer_norm": False,
    "compute_dtype": "float32",
}


class Work(NamedTuple):
    """An agent, one of its presets, and settings in its place."""

    agent: str
    preset: str
    settings: Mapping[str, Any]


WORKS = {
    "nature": Work("dqn", "atari-fast", _NATURE | _ENDLESS),
    "a2c": Work("a3c", "atari", _A2C | _ENDLESS),
    "pong-fast": Work("dqn", "pong-fast", {"env": "pong"} | _ENDLESS),
    "boxing": Work("dqn", "atari-fast", {"env": "boxing"} | _ENDLESS),  # it takes hours to learn
}
PEER_WORKS = ("nature", "a2c")  # what another program is compared on


class Case(NamedTuple):
    """One thing to measure, the row `name` in the table of `section`. `measure` gives {metric with unit: value}."""

    section: str
    name: str
    measure: Callable[[], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured, and how thoroughly.

    Attributes:
      work: a name of WORKS.
      is_quick: a first look: fewer cases, shorter windows.
      seconds: for which a whole program is measured.
      num_ps, num_workers: size of the cluster.
      overrides: settings in place of the work's.

    Raises:
      UserError: at construction, naming the value and what is allowed.
    """

    work: str = "nature"
    is_quick: bool = False
    seconds: float = 30.0
    num_ps: int = 1
    num_workers: int = 2
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        config(self)


def config(plan: Plan, agent: str = "", /, **changes: Any) -> Config:
    """The settings of the plan with `changes`, for its own agent or another with the same presets."""
    own_agent, preset, own = WORKS[plan.work]
    size = {"num_ps": plan.num_ps, "num_workers": plan.num_workers}
    return table.make_config(agent or own_agent, preset, {**own, **size, **plan.overrides, **changes})
