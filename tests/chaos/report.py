"""Results of many rounds: a line on each, one table, and where they come from."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from async_dqn.tools import machine


@dataclass
class Result:
    """What came out of one round."""

    number: int
    scenario: str
    kind: str
    repetition: int
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)  # seconds, one for each fault
    is_hang: bool = False
    is_skipped: bool = False
    unreadable: int = 0
    steps_lost: int = 0
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """One word."""
        if self.is_skipped:
            return "skipped"
        return "hang" if self.is_hang else "failed" if self.violations else "ok"


_COLUMNS = (
    "fault",
    "rounds",
    "finished as promised",
    "hangs",
    "unreadable checkpoints",
    "steps lost at most",
    "seconds to recover: median",
    "max",
)


def _row(name: str, results: Sequence[Result]) -> list[str]:
    recoveries = [seconds for result in results for seconds in result.recoveries]
    return [
        name,
        str(len(results)),
        str(sum(result.verdict == "ok" for result in results)),
        str(sum(result.is_hang for result in results)),
        str(sum(result.unreadable for result in results)),
        str(max((result.steps_lost for result in results), default=0)),
        f"{statistics.median(recoveries):.1f}" if recoveries else "-",
        f"{max(recoveries):.1f}" if recoveries else "-",
    ]


def describe(command: Sequence[str]) -> dict[str, Any]:
    """Versions, machine, date, command."""
    return machine.describe() | {"command": " ".join(command)}


def markdown(results: Sequence[Result], origin: dict[str, Any]) -> str:
    """The table, all violations below it."""
    played = [result for result in results if not result.is_skipped]
    kinds = list(dict.fromkeys(result.kind for result in played))
    table = [list(_COLUMNS), ["---"] + ["---:"] * (len(_COLUMNS) - 1)]
    table += [_row(kind, [result for result in played if result.kind == kind]) for kind in kinds]
    table.append(_row("**all**", played))
    lines = ["# Faults", "", *(f"| {' | '.join(row)} |" for row in table), ""]
    for result in results:
        for violation in result.violations:
            lines.append(f"- round {result.number}, {result.scenario}: {violation}")
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    lines += ["", f"`{origin['command']}`", "", f"{origin['date']}; {origin['cpu']}; {origin['system']}; {versions}"]
    return "\n".join(lines) + "\n"


def write(folder: Path, results: Sequence[Result], origin: dict[str, Any]) -> None:
    """chaos.md and chaos.json."""
    (folder / "chaos.md").write_text(markdown(results, origin))
    described = origin | {"rounds": [asdict(result) | {"verdict": result.verdict} for result in results]}
    (folder / "chaos.json").write_text(json.dumps(described, indent=2) + "\n")
