"""What one process of a run does for all: global metrics, checkpoints, the decision to stop."""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from async_dqn.base.errors import RunError
from async_dqn.run.actor_learner import ActorLearner
from async_dqn.run.csv_log import CsvWriter, rewind, rows
from async_dqn.run.directory import RunDirectory
from async_dqn.run.metrics import (
    EPISODE_FIELDS,
    EpisodeTracker,
    RateTracker,
    TensorBoardWriter,
    mean_staleness,
    metric_fields,
)
from async_dqn.run.progress import Progress, progress_of
from async_dqn.run.resume import STORE
from async_dqn.run.saver import Saver
from async_dqn.run.separate import SeparateLearner
from async_dqn.run.tensorboard_layout import layout
from async_dqn.store.base import (
    Counters,
    EpisodeReport,
    ParameterStore,
    Stop,
    WorkerStatus,
    episode_report,
    saved_counters,
)
from async_dqn.store.client import ParameterClient

_BEST_PERIOD = 5.0  # seconds between two of the best networks so far


def exit_reason(stopped: int) -> str:
    """What summary.json says of a run that ended with this `Counters.stopped`."""
    if stopped == Stop.FAILED:
        return "failed: a worker ended the run, see its log"
    return {0: "finished", Stop.SOLVED: "solved", Stop.INTERRUPTED: "interrupted"}[stopped]


def say_unsaved(unsaved: str, say: Callable[[str], object]) -> int:
    """Says what could not be saved, where a run ends for another reason. Returns 1 then, 0 where all was saved."""
    if not unsaved:
        return 0
    say(f"warning: {unsaved}")
    return 1


class Start(NamedTuple):
    """How the chief finds the run."""

    restored: Mapping[str, Any] | None = None  # `Chief.values` of what it goes on from; None: from the start
    is_live: bool = False  # the store has gone on since that checkpoint, so that what was written after it counts
    copied_steps: int | None = None  # it goes on from a copy at so many agent steps, which may lack games of before
    copy_age: str = ""  # for the terminal


