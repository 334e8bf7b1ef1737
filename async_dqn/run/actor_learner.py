"""What the baseline and every worker do: run one agent, keep its own metrics and snapshots, report its games."""

import collections
import gc
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from async_dqn.base.cycle import PARTS
from async_dqn.envs import registry
from async_dqn.run import build
from async_dqn.run.csv_log import EPISODE_FIELDS, CsvWriter
from async_dqn.run.directory import RunDirectory
from async_dqn.run.loop import Tick, run_loop
from async_dqn.run.metrics import TensorBoardWriter
from async_dqn.run.snapshots import Snapshots
from async_dqn.settings.config import Config
from async_dqn.store.base import EpisodeReport
from async_dqn.store.client import ParameterClient
from async_dqn.system.process_meter import METER_FIELDS, ProcessMeter

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
    "stalenesses",
    "steps_per_second",
    *(f"seconds_{part}" for part in PARTS),
    *METER_FIELDS,
)


class Duties(Protocol):
    """What else this process has to do, step by step."""

    def tick(self) -> None: ...


class WorkerMetrics:
    """One worker's own metrics.csv and episodes.csv, and the way of its games to the chief."""

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        worker: int,
        client: ParameterClient,
        totals: Mapping[str, int],
        say: Callable[[str], None],
    ):
        self._worker, self._client = worker, client
        self._metrics = CsvWriter(run.worker(worker) / "metrics.csv", _FIELDS, say)
        self._episodes = CsvWriter(run.worker(worker) / "episodes.csv", EPISODE_FIELDS, say)
        self._pending: list[EpisodeReport] = []
        self._num_steps, self._num_episodes = totals.get("env_steps", 0), totals.get("episodes", 0)
        client.own_minibatches = totals.get("minibatches", 0)
        self._log_period = config.log_period
        self._started = self._logged_at = self._reported_at = time.monotonic()
        self._logged_steps = self._num_steps
        self._meter = ProcessMeter()
        self._tensorboard = TensorBoardWriter(run.tensorboard / f"worker-{worker}")
        self._cycle = client.clock.seconds()

    @property
    def totals(self) -> dict[str, int]:
        """What this worker has done, a process that it was before included."""
        return {
            "env_steps": self._num_steps,
            "minibatches": self._client.own_minibatches,
            "episodes": self._num_episodes,
        }

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
            self.report()
            self._reported_at = now
        if now - self._logged_at >= self._log_period:
            self.log()

    def report(self) -> None:
        """Hands the games that ended since the last call to the chief."""
        if self._pending:
            self._client.report_episodes(self._pending)
            self._pending = []

    def forget(self) -> None:
        """Drops the games that have not been handed on: the run was put back to before they were played."""
        self._pending = []

    def log(self) -> None:
        """Writes one row."""
        now = time.monotonic()
        stalenesses, cycle = self._client.stalenesses, self._client.clock.seconds()
        of_interval = {
            "staleness_mean": float(np.mean(stalenesses)) if stalenesses else float("nan"),
            "staleness_max": max(stalenesses, default=0),
            "steps_per_second": (self._num_steps - self._logged_steps) / max(now - self._logged_at, 1e-9),
            **self._meter.read(),
        }
        seconds = {f"seconds_{part}": value for part, value in cycle.items()}
        counts = " ".join(f"{value}:{times}" for value, times in sorted(collections.Counter(stalenesses).items()))
        row = {"wall_seconds": now - self._started, "stalenesses": counts, **self.totals, **of_interval, **seconds}
        self._metrics.write(row)
        spent = {part: cycle[part] - self._cycle[part] for part in cycle}
        shares = {f"cycle_percent/{part}": 100 * value / sum(spent.values()) for part, value in spent.items()}
        self._tensorboard.write(of_interval | shares, self._client.env_steps)
        self._cycle = cycle
        stalenesses.clear()
        self._logged_at, self._logged_steps = now, self._num_steps

    def close(self) -> None:
        """Ends the files."""
        self._metrics.close()
        self._episodes.close()
        self._tensorboard.close()


class ActorLearner:
    """One agent with its environments, its replay and its files, built and brought to where it last stood.

    Args:
      worker: task index.
      client: started already.
      run_id: the run that it belongs to.
      say: takes a line on what was found or went wrong.
    """

    def __init__(
        self,
        config: Config,
        problem: build.Problem,
        run: RunDirectory,
        *,
        worker: int,
        client: ParameterClient,
        run_id: int,
        num_threads: int,
        say: Callable[[str], None],
    ):
        self.client = client
        self._overlap_steps = config.overlap_steps
        replay = build.make_replay(config, problem)
        agent_seeds, environment_seed = build.make_seeds(config, worker, client.env_steps)
        self.agent = build.make_agent(config, problem, client, replay, worker=worker, seeds=agent_seeds)
        self._snapshots = Snapshots(config, run, worker, run_id=run_id, agent=self.agent, replay=replay, say=say)
        saved_seed, totals = self._snapshots.load()
        seed = environment_seed if saved_seed is None else saved_seed
        self._env = registry.make_vector_env(problem.spec, config.envs_per_worker, seed, num_threads)
        self._snapshots.begin(self._env, seed, in_episode=saved_seed is not None)
        self._metrics = WorkerMetrics(config, run, worker, client, totals, say)
        gc.freeze()  # what is here now stays: searching TensorFlow's graphs for garbage took 3 % of the time

    def run(self, duties: Duties, should_stop: threading.Event) -> None:
        """Trains until the budget is spent, the run is stopped or `should_stop` is set; all is reported then.

        Raises Outage, after which it may be called again.
        """
        ticks = run_loop(self.agent, self._env, self.client, claim=_CLAIM, overlap_steps=self._overlap_steps)
        try:
            for tick in ticks:
                self._metrics.consume(tick)
                duties.tick()
                self._snapshots.tick(self._metrics.totals)
                if should_stop.is_set():
                    break
        finally:
            ticks.close()
        self._metrics.report()
        self.client.finish()

    def forget_games(self) -> None:
        """Drops the games that the chief has not heard of, as the run no longer contains their steps."""
        self._metrics.forget()

    def save(self, deadline: float) -> None:
        """Brings everything to disk, within `deadline` seconds."""
        self._metrics.log()
        self._snapshots.finish(self._metrics.totals, deadline)

    def close(self) -> None:
        """Frees the environments and their threads."""
        self._metrics.close()
        self.agent.close()
        self._env.close()
