"""The progress line of a run."""

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO


def format_seconds(seconds: float) -> str:
    """1:02:03, or 2:03; a dash where it is not known."""
    if not math.isfinite(seconds):
        return "-"
    hours, rest = divmod(int(seconds), 3600)
    minutes, second = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{second:02d}" if hours else f"{minutes}:{second:02d}"


def progress_line(row: Mapping[str, Any], total_steps: int) -> str:
    """One line on where a run stands, from a row of its global metrics."""
    steps, rate = int(row["env_steps"]), row["steps_per_second"]
    left = (total_steps - steps) / rate if rate > 0 else float("inf")
    mean, staleness = row["mean_return_100"], row["staleness_mean"]
    parts = [
        f"{steps:,}/{total_steps:,} steps ({100 * steps / total_steps:.0f}%)",
        f"{rate:.0f} steps/s",
        f"{row['updates_per_second']:.0f} updates/s",
        "return -" if math.isnan(mean) else f"return {mean:.1f} ({min(int(row['episodes']), 100)} games)",
        f"epsilon {row['epsilon']:.2f}",
        "staleness -" if math.isnan(staleness) else f"staleness {staleness:.1f}",
        f"{format_seconds(row['wall_seconds'])} gone, {format_seconds(left)} left",
    ]
    return " | ".join(parts)


class Progress:
    """Shows the newest line: rewritten in place on a terminal, one every `plain_period` seconds elsewhere.

    Args:
      name: who is speaking, in front of every line that stays.
    """

    def __init__(self, stream: TextIO | None = None, plain_period: float = 30.0, name: str = ""):
        self._prefix = f"{name}: " if name else ""
        self._stream = stream or sys.stdout
        self._plain_period = plain_period
        self._in_place = self._stream.isatty()
        self._shown_at = -math.inf
        self._width = 0

    def show(self, line: str) -> None:
        """Shows where the run stands."""
        now = time.monotonic()
        if self._in_place:
            line = line[: shutil.get_terminal_size().columns - 1]  # a wrapped line could not be rewritten
            self._write("\r" + line.ljust(self._width))
            self._width = len(line)
        elif now - self._shown_at >= self._plain_period:
            self._write(line + "\n")
            self._shown_at = now

    def say(self, line: str) -> None:
        """Writes a line that stays, above the progress line."""
        if self._in_place and self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0
        self._write(f"{self._prefix}{line}\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a log on a full disk, a terminal that was closed
            self._stream.write(text)
            self._stream.flush()
