"""Run directories as runs write them, with made-up content."""

import json
from pathlib import Path
from typing import Any

from async_dqn.run.csv_log import EPISODE_FIELDS, METRIC_FIELDS, CsvWriter
from async_dqn.run.directory import RunDirectory
from async_dqn.settings.config import Config

RATE = 100  # agent steps a second


def write_run(
    path: Path,
    returns: list[float],
    *,
    command: str = "worker",
    game_length: int = 50,
    exit_reason: str | None = "finished",
    summary: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A run in which a game of `game_length` agent steps ends after the other, `RATE` of them a second."""
    run = RunDirectory(path)
    path.mkdir(parents=True)
    config = Config(**{"env": "CartPole-v1", "replay_capacity": 10_000, "warmup_steps": 100} | settings)
    run.config.write_text(json.dumps({"config": config.to_dict(), "command": ["async-dqn", command]}))
    metrics, episodes = CsvWriter(run.metrics, METRIC_FIELDS), CsvWriter(run.episodes, EPISODE_FIELDS)
    for game, value in enumerate(returns, 1):
        steps = game * game_length
        episodes.write({"time": 1e9, "worker": 0, "env_steps": steps, "episode_return": value, "length": game_length})
        metrics.write({"wall_seconds": steps / RATE, "env_steps": steps})
    metrics.close()
    episodes.close()
    if exit_reason is not None:
        run.summary.write_text(json.dumps({"exit_reason": exit_reason} | (summary or {})))
    return path
