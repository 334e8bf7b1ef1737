"""Shows on one terminal how a local run stands, what its processes have to say, and how it has ended."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from async_dqn.base.files import json_object
from async_dqn.run.csv_log import numbers, rows
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress, count, end_line, progress_of
from async_dqn.run.worker_table import read_process, worker_table
from async_dqn.settings.config import Config
from async_dqn.system.task import Task


class Watch:
    """What its files hold when it is made is passed over.

    Args:
      config: the settings of the run.
    """

    def __init__(
        self, run: RunDirectory, servers: Sequence[Task], workers: Sequence[Task], progress: Progress, config: Config
    ):
        self._run, self._workers, self._tasks = run, workers, [*servers, *workers]
        self._progress, self._config = progress, config
        self._row: list[dict[str, str]] = []
        with contextlib.suppress(OSError):
            self._row = rows(run.metrics, 1)
        self._logs = [(task.name, _Tail(task.log)) for task in self._tasks if task.log]

    def look(self) -> None:
        """Shows what is new."""
        for name, log in self._logs:
            for line in log.read():
                if line.startswith(f"{name}: ") and (line.startswith("worker") or "lost" in line):
                    self._progress.say(line)
        with contextlib.suppress(OSError, KeyError, ValueError):  # a file that may be out of reach, or damaged
            row = rows(self._run.metrics, 1)
            if row and row != self._row:
                self._row = row
                line = progress_of(numbers(row[0]), self._config)
                self._progress.show(line, self._table() if self._progress.is_in_place else ())

    def report(self, *, has_summary: bool) -> None:
        """Says how each process has ended, and what came of the run.

        Args:
          has_summary: whether summary.json is of this run, and not of one that it goes on from.
        """
        for task in self._tasks:
            restarts = f" after {count(task.restarts, 'restart')}" if task.restarts else ""
            self._progress.say(f"{task.name}: exit code {task.code}{restarts}")
        for task in self._tasks:
            if task.has_failed and task.log:
                self._progress.say(f"{task.name} failed: {task.last_line()} (see {task.log})")
        summary = json_object(self._run.summary) if has_summary else None
        if summary is None:
            self._progress.say("no summary was written")
            return
        self._progress.say(end_line(summary))

    def _table(self) -> list[str]:
        """A line on each worker."""
        files = [self._run.worker(index) / "metrics.csv" for index in range(len(self._workers))]
        return worker_table(
            [(task.name, _state(task), read_process(file)) for task, file in zip(self._workers, files, strict=True)]
        )


def _state(task: Task) -> str:
    if task.is_running:
        return "frozen" if task.is_frozen else "running"
    return f"ended ({task.code})" if task.is_over else "starts again"


class _Tail:
    """The whole lines that a file grows by; what it holds at the start is passed over."""

    def __init__(self, path: Path):
        self._path = path
        self._position = 0
        with contextlib.suppress(OSError):
            self._position = os.path.getsize(path)

    def read(self) -> list[str]:
        """The lines since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._position)
                content = file.read()
        except OSError:  # it is not there yet, or out of reach for a moment
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.decode(errors="replace").splitlines()
