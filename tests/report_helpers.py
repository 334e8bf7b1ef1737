"""Run directories as runs write them, with made-up content."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from async_dqn.agents.table import make_config
from async_dqn.run.csv_log import CsvWriter
from async_dqn.run.directory import RunDirectory

RATE = 100  # agent steps a second


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> None:
    writer = CsvWriter(path, fields)
    for row in rows:
        writer.write(row)
    writer.close()


def write_run(
    path: Path,
    returns: Sequence[float],
    *,
    command: str = "worker",
    game_length: int = 50,
    exit_reason: str | None = "finished",
    summary: Mapping[str, Any] | None = None,
    agent: str = "dqn",
    metrics: Mapping[str, float] | None = None,
    described: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A run in which a game of `game_length` agent steps ends after the other, `RATE` of them a second.

    Args:
      metrics: more columns of metrics.csv, the same in every row.
      described: more of config.json, beside the settings and the command.
    """
    run, more = RunDirectory(path), metrics or {}
    path.mkdir(parents=True)
    config = make_config(agent, "cartpole", {"env": "CartPole-v1"} | settings)
    about = {"config": config.to_dict(), "command": ["async-dqn", command]} | dict(described or {})
    run.config.write_text(json.dumps(about))
    steps = [game * game_length for game in range(1, len(returns) + 1)]
    games = [{"env_steps": at, "episode_return": value} for at, value in zip(steps, returns, strict=True)]
    write_csv(run.episodes, games, ("env_steps", "episode_return"))
    rows = [{"wall_seconds": at / RATE, "env_steps": at} | dict(more) for at in steps]
    write_csv(run.metrics, rows, ("wall_seconds", "env_steps", *more))
    if exit_reason is not None:
        run.summary.write_text(json.dumps({"exit_reason": exit_reason} | dict(summary or {})))
    return path