class Chief:
    """Worker 0's second job, also the baseline's.

    Attributes:
      keep: takes what was read for a checkpoint: the store's state, and the plain values.

    Args:
      run: where to write.
      store: the global parameters.
      client, learner: this process's own.
      progress: shows where the run stands.
      start: how it finds the run.
      has_servers: the store is that of parameter servers, which can be lost.
    """

    def __init__(
        self,
        *,
        run: RunDirectory,
        store: ParameterStore,
        client: ParameterClient,
        learner: ActorLearner | SeparateLearner,
        progress: Progress,
        start: Start,
        has_servers: bool = False,
    ):
        agent = learner.agent
        self._config, self._run, self._store = agent.config, run, store
        self._client, self._learner = client, learner
        self._agent_metrics, self._frame_skip = agent.metrics, agent.spec.frame_skip
        self._per_update = max(1, agent.config.accumulate)
        num_planners = agent.config.num_workers - 1 if agent.config.has_planners else 0
        self._num_receivers = num_planners or int(agent.config.separates)  # of experience; each gets all steps
        self._progress = progress
        self.keep: Callable[[Mapping[str, np.ndarray], dict[str, Any]], object] = lambda state, values: None
        self._saver = Saver(run, agent.config.keep_checkpoints, progress.say)
        self._workers: list[WorkerStatus] = []
        self._restarts_before = 0  # of workers, in earlier runs of this directory
        self._ps_recoveries = self._steps_lost = 0
        self._begin(start, was_cut_short=has_servers and run.exit_reason() == "running")
        self._tensorboard = TensorBoardWriter(run.tensorboard)
        self._tensorboard.write_layout(layout(agent.metrics))
        self._best_saved = self._saver.best_mean() if start.restored is not None else -math.inf
        self._next_best = -math.inf
        self._looked_at = -math.inf
        self._moved = (-1, 0.0)  # the number of agent steps when it was last seen to grow, and that moment
        self._is_ending = False
        self._next_checkpoint = self._started + (agent.config.checkpoint_period if start.is_live else 0.0)

    def _begin(self, start: Start, *, was_cut_short: bool = False, steps_before: int = 0) -> int:
        """Goes on from `start`, and cuts off what was written after it unless that counts.

        Args:
          steps_before: so many were known of before, whatever metrics.csv says.

        Returns:
          The agent steps that it goes on from.
        """
        config, run = self._config, self._run
        restored, is_live, copied_steps, _ = start
        counters = self._store.add_counts(Counters())  # first: if it fails, nothing has changed yet
        steps = counters.env_steps if copied_steps is None else copied_steps  # others may have gone on from it already
        self._tracker = EpisodeTracker(config.stop_at_return)
        self._num_episodes = 0
        self._num_rows = 0  # in episodes.csv: a full disk keeps some out
        self._started = time.monotonic()
        self._offset = 0.0
        if restored is not None:
            self._tracker.restore(restored["episodes"])
            self._num_episodes = restored["num_episodes"]
            self._num_rows = restored.get("episode_rows", self._num_episodes)  # earlier versions have none
            self._offset = restored["wall_seconds"]
            if is_live and restored["clock"][0] == _boot_id():
                self._offset += self._started - restored["clock"][1]
            faults = restored["faults"]
            self._restarts_before = faults["restarts_before"] + (0 if is_live else faults["restarts"])
            self._ps_recoveries, self._steps_lost = faults["ps_recoveries"], faults["steps_lost"]
            if was_cut_short and not is_live:  # the chief before died with its servers, and could not count that
                self._ps_recoveries += 1
                self._restarts_before += 1
        if is_live:
            self._catch_up()
        else:
            last_steps = max((_as_int(row.get("env_steps", "")) for row in rows(run.metrics)), default=0)
            self._steps_lost += max(0, max(last_steps, steps_before) - steps)
            position = itertools.count()

            def is_kept(row: Mapping[str, str]) -> bool:
                is_contained = copied_steps is not None and _as_int(row.get("env_steps", "")) <= steps
                return next(position) < self._num_rows or is_contained

            try:
                rewind(run.metrics, lambda row: _as_int(row.get("env_steps", "")) <= steps)
                rewind(run.episodes, is_kept)  # which may need room on the disk
            except OSError as error:
                self._progress.say(f"warning: rows that no longer count stay in place: {error}")
            if copied_steps is not None:
                self._catch_up()
        self._metrics = CsvWriter(run.metrics, metric_fields(self._agent_metrics), self._progress.say)
        self._episodes = CsvWriter(run.episodes, EPISODE_FIELDS, self._progress.say)
        self._rates = RateTracker(counters, self._per_update)
        is_saved = restored is not None and copied_steps is None
        self._saved_steps = counters.env_steps if is_saved else -1  # in the newest checkpoint
        roles = (restored or {}).get("roles", {"receivers": self._num_receivers, "missed": 0})
        self._missed = int(roles["missed"])  # before these processes had to receive what others play
        if roles["receivers"] != self._num_receivers:
            self._missed = counters.env_steps * self._num_receivers - counters.received
        self._next_log = self._started + config.log_period
        return steps

    def _catch_up(self) -> None:
        """Takes in what was written after the last checkpoint by the process that was the chief before."""
        for row in rows(self._run.episodes)[self._num_rows :]:
            self._num_rows += 1
            report = _as_report(row)
            if report:
                self._num_episodes += 1
                self._tracker.add(report, self._offset)

    def go_on_from(self, start: Start) -> None:
        """After the store was put back in the middle of the run."""
        wall_seconds, lost_before = self.wall_seconds, self._steps_lost
        num_recoveries = self._ps_recoveries + 1
        faults = self._faults() | {"restarts": 0, "ps_recoveries": num_recoveries}  # restarts are still in the ledger
        self._metrics.close()
        self._episodes.close()
        episodes = self._store.take_episodes()
        if start.restored is not None:
            start = start._replace(restored=dict(start.restored) | {"faults": faults})
        now = self._begin(start, steps_before=self._client.counters.env_steps)
        self._ps_recoveries = num_recoveries
        self._offset = wall_seconds  # what was lost has taken its time all the same
        if start.copied_steps is not None:
            self._take_in(episode for episode in episodes if episode.env_steps <= now)
        source = "the checkpoint" if start.copied_steps is None else f"worker 0's copy ({start.copy_age})"
        lost = self._steps_lost - lost_before
        self._progress.say(f"restored {source} at {now:,} agent steps: {lost:,} agent steps of work are lost")

    def _faults(self) -> dict[str, int]:
        return {
            "restarts_before": self._restarts_before,
            "restarts": sum(max(0, worker.starts - 1) for worker in self._workers),
            "ps_recoveries": self._ps_recoveries,
            "steps_lost": self._steps_lost,
        }

    @property
    def wall_seconds(self) -> float:
        """Seconds of training, those before a resume included."""
        return self._offset + time.monotonic() - self._started

    def tick(self) -> None:
        """Does what is due; called after every step of the run loop."""
        now = time.monotonic()
        if now >= self._next_log:
            self.log()
            self._next_log = now + self._config.log_period
        is_new = self._client.counters.env_steps != self._saved_steps  # else it would take the place of the last one
        if now >= self._next_checkpoint and is_new and not self._saver.is_busy:
            self.save("running")
            self._next_checkpoint = time.monotonic() + self._config.checkpoint_period

    def log(self) -> Counters:
        """Writes one row of global metrics and shows it. Gives the counters it was made from."""
        counters, self._workers = self._store.check()  # first: who is no longer the chief takes no games
        self._take_in(self._store.take_episodes())
        self._say_who_holds_up(counters)
        row = {
            "wall_seconds": self.wall_seconds,
            "env_steps": counters.env_steps,
            "frames": counters.env_steps * self._frame_skip,
            "minibatches": counters.minibatches,
            "updates": counters.updates,
            "episodes": self._num_episodes,
            "mean_return_100": self._tracker.mean,
            "learning_rate": float(self._client.rates()[0]),
        }
        row |= self._learner.metrics() | self._rates.rates(counters)
        self._metrics.write(row)
        self._tensorboard.write(row, counters.env_steps)
        self._progress.show(progress_of(row, self._config))
        if self._tracker.solved_at is not None and not counters.stopped:
            self._store.add_counts(Counters(stopped=Stop.SOLVED))
        self._keep_best()
        return counters

    def _say_who_holds_up(self, counters: Counters) -> None:
        """Once, where no agent step comes in any more, though some were claimed."""
        lease, now = self._config.lease, time.monotonic()
        was_paused = now - self._looked_at > self._config.log_period + lease / 2  # during an outage
        self._looked_at = now
        if was_paused or counters.env_steps != self._moved[0]:
            self._moved = counters.env_steps, now
        elif now - self._moved[1] > lease:
            workers = enumerate(self._workers)
            who = [
                str(one) for one, (state, _, own) in workers if state == "active" and own.claimed_steps > own.env_steps
            ]
            if who:
                self._moved = counters.env_steps, math.inf
                self._progress.say(
                    f"no agent step for {lease:g} s, though worker {', '.join(who)} has claimed some; if environments "
                    "hang, --env_processes gives them a deadline"
                )

    def _take_in(self, episodes: Iterable[EpisodeReport]) -> None:
        for episode in episodes:
            self._num_episodes += 1
            self._tracker.add(episode, self.wall_seconds)
            self._num_rows += self._episodes.write(episode._asdict() | {"time": f"{episode.time:.3f}"})

    def _keep_best(self) -> None:
        """Writes the networks beside the checkpoints where their games were the best so far."""
        now, mean = time.monotonic(), self._tracker.full_mean
        has_to_wait = now < self._next_best or self._saver.is_busy_with_best
        if not mean > self._best_saved or (has_to_wait and not self._is_ending):
            return
        self._learner.settle()  # what learns beside steps these very parameters
        pulled = self._store.pull()
        if all(np.isfinite(one).all() for one in pulled.online.values()):
            self._best_saved, self._next_best = mean, now + _BEST_PERIOD
            arrays = {f"{STORE}{name}/online": np.array(one) for name, one in pulled.online.items()}
            self._saver.save_best(pulled.counters.env_steps, arrays, mean)

    def save(self, exit_reason: str) -> None:
        """Writes a checkpoint and the summary beside the training; where that fails it says so, and the run goes on."""
        self._learner.settle()  # so that parameters, averages and counts are of one moment
        try:
            state = self._store.state()
        except RunError as error:
            if exit_reason != "running":
                raise
            self._progress.say(f"could not save: {error}; the run goes on without this checkpoint")
            return
        self._save(state, self.values(), exit_reason)

    def save_copy(self, state: Mapping[str, np.ndarray], values: dict[str, Any], exit_reason: str) -> str:
        """Ends with a checkpoint of what was read before, as the store is out of reach. Returns as `finish` does.

        Args:
          values: as of `values`, of when `state` was read.
        """
        self._save(state, values, exit_reason)
        return self._close()

    def _save(self, state: Mapping[str, np.ndarray], values: dict[str, Any], exit_reason: str) -> None:
        counters = saved_counters(state)
        arrays: dict[str, np.ndarray] = {}
        if all(np.isfinite(array).all() for array in state.values()):
            self._saved_steps = counters.env_steps
            self.keep(state, values)
            arrays = {f"{STORE}{name}": array for name, array in state.items()}
        self._saver.save(counters.env_steps, arrays, values, self.summary(counters, exit_reason))

    def values(self) -> dict[str, Any]:
        """What a checkpoint holds beside the store's state, for JSON."""
        return {
            "wall_seconds": self.wall_seconds,
            "clock": [_boot_id(), time.monotonic()],
            "num_episodes": self._num_episodes,
            "episode_rows": self._num_rows,
            "episodes": self._tracker.state(),
            "faults": self._faults(),
            "roles": {"receivers": self._num_receivers, "missed": self._missed},
        }

    def summary(self, counters: Counters, exit_reason: str) -> dict[str, Any]:
        """What summary.json says."""
        wall = max(self.wall_seconds, 1e-9)
        solved_at = self._tracker.solved_at or (None, None)
        faults = self._faults()
        ended = exit_reason != "running"  # the chief leaves after the last summary
        return {
            "env_steps": counters.env_steps,
            "frames": counters.env_steps * self._frame_skip,
            "updates": counters.updates,
            "minibatches": counters.minibatches,
            "episodes": self._num_episodes,
            "wall_seconds": round(wall, 3),
            "steps_per_second": round(counters.env_steps / wall, 3),
            "updates_per_second": round(counters.updates / wall, 3),
            "mean_return_100": round(self._tracker.mean, 4),
            "best_mean_return_100": round(self._tracker.best, 4),
            "solved_at_seconds": solved_at[0],
            "solved_at_steps": solved_at[1],
            "staleness_mean": round(mean_staleness(counters, self._per_update), 4),
            "staleness_max": counters.staleness_max,
            "updates_dropped": counters.dropped,
            "data_age_mean": round(counters.age_sum / counters.received if counters.received else math.nan, 4),
            "steps_received": counters.received,
            "nonfinite": counters.nonfinite,
            "bad_values": counters.bad_values,
            "num_ps": self._config.num_ps,
            "num_workers": self._config.num_workers,
            "worker_restarts": faults["restarts_before"] + faults["restarts"],
            "ps_recoveries": faults["ps_recoveries"],
            "steps_lost": faults["steps_lost"],
            "workers": [
                {
                    "state": "done" if ended and worker is self._workers[0] else worker.state,
                    "env_steps": worker.counters.env_steps,
                    "minibatches": worker.counters.minibatches,
                }
                for worker in self._workers
            ],
            "exit_reason": exit_reason,
        }

    def finish(self, exit_reason: str) -> str:
        """Writes the last row, the last checkpoint and the summary. Gives what could not be saved, and why; or ""."""
        self._is_ending = True
        counters = self.log()
        self._say_what_is_lost(counters)
        self.save(exit_reason)
        return self._close()

    def _close(self) -> str:
        unsaved = self._saver.finish()
        self._metrics.close()
        self._episodes.close()
        self._tensorboard.close()
        return unsaved

    def _say_what_is_lost(self, counters: Counters) -> None:
        """Of experience that crosses queues."""
        number = self._num_receivers
        missing = counters.env_steps * number - counters.received - self._missed
        if missing > 0:
            receivers = f"the planners (added up over all {number})" if self._config.has_planners else "the learner"
            self._progress.say(f"the experience of {missing:,} agent steps has not reached {receivers}")


def _boot_id() -> str:
    """Says whether two processes share a monotonic clock: the one clock that cannot jump."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _as_int(cell: str) -> int:
    """A cell of a file that may have been damaged: 0 where it is no number."""
    return int(cell) if cell.isascii() and cell.isdigit() else 0


def _as_report(row: Mapping[str, str]) -> EpisodeReport | None:
    try:
        return episode_report([row[name] for name in EpisodeReport._fields])
    except (KeyError, ValueError):  # a file that may have been damaged
        return None
