"""The work that is measured, the same for every program and part: what is played, learned and computed."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from async_dqn.base.errors import UserError
from async_dqn.settings.config import PRESETS, Config

_ENDLESS = {"total_steps": 10**9, "stop_at_return": math.inf}  # the benchmark ends it

# Changes to the preset `atari-fast`, whose trips to the parameter servers stay as users get them.
_NATURE = PRESETS["atari-fast"] | {
    # What Mnih et al. 2015 compute for one minibatch, and with it most other programs.
    "network": "nature",
    "double": False,
    "center_frames": False,
    "n_step": 1,
    "replay_capacity": 50_000,
    "warmup_steps": 2_000,
    # Programs that draw a random action before they predict one would otherwise be timed without their predictions.
    "epsilon_final": 0.01,
    "epsilon_steps": 1,
    **_ENDLESS,
}

WORKS: dict[str, dict[str, Any]] = {
    "nature": {
        "env": "pong",
        "protocol": "classic",
        "envs_per_worker": 8,
        "batch_size": 32,
        "train_period": 4,
        "optimizer": "adam",
    }
    | _NATURE,
    "pong-fast": {"env": "pong"} | PRESETS["pong-fast"] | _ENDLESS,
    "boxing": {"env": "boxing"} | PRESETS["atari-fast"] | _ENDLESS,  # there is something to learn in it for hours
}
PEER_WORK = "nature"  # what programs of others are compared on


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured, and how thoroughly.

    Attributes:
      work: a name of WORKS.
      is_quick: a first look rather than a figure to publish: fewer cases, shorter windows.
      seconds: the window in which a whole program is measured.
      num_ps, num_workers: of the cluster.
      say: takes a line on what is being done.
      overrides: settings that replace those of the work.

    Raises:
      UserError: at construction, naming the value and what is allowed.
    """

    work: str = "nature"
    is_quick: bool = False
    seconds: float = 30.0
    num_ps: int = 1
    num_workers: int = 2
    say: Callable[[str], None] = lambda line: None
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.work not in WORKS:
            raise UserError(f"--work={self.work}: must be one of {', '.join(WORKS)}")
        if not 1 <= self.seconds <= 86_400:
            raise UserError(f"--seconds={self.seconds:g}: must be a number of at least 1 and at most 86400")
        config(self)


def settings(plan: Plan) -> dict[str, Any]:
    """The settings of the plan's work that are not the defaults' own, as `Config` takes them."""
    cluster = {"num_ps": plan.num_ps, "num_workers": plan.num_workers}
    return WORKS[plan.work] | cluster | dict(plan.overrides)


def config(plan: Plan, **overrides: Any) -> Config:
    """The whole of them, with single ones replaced."""
    return Config(**(settings(plan) | overrides))
