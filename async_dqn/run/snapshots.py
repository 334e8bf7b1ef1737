"""What a worker keeps of itself on disk: its state, its replay, and where its environments stand.

The state is small and saved every `--checkpoint_period`; a rollout is part of it. Replay is streamed all the time.
After a stop in order both agree, and the worker goes on exactly where it was, in the middle of its games. After a crash
replay is the newer, and the environments begin new games. Without a replay the worker goes on from its last state; but
an actor whose steps crossed to a learner begins new games after a crash, so that it does not send the same ones again.
"""

import concurrent.futures
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from async_dqn.base.background import Background
from async_dqn.data import replay_segments
from async_dqn.data.replay_log import ReplayLog
from async_dqn.envs.vector_env import NoEnvironments, VectorEnv
from async_dqn.run import checkpoints
from async_dqn.run.actor import Actor
from async_dqn.run.directory import RunDirectory
from async_dqn.run.resume import load_newest
from async_dqn.run.separate import SendingActor, SeparateLearner
from async_dqn.settings.config import Config

_KEEP = 2
_ENVIRONMENT = "environment/"


class Snapshots:
    """One worker's way to disk and back.

    Args:
      run_id: what is found of another run is not used.
      part: this worker's own.
      say: takes a line on what was found or went wrong.
    """

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        worker: int,
        *,
        run_id: int,
        part: Actor | SeparateLearner,
        say: Callable[[str], None],
    ):
        self._run_id, self._part = run_id, part
        self._ring = part.experience.ring
        self._period = config.checkpoint_period
        self._say = say
        self._directory = run.worker(worker) / "snapshots"
        self._replay_directory = run.worker(worker) / "replay"
        self._keeps_replay = self._ring is not None and getattr(config, "checkpoint_replay", True)
        takes_over = self._keeps_replay and not config.has_same_replays
        self._orphans = run.orphaned_replays(worker, config.num_learners) if takes_over else []
        self._log: ReplayLog | None = None
        self._env: VectorEnv | NoEnvironments | None = None
        self._seed = 0
        self._environment_arrays: dict[str, np.ndarray] = {}
        self._writer = Background("snapshots")
        self._writing: concurrent.futures.Future | None = None
        # What an actor was stopped with must not be gone on from twice.
        self._next = time.monotonic() + (0 if isinstance(part, SendingActor) else self._period)

    def load(self) -> tuple[int | None, dict[str, int]]:
        """Puts back what there is of this worker.

        Returns:
          The seed of the environments where these can go on exactly, else None; and the totals last saved.
        """
        added = None
        if self._ring is not None and self._keeps_replay:
            restored = replay_segments.restore(
                self._ring, [self._replay_directory, *self._orphans], run_id=self._run_id
            )
            for fault in restored.faults:
                self._say(f"warning: {fault}")
            if restored.num_slots:
                self._say(f"replay is there again: {restored.num_slots:,} observations")
            # Where nothing was ever added, there is no log either.
            added = restored.added if restored.num_slots else self._ring.added
            self._log = ReplayLog(
                self._replay_directory,
                self._ring,
                run_id=self._run_id,
                warn=self._say,
                after=restored,
                replaces=self._orphans,
            )
        snapshot = load_newest(self._directory, self._say)
        if snapshot is None or snapshot.values.get("run_id") != self._run_id:
            return None, {}
        values = snapshot.values
        arrays = {name: array for name, array in snapshot.arrays.items() if not name.startswith(_ENVIRONMENT)}
        self._environment_arrays = {
            name.removeprefix(_ENVIRONMENT): array
            for name, array in snapshot.arrays.items()
            if name.startswith(_ENVIRONMENT)
        }
        try:
            if isinstance(self._part, SendingActor):
                in_episode = values["was_stopped"]
            else:
                in_episode = self._ring is None or (added is not None and added.tolist() == values["replay_added"])
            self._part.restore(arrays, values["agent"], in_episode=in_episode)
        except (KeyError, TypeError, ValueError) as error:
            self._say(f"warning: the snapshot of this worker is not used: {error}")
            return None, {}
        return values["environment_seed"] if in_episode else None, values["totals"]

    def begin(self, env: VectorEnv | NoEnvironments, seed: int, *, in_episode: bool) -> None:
        """Begins to save; brings the environments to where they stood, or to the start of new games."""
        self._env, self._seed = env, seed
        if in_episode:
            self._say("bringing the environments to where they stood")
            try:
                env.restore(self._environment_arrays)
                return
            except ValueError as error:
                self._say(f"the environments begin new games: {error}")
        self._part.reset(env.reset())

    def tick(self, totals: Mapping[str, int]) -> None:
        """Does what is due; called after every step of the run loop. `totals` are kept for `load`."""
        if self._log:
            self._log.append()
        if time.monotonic() >= self._next and (self._writing is None or self._writing.done()):
            self._next = time.monotonic() + self._period
            self._writing = self._writer.submit(self._write, *self._state(totals, was_stopped=False))

    def finish(self, totals: Mapping[str, int], deadline: float) -> None:
        """Saves everything as it stands, within `deadline` seconds."""
        begin = time.monotonic()
        if self._log and not self._log.flush(deadline):
            self._say("warning: the newest part of replay is not on disk")
        writing = self._writer.submit(self._write, *self._state(totals, was_stopped=True))
        try:
            writing.result(max(1.0, deadline - (time.monotonic() - begin)))
        except concurrent.futures.TimeoutError:  # not the builtin one before Python 3.11
            self._say("warning: the disk is too slow for the last snapshot of this worker")

    def close(self) -> None:
        """Ends the threads, which hold the replay."""
        if self._log:
            self._log.close()
        self._writer.close()

    def _state(
        self, totals: Mapping[str, int], *, was_stopped: bool
    ) -> tuple[int, dict[str, np.ndarray], dict[str, Any]]:
        assert self._env is not None, "begin() comes first"
        arrays, agent_values = self._part.state()
        arrays = arrays | {f"{_ENVIRONMENT}{name}": array for name, array in self._env.state().items()}
        values = {
            "run_id": self._run_id,
            "agent": agent_values,
            "totals": dict(totals),
            "was_stopped": was_stopped,
            "environment_seed": self._seed,
            "replay_added": [] if self._ring is None else self._ring.added.tolist(),
        }
        return totals["env_steps"] + totals["minibatches"], arrays, values  # one of which grows in every part

    def _write(self, number: int, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
        try:
            checkpoints.save(self._directory, number, arrays, values, keep=_KEEP)
        except (OSError, ValueError) as error:
            self._say(f"could not save the snapshot of this worker: {error}; going on without")
