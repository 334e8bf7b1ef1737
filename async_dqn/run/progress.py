"""The progress line of a run, and the table below it."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TextIO

from async_dqn.agents.goals import steps_to_goal
from async_dqn.settings.config import Config


def format_seconds(seconds: float) -> str:
    """1:02:03, or 2:03; a dash where it is not known."""
    if not math.isfinite(seconds):
        return "-"
    hours, rest = divmod(int(seconds), 3600)
    minutes, second = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{second:02d}" if hours else f"{minutes}:{second:02d}"


def count(number: int, what: str) -> str:
    """1 restart, 2 restarts, 3 processes."""
    plural = "es" if what.endswith("s") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"


def progress_line(
    row: Mapping[str, Any],
    total_steps: int,
    goal: float = math.inf,
    needed: tuple[int, int] | None = None,
    *,
    has_ended: bool = False,
) -> str:
    """One line on where a run stands, from a row of its global metrics.

    Args:
      row: epsilon, entropy and staleness are shown where it has them, as not every agent does.
      goal: the mean return at which it ends before the budget is spent; inf: there is none.
      needed: the least and the most agent steps that past runs needed to the goal; None: not known.
      has_ended: no time is left then.
    """
    steps, rate, mean = int(row["env_steps"]), row["steps_per_second"], row["mean_return_100"]
    has_goal = math.isfinite(goal)
    parts = [
        f"{steps:,}/{total_steps:,} steps ({100 * steps / total_steps:.0f}%)",
        f"{rate:.0f} steps/s",
        f"{row['updates_per_second']:.0f} updates/s",
        f"return {_known(mean, '.1f')}"
        + (f" of {goal:g}" if has_goal else "")
        + ("" if math.isnan(mean) else f" ({min(int(row['episodes']), 100)} games)"),
    ]
    parts += [f"{name} {row[name]:.2f}" for name in ("epsilon", "entropy") if not math.isnan(row.get(name, math.nan))]
    if "staleness_mean" in row:
        parts.append(f"staleness {_known(row['staleness_mean'], '.1f')}")
    parts.append(f"{format_seconds(row['wall_seconds'])} gone")
    if not has_ended:
        is_learning = row.get("updates", 0) > 0  # before it, the speed is another one
        parts[-1] += f", {_left(steps, rate, total_steps, has_goal, needed if is_learning else None)} left"
    return " | ".join(parts)


def progress_of(row: Mapping[str, Any], config: Config) -> str:
    """The progress line of a run with these settings."""
    return progress_line(row, config.total_steps, config.stop_at_return, steps_to_goal(config))


def end_line(summary: Mapping[str, Any]) -> str:
    """One line on what came of a run that has ended, from its summary.json."""
    mean, reason = summary["mean_return_100"], summary["exit_reason"]
    if reason == "running":
        reason = "ended without its end being saved; this is what was saved last"
    return (
        f"{reason}: {summary['env_steps']:,} agent steps, {summary['minibatches']:,} minibatches, "
        f"{summary['episodes']:,} games in {format_seconds(summary['wall_seconds'])}; "
        f"mean return of the last 100 games: {'-' if mean is None else mean}"
    )


def _left(steps: int, rate: float, total_steps: int, has_goal: bool, needed: tuple[int, int] | None) -> str:
    """The time to the goal, while past runs say when that is likely; else to the end of the budget."""
    to_end = (total_steps - steps) / rate if rate > 0 else math.inf
    if needed is None or not steps < min(needed[1], total_steps) or not needed[0] < total_steps or not rate > 0:
        return f"{'at most ' if has_goal else ''}{format_seconds(to_end)}"
    least, most = (format_seconds(max(0, min(end, total_steps) - steps) / rate) for end in needed)
    if needed[0] <= steps:
        return f"likely up to {most}"
    return f"likely {least} to {most}" if least != most else f"likely about {most}"


def _known(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


class Progress:
    """Shows the newest line: rewritten in place on a terminal, one every `plain_period` seconds elsewhere.

    Any thread may call it.

    Args:
      name: who is speaking, in front of every line that stays.
      plain: nothing is rewritten on a terminal either.

    Attributes:
      is_in_place: whether the newest line takes the place of the one before.
    """

    _open: ClassVar[Progress | None] = None  # whose line is shown in place now

    def __init__(
        self, stream: TextIO | None = None, plain_period: float = 30.0, name: str = "", *, plain: bool = False
    ):
        self._prefix = f"{name}: " if name else ""
        self._stream = stream or sys.stdout
        self._plain_period = plain_period
        self.is_in_place = self._stream.isatty() and os.environ.get("TERM") != "dumb" and not plain
        self._lock = threading.Lock()  # guards what follows, and the order of what is written
        self._shown_at = -math.inf
        self._wipe = ""  # what removes the lines that are shown in place

    def show(self, line: str, below: Sequence[str] = ()) -> None:
        """Shows where the run stands; in place also what is `below`, a few lines that change with it."""
        with self._lock:
            now = time.monotonic()
            if self.is_in_place:
                size = shutil.get_terminal_size()
                lines = [line, *below] if len(below) < size.lines else [line]
                # A line that the terminal wraps could not be rewritten.
                self._write(self._wipe + "\n".join(text[: size.columns - 1] for text in lines))
                up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
                self._wipe = f"\r{up}\x1b[J"  # to the first of the lines, and wipe to the end of the screen
                Progress._open = self
            elif now - self._shown_at >= self._plain_period:
                self._write(line + "\n")
                self._shown_at = now

    def say(self, line: str) -> None:
        """Writes a line that stays, above the progress line; below that of another object."""
        if Progress._open is not self:
            Progress.leave()
        with self._lock:
            self._write(f"{self._wipe}{self._prefix}{line}\n")
            self._wipe, Progress._open = "", None

    @staticmethod
    def leave() -> None:
        """Ends the line that is shown in place, if one is: whatever is written next stands below it."""
        if (shown := Progress._open) is not None:
            with shown._lock:
                shown._write("\n")
                shown._wipe, Progress._open = "", None

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a log on a full disk, a terminal that was closed
            self._stream.write(text)
            self._stream.flush()
