"""What the baseline and every worker do: run one agent, write its own metrics, report its games."""

import contextlib
import threading
import time
from typing import Protocol

import numpy as np
import psutil

from async_dqn import environments
from async_dqn.agents.dqn import DQN
from async_dqn.config import Config
from async_dqn.metrics import EPISODE_FIELDS, CsvWriter
from async_dqn.parameter_client import ParameterClient
from async_dqn.parameters import EpisodeReport
from async_dqn.roles.assemble import Problem
from async_dqn.run_directory import RunDirectory
from async_dqn.run_loop import Tick, run_loop

# Vector steps that a worker claims at once: few enough to share out the end of a run, many enough to cost nothing.
_CLAIM = 16
_REPORT_PERIOD = 0.5  # seconds between two reports of finished games

_FIELDS = (
    "wall_seconds",
    "env_steps",
    "minibatches",
    "episodes",
    "staleness_mean",
    "staleness_max",
    "steps_per_second",
    "seconds_waited",
    "resident_mb",
)


class Duties(Protocol):
    """What else this process has to do, step by step."""

    def tick(self) -> None: ...


class WorkerMetrics:
    """One worker's own metrics.csv and episodes.csv, and the way of its games to the chief."""

    def __init__(self, config: Config, run: RunDirectory, worker: int, client: ParameterClient):
        self._worker, self._client = worker, client
        self._metrics = CsvWriter(run.worker(worker) / "metrics.csv", _FIELDS)
        self._episodes = CsvWriter(run.worker(worker) / "episodes.csv", EPISODE_FIELDS)
        self._pending: list[EpisodeReport] = []
        self._num_steps = self._num_episodes = 0
        self._log_period = config.log_period
        self._started = self._logged_at = self._reported_at = time.monotonic()
        self._logged_steps = 0
        self._process = psutil.Process()

    def consume(self, tick: Tick) -> None:
        """Takes in one step."""
        self._num_steps += tick.num_steps
        for episode in tick.episodes:
            self._num_episodes += 1
            report = EpisodeReport(
                self._worker, episode.episode_return, episode.length, self._client.env_steps, time.time()
            )
            self._pending.append(report)
            self._episodes.write(report._asdict() | {"time": f"{report.time:.3f}"})
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_PERIOD:
            self._report()
            self._reported_at = now
        if now - self._logged_at >= self._log_period:
            self._log(now)

    def finish(self) -> None:
        """Reports and writes what is left."""
        self._report()
        self._log(time.monotonic())
        self._metrics.close()
        self._episodes.close()

    def _report(self) -> None:
        if self._pending:
            self._client.report_episodes(self._pending)
            self._pending = []

    def _log(self, now: float) -> None:
        stalenesses = self._client.stalenesses
        self._metrics.write(
            {
                "wall_seconds": now - self._started,
                "env_steps": self._num_steps,
                "minibatches": self._client.own_minibatches,
                "episodes": self._num_episodes,
                "staleness_mean": float(np.mean(stalenesses)) if stalenesses else float("nan"),
                "staleness_max": max(stalenesses, default=0),
                "steps_per_second": (self._num_steps - self._logged_steps) / max(now - self._logged_at, 1e-9),
                "seconds_waited": self._client.seconds_waited,
                "resident_mb": self._process.memory_info().rss / 1e6,
            }
        )
        stalenesses.clear()
        self._logged_at, self._logged_steps = now, self._num_steps


def train(
    config: Config,
    problem: Problem,
    run: RunDirectory,
    *,
    worker: int,
    client: ParameterClient,
    agent: DQN,
    environment_seed: int,
    num_threads: int,
    duties: Duties,
    should_stop: threading.Event,
) -> None:
    """Runs one actor-learner until the budget is spent, the run is stopped or `should_stop` is set."""
    env = environments.make_vector_env(problem.spec, config.envs_per_worker, environment_seed, num_threads)
    metrics = WorkerMetrics(config, run, worker, client)
    with contextlib.closing(env), contextlib.closing(run_loop(agent, env, client, claim=_CLAIM)) as ticks:
        for tick in ticks:
            metrics.consume(tick)
            duties.tick()
            if should_stop.is_set():
                break
    metrics.finish()
    client.finish()
