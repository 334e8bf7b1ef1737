"""PAAC (Clemente et al. 2017, arXiv 1705.04862): A3C's update, by all environments together on one version."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from async_dqn.agents import a3c
from async_dqn.base.errors import UserError


@dataclasses.dataclass(frozen=True)
class PAACConfig(a3c.A3CConfig):
    """Settings of PAAC."""

    # No flags, other than in A3C: workers that make each update together have no rollouts of others to learn from.
    parallelism: ClassVar[str] = "gradient"  # type: ignore[misc]
    rollouts_per_batch: ClassVar[int] = 1  # type: ignore[misc]
    queue_size: ClassVar[int] = 2  # type: ignore[misc]
    vtrace: ClassVar[bool] = False  # type: ignore[misc]

    default_modes: ClassVar[Mapping[str, str]] = {"ps": "sync", "shared_memory": "sync"}

    def check(self) -> None:
        super().check()
        if self.num_workers > 1 and self.mode != "sync":
            raise UserError(
                f"--update_mode={self.update_mode}: the {self.num_workers} workers of --agent=paac make each update "
                "together; must be sync; or use --agent=a3c"
            )


_ATARI = {
    **a3c.ATARI,
    **a3c.RMSPROP,
    "envs_per_worker": 16,
    "learning_rate": 0.0015,
    "entropy_cost": 0.01,
    "final_entropy_cost": 0.001,
}


class PAAC(a3c.A3C):
    """Learns from the rollouts of all environments at once, by the policy that played them."""

    Config = PAACConfig
    summary = "A3C's update over many environments in lock-step, never stale (Clemente et al. 2017)"
    presets = {
        # Environments are those of all workers. The step size of the paper is 0.0007 for each, and its gradients are
        # means, as they are here.
        "paper": a3c.PAPER
        | {
            "total_steps": 115_000_000,
            "envs_per_worker": 32,
            "learning_rate": 0.0007 * 32,
            "optimizer_epsilon": 0.1,
        },
        "atari": _ATARI,
        "pong": _ATARI | {"stop_at_return": 18.0},
        "cartpole": a3c.CARTPOLE | {"envs_per_worker": 16},
        "lunarlander": a3c.LUNARLANDER,
        "pendulum": a3c.PENDULUM | {"envs_per_worker": 16},
    }

    @classmethod
    def preset(cls, name: str, num_workers: int) -> dict[str, Any]:
        """Shares the environments out over the workers, so that an update is of as many steps, whoever takes them."""
        settings = super().preset(name, num_workers)
        return settings | {"envs_per_worker": max(1, settings["envs_per_worker"] // num_workers)}

    @classmethod
    def resumed(cls, saved: Any, num_workers: int) -> dict[str, Any]:
        """Updates stay of as many steps, as far as they come out even."""
        envs = saved.envs_per_worker * saved.num_workers // max(1, num_workers)  # 0 workers are refused with all else
        return super().resumed(saved, num_workers) | {"envs_per_worker": max(1, envs)}
