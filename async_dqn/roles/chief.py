"""What one process of a run does for all: target refreshes, global metrics, checkpoints, the decision to stop."""

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from async_dqn import checkpoints
from async_dqn.agents.dqn import DQN
from async_dqn.config import Config
from async_dqn.metrics import EPISODE_FIELDS, CsvWriter, EpisodeTracker, RateTracker, TensorBoardWriter
from async_dqn.parameter_client import ParameterClient
from async_dqn.parameters import Counters, ParameterStore
from async_dqn.progress import Progress, progress_line
from async_dqn.run_directory import RunDirectory

METRIC_FIELDS = (
    "wall_seconds",
    "env_steps",
    "frames",
    "minibatches",
    "updates",
    "episodes",
    "mean_return_100",
    "epsilon",
    "learning_rate",
    "loss",
    "steps_per_second",
    "minibatches_per_second",
    "updates_per_second",
    "staleness_mean",
)


class Follower:
    """The null chief of every other worker."""

    def tick(self) -> None:
        """Does nothing."""


class Chief:
    """Worker 0's second job, also the baseline's.

    Args:
      config, run: the settings, and where to write.
      store: the global parameters.
      client, agent: this process's own.
      frame_skip: emulator frames an agent step.
      restored: plain values of the checkpoint that the run goes on from; empty in a new run.
    """

    def __init__(
        self,
        *,
        config: Config,
        run: RunDirectory,
        store: ParameterStore,
        client: ParameterClient,
        agent: DQN,
        frame_skip: int,
        progress: Progress,
        restored: Mapping[str, Any],
    ):
        self._config, self._run, self._store = config, run, store
        self._client, self._agent = client, agent
        self._frame_skip = frame_skip
        self._progress = progress
        self._metrics = CsvWriter(run.metrics, METRIC_FIELDS)
        self._episodes = CsvWriter(run.episodes, EPISODE_FIELDS)
        self._tensorboard = TensorBoardWriter(run.tensorboard)
        self._tracker = EpisodeTracker(config.stop_at_return)
        self._num_episodes = 0
        self._started = time.monotonic()
        self._offset = 0.0
        if restored:
            self._tracker.restore(restored["episodes"])
            self._num_episodes = restored["num_episodes"]
            self._offset = restored["wall_seconds"]
        counters = store.add_counts(Counters())
        self._rates = RateTracker(counters)
        self._refreshed_at = counters.minibatches
        self._next_log = self._started + config.log_period
        self._next_checkpoint = self._started + config.checkpoint_period

    @property
    def wall_seconds(self) -> float:
        """Seconds of training, those before a resume included."""
        return self._offset + time.monotonic() - self._started

    @property
    def is_solved(self) -> bool:
        """Whether the mean return reached the goal."""
        return self._tracker.solved_at is not None

    def tick(self) -> None:
        """Does what is due; called after every step of the run loop."""
        self._refresh_target()
        now = time.monotonic()
        if now >= self._next_log:
            self.log()
            self._next_log = now + self._config.log_period
        if now >= self._next_checkpoint:
            self.save("running")
            self._next_checkpoint = time.monotonic() + self._config.checkpoint_period

    def stop(self) -> None:
        """Ends the run for all workers."""
        self._store.add_counts(Counters(stopped=1))

    def log(self) -> Counters:
        """Writes one row of global metrics and shows it. Gives the counters it was made from."""
        for episode in self._store.take_episodes():
            self._num_episodes += 1
            self._tracker.add(episode, self.wall_seconds)
            row = episode._asdict() | {"time": f"{episode.time:.3f}"}
            self._episodes.write(row)
        counters = self._store.add_counts(Counters())
        row = {
            "wall_seconds": self.wall_seconds,
            "env_steps": counters.env_steps,
            "frames": counters.env_steps * self._frame_skip,
            "minibatches": counters.minibatches,
            "updates": counters.updates,
            "episodes": self._num_episodes,
            "mean_return_100": self._tracker.mean,
            "epsilon": self._agent.epsilon,
            "learning_rate": self._client.current_learning_rate(),
            "loss": self._agent.take_loss(),
        } | self._rates.rates(counters)
        self._metrics.write(row)
        self._tensorboard.write(row, counters.env_steps)
        self._progress.show(progress_line(row, self._config.total_steps))
        if self.is_solved and not counters.stopped:
            self.stop()
        return counters

    def save(self, exit_reason: str) -> None:
        """Writes a checkpoint and the summary; says so where that fails, and lets the run go on."""
        state = self._store.state()
        arrays = {f"store/{name}": array for name, array in state.items()}
        agent_arrays, agent_values = self._agent.state()
        arrays |= {f"agent/{name}": array for name, array in agent_arrays.items()}
        values = {
            "wall_seconds": self.wall_seconds,
            "num_episodes": self._num_episodes,
            "episodes": self._tracker.state(),
            "agent": agent_values,
        }
        counters = Counters(*map(int, state["counters"]))
        try:
            checkpoints.save(
                self._run.checkpoints, counters.env_steps, arrays, values, keep=self._config.keep_checkpoints
            )
            self._run.write_summary(self.summary(counters, exit_reason))
        except OSError as error:
            self._progress.say(f"could not save: {error}; the run goes on without this checkpoint")

    def summary(self, counters: Counters, exit_reason: str) -> dict[str, Any]:
        """What summary.json says."""
        wall = max(self.wall_seconds, 1e-9)
        solved_at = self._tracker.solved_at or (None, None)
        return {
            "env_steps": counters.env_steps,
            "frames": counters.env_steps * self._frame_skip,
            "updates": counters.updates,
            "minibatches": counters.minibatches,
            "episodes": self._num_episodes,
            "wall_seconds": round(wall, 3),
            "steps_per_second": round(counters.env_steps / wall, 3),
            "updates_per_second": round(counters.updates / wall, 3),
            "mean_return_100": _number(self._tracker.mean),
            "best_mean_return_100": _number(self._tracker.best),
            "solved_at_seconds": solved_at[0],
            "solved_at_steps": solved_at[1],
            "staleness_mean": _number(counters.staleness_sum / counters.updates if counters.updates else math.nan),
            "staleness_max": counters.staleness_max,
            "num_ps": self._config.num_ps,
            "num_workers": self._config.num_workers,
            "exit_reason": exit_reason,
        }

    def finish(self, exit_reason: str) -> None:
        """Writes the last row, the last checkpoint and the summary."""
        self.log()
        self.save(exit_reason)
        self._metrics.close()
        self._episodes.close()
        self._tensorboard.close()

    def _refresh_target(self) -> None:
        minibatches = self._client.counters.minibatches
        period = self._config.target_period
        if minibatches // period > self._refreshed_at // period:
            self._refreshed_at = minibatches
            self._store.refresh_target()


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)


def restart_counters(counters: np.ndarray) -> np.ndarray:
    """Saved counters made ready to go on from: nothing claimed ahead, nobody stopped or done."""
    saved = Counters(*map(int, counters))
    return np.array(saved._replace(claimed_steps=saved.env_steps, stopped=0, workers_done=0), np.int64)
