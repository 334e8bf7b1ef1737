"""Writes checkpoints, summaries and the best networks so far, in a thread beside the training."""

import concurrent.futures
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from async_dqn.base.background import Background
from async_dqn.run import checkpoints
from async_dqn.run.directory import RunDirectory

_DEADLINE = 60.0  # seconds that the last checkpoint may take


class Saver:
    """Writes one thing after the other. Where that fails it says so, and training goes on.

    Args:
      run: where to write.
      keep_checkpoints: so many stay.
      say: takes a line for the terminal.
    """

    def __init__(self, run: RunDirectory, keep_checkpoints: int, say: Callable[[str], object]):
        self._run, self._keep, self._say = run, keep_checkpoints, say
        self._run_id = run.run_id()
        self._writer = Background("checkpoints")
        self._writing: concurrent.futures.Future | None = None
        self._writing_best: concurrent.futures.Future | None = None
        self._unsaved = ""  # what the newest save left out, and why

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    @property
    def is_busy_with_best(self) -> bool:
        """Whether the best networks are being written."""
        return self._writing_best is not None and not self._writing_best.done()

    def save(
        self, number: int, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], summary: Mapping[str, Any]
    ) -> None:
        """Writes a checkpoint of `number` agent steps, and the summary.

        Args:
          arrays: none where the parameters are not finite; the checkpoints before it stay then.
        """
        self._writing = self._writer.submit(self._write, number, arrays, values, dict(summary))

    def save_best(self, number: int, arrays: Mapping[str, np.ndarray], mean: float) -> None:
        """Writes networks of this mean return in place of the best so far."""
        self._writing_best = self._writer.submit(self._write_best, number, arrays, mean)

    def best_mean(self) -> float:
        """The mean return that the best networks of an earlier part of the run were saved for."""
        found, _ = checkpoints.load_newest(self._run.best)
        mean = found.values.get("mean_return_100") if found else None
        return float(mean) if isinstance(mean, (int, float)) else -math.inf  # somebody may have put another one there

    def finish(self) -> str:
        """Returns once all is written, or its time is up: what could not be saved, and why; or ""."""
        if self._writing:
            try:
                self._writing.result(_DEADLINE)
            except concurrent.futures.TimeoutError:  # not the builtin one before Python 3.11
                self._unsaved = f"the last checkpoint is not on disk after {_DEADLINE:.0f} s"
        self._writer.close()
        return self._unsaved

    def _fault(self) -> str:
        """Why nothing may be written: somebody has removed the folder, and perhaps begun another run there."""
        is_own = self._run.run_id() == self._run_id
        return "" if is_own else f"{self._run.path} is not the folder of this run any more, so nothing is saved there"

    def _write(
        self, number: int, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], summary: dict[str, Any]
    ) -> None:
        self._unsaved = self._fault()
        if self._unsaved:
            if summary["exit_reason"] == "running":
                self._say(f"warning: {self._unsaved}")
            return
        try:
            if not arrays:
                raise ValueError("the parameters are not finite")
            checkpoints.save(self._run.checkpoints, number, arrays, values, keep=self._keep)
        except (OSError, ValueError) as error:
            self._unsaved = f"the checkpoint could not be saved: {error}"
            if summary["exit_reason"] == "running":
                self._say(f"could not save: {error}; the run goes on without this checkpoint")
            else:
                reason = summary["exit_reason"].removeprefix("failed: ")
                summary["exit_reason"] = f"failed: {reason}, but {self._unsaved}"
        try:
            self._run.write_summary(summary)
        except OSError as error:
            self._unsaved = self._unsaved or f"the summary could not be written: {error}"
            if summary["exit_reason"] == "running":
                self._say(f"could not write the summary: {error}")

    def _write_best(self, number: int, arrays: Mapping[str, np.ndarray], mean: float) -> None:
        if self._fault():
            return
        try:
            checkpoints.save(self._run.best, number, arrays, {"mean_return_100": mean}, keep=1)
        except (OSError, ValueError) as error:
            self._say(f"could not save the best networks so far: {error}; the run goes on without")
