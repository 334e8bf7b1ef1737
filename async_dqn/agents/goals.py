"""How many agent steps past runs of a preset needed to its goal, from which follows when a run is likely there."""

import dataclasses
import re

from async_dqn.agents.table import make_config
from async_dqn.settings.config import Config

# The least and the most of the runs in results/pong, by agent and preset.
STEPS_ON_PONG = {
    ("dqn", "pong-fast"): (467_096, 1_182_016),
    ("ppo", "pong"): (645_984, 1_347_472),
    ("pqn", "pong"): (766_640, 1_646_640),
    ("paac", "pong"): (2_181_128, 2_998_744),
    ("a3c", "pong"): (2_009_688, 2_675_960),
}
_FREE = {
    "env", "agent", "seed", "total_steps", "num_ps", "num_workers", "store", "max_nonfinite"
}  # fmt: skip


def steps_to_goal(config: Config) -> tuple[int, int] | None:
    """The least and the most that past runs needed; None where settings, goal or environment are not as they were."""
    for (agent, preset), steps in STEPS_ON_PONG.items():
        if agent == config.agent and re.fullmatch("(ale/)?pong(-v5)?", config.env.lower()):
            usual = make_config(agent, preset, {"num_workers": config.num_workers, "store": config.store})
            if _learned(config) == _learned(usual):
                return steps
    return None


def _learned(config: Config) -> dict[str, object]:
    """The settings that decide on how many steps a run needs."""
    names = [f.name for f in dataclasses.fields(config) if f.metadata["shared"] and f.name not in _FREE]
    return {name: getattr(config, name) for name in [*names, "stop_at_return", "overlap_steps", "envs_per_worker"]}
