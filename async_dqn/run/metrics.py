"""What a run reports: trackers that consume the run loop, and what goes to TensorBoard."""

import collections
import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto.summary_pb2 import Summary

from async_dqn.store.base import Counters, EpisodeReport

EPISODE_FIELDS = ("time", "worker", "env_steps", "episode_return", "length")


def metric_fields(agent_metrics: Sequence[str]) -> tuple[str, ...]:
    """The columns of metrics.csv: what every run has, with the agent's own among them."""
    return (
        "wall_seconds",
        "env_steps",
        "frames",
        "minibatches",
        "updates",
        "episodes",
        "mean_return_100",
        *agent_metrics,
        "learning_rate",
        "loss",
        "gradient_norm",
        "steps_per_second",
        "minibatches_per_second",
        "updates_per_second",
        "staleness_mean",
        "data_age_mean",
    )


class TensorBoardWriter:
    """Scalars for TensorBoard, over global agent steps."""

    def __init__(self, directory: Path):
        self._writer = tf.summary.create_file_writer(str(directory))

    def write_layout(self, layout: bytes) -> None:
        """Says which charts "Custom Scalars" shows; a serialized summary."""
        with contextlib.suppress(OSError, tf.errors.OpError), self._writer.as_default(step=0):
            tf.summary.experimental.write_raw_pb(layout)

    def write(self, row: Mapping[str, Any], step: int) -> None:
        """Writes every finite number of the row."""
        with contextlib.suppress(OSError, tf.errors.OpError), self._writer.as_default(step=step):  # a full disk
            # One operation for the row: `tf.summary.scalar` for each of some twenty took 4 % of a worker's time.
            tf.summary.experimental.write_raw_pb(_summary(row).SerializeToString())

    def close(self) -> None:
        with contextlib.suppress(OSError, tf.errors.OpError):
            self._writer.close()


def _summary(row: Mapping[str, Any]) -> Summary:
    """The finite numbers of a row as one `Summary` protocol buffer."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float) and math.isfinite(value)}
    return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()])


class EpisodeTracker:
    """Returns of whole games: the running mean, its best, and when it first reached the goal."""

    def __init__(self, goal: float):
        self._goal = goal
        self._returns: collections.deque[float] = collections.deque(maxlen=100)
        self.best = float("nan")
        self.solved_at: tuple[float, int] | None = None  # wall seconds, env steps

    def add(self, episode: EpisodeReport, wall_seconds: float) -> None:
        """Takes in one game; means count once there are 100."""
        self._returns.append(episode.episode_return)
        if len(self._returns) == 100:
            self.best = float(np.fmax(self.best, self.mean))
            if self.mean >= self._goal and self.solved_at is None:
                self.solved_at = (wall_seconds, episode.env_steps)

    @property
    def mean(self) -> float:
        """Mean return of the last 100 games, or of as many as there were; NaN before the first."""
        return float(np.mean(self._returns)) if self._returns else float("nan")

    @property
    def full_mean(self) -> float:
        """The mean where it is of 100 games, as `best` is; else NaN."""
        return self.mean if len(self._returns) == 100 else float("nan")

    def state(self) -> dict[str, Any]:
        """Plain values for JSON."""
        best = None if math.isnan(self.best) else self.best
        goal = self._goal if math.isfinite(self._goal) else None
        return {"returns": list(self._returns), "best": best, "goal": goal, "solved_at": self.solved_at}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Puts `state()` back. Another goal than the one then is still to be reached."""
        self._returns.clear()
        self._returns.extend(state["returns"])
        self.best = float("nan") if state["best"] is None else state["best"]
        is_same_goal = state.get("goal", self._goal) == self._goal  # a version did not keep it
        self.solved_at = tuple(state["solved_at"]) if state["solved_at"] and is_same_goal else None


def mean_staleness(counters: Counters, per_update: int) -> float:
    """Of each gradient or delta, `per_update` of which make an update; NaN where there were none."""
    return counters.staleness_sum / (counters.updates * per_update) if counters.updates else float("nan")


class RateTracker:
    """Rates per second, and the mean staleness of gradients or deltas, between two looks at the counters.

    Args:
      per_update: how many of them make one update.
    """

    def __init__(self, counters: Counters, per_update: int = 1):
        self._last, self._time, self._per_update = counters, time.monotonic(), per_update

    def rates(self, counters: Counters) -> dict[str, float]:
        """Since the last call."""
        now = time.monotonic()
        seconds = max(now - self._time, 1e-9)
        delta = Counters(*(new - old for new, old in zip(counters, self._last, strict=True)))
        self._last, self._time = counters, now
        return {
            "steps_per_second": delta.env_steps / seconds,
            "minibatches_per_second": delta.minibatches / seconds,
            "updates_per_second": delta.updates / seconds,
            "staleness_mean": mean_staleness(delta, self._per_update),
            "data_age_mean": delta.age_sum / delta.received if delta.received else float("nan"),
        }
