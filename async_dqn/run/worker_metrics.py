"""One worker's own metrics and episodes, and how its games reach the chief."""

import collections
import time
from collections.abc import Callable, Mapping

import numpy as np

from async_dqn.base.cycle import PARTS
from async_dqn.run.csv_log import CsvWriter
from async_dqn.run.directory import RunDirectory
from async_dqn.run.loop import Tick
from async_dqn.run.metrics import EPISODE_FIELDS, TensorBoardWriter
from async_dqn.settings.config import Config
from async_dqn.store.base import EpisodeReport
from async_dqn.store.client import ParameterClient
from async_dqn.system.process_meter import METER_FIELDS, ProcessMeter

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
    "megabytes_exchanged",
    *METER_FIELDS,
)


class WorkerMetrics:
    """One worker's own metrics.csv and episodes.csv, and how its games reach the chief."""

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
            self._client.report()  # else what is shown waits for the next claim, minutes where steps are slow
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
        sums = {"megabytes_exchanged": self._client.exchanged_bytes / 1e6, **seconds}
        row = {"wall_seconds": now - self._started, "stalenesses": counts, **self.totals, **of_interval, **sums}
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
