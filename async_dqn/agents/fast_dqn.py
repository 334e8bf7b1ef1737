"""Fast DQN (Daley & Amato 2021, arXiv 2111.01264): acting on the target network while the online one trains."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from async_dqn.agents.dqn import DQN, DQNConfig
from async_dqn.base.errors import UserError
from async_dqn.data.buffered_replay import BufferedReplayExperience
from async_dqn.data.experience import Evaluate, Experience
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.settings.fields import setting


@dataclasses.dataclass(frozen=True)
class FastDQNConfig(DQNConfig):
    """Settings of fast DQN."""

    overlap_steps: ClassVar[bool] = False  # type: ignore[misc]  # no flag, other than in DQN: --concurrent does more

    concurrent: bool = setting(True, "Train in a thread beside acting; false: between the steps.")
    synchronized: bool = setting(
        True, "One batched prediction for all environments; false: one for each, in threads. Needs two environments."
    )

    def check(self) -> None:
        super().check()
        period = self.target_period * self.train_period
        if period % self.envs_per_worker:
            raise UserError(
                f"--envs_per_worker={self.envs_per_worker}: must divide the {period} agent steps between two refreshes "
                f"of the target network, --target_period={self.target_period} x --train_period={self.train_period}"
            )
        if self.synchronized and self.envs_per_worker == 1:
            raise UserError("--envs_per_worker=1: there is nothing to synchronize; add --nosynchronized, or take more")
        if self.noisy and not self.synchronized:
            raise UserError("--noisy=True: is one noise for all environments, so it needs --synchronized")


# Without what only workers of a cluster need, and what learning beside acting replaces.
_PRESETS: dict[str, dict[str, Any]] = {
    name: {key: value for key, value in preset.items() if key not in ("local_steps", "overlap_steps")}
    for name, preset in DQN.presets.items()
}


class FastDQN(DQN):
    """DQN whose experience reaches replay once a period, when the target network is refreshed."""

    Config = FastDQNConfig
    summary = "DQN in one process that acts and trains at the same time (Daley & Amato 2021)"
    metrics: ClassVar[tuple[str, ...]] = (*DQN.metrics, "learner_busy")
    distributed = False
    acts_on_target = True
    presets = _PRESETS | {
        "nature": _PRESETS["nature"] | {"envs_per_worker": 8},
        # Within a period it acts on the same network: 2,000 agent steps, as minibatches are few.
        "pong-fast": _PRESETS["pong-fast"] | {"target_period": 250},
    }

    config: FastDQNConfig

    def __init__(self, config: FastDQNConfig, spec: EnvironmentSpec, worker: int = 0):
        super().__init__(config, spec, worker)
        self.learns_beside = config.concurrent
        self.predicts_together = config.synchronized

    def make_experience(self, num_envs: int, evaluate: Evaluate) -> Experience:
        config, replay = self.config, self._make_replay(num_envs)
        return BufferedReplayExperience(
            replay,
            period=config.target_period * config.train_period,
            batch_size=config.batch_size,
            train_period=config.train_period,
            warmup_steps=config.warmup_steps,
            sampler=self._make_sampler(replay),
        )
