"""`async-dqn bench`: measures all cases in turn, again and again, and makes one report of it."""

import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from async_dqn.base.errors import UserError, one_line
from async_dqn.base.files import write_atomically, write_json
from async_dqn.run.progress import Progress, format_seconds
from async_dqn.system.task import INTERRUPTED
from async_dqn.tools import machine
from async_dqn.tools.bench import peer, soak, tables
from async_dqn.tools.bench.sections import SECTIONS
from async_dqn.tools.bench.work import PEER_WORKS, WORKS, Case, Plan, config


@dataclasses.dataclass(frozen=True)
class Bench:
    """One call of the command.

    Attributes:
      plan: what is measured.
      sections: names of SECTIONS, in the order in which they are measured.
      repetitions: how often each case is measured.
      output: folder for bench.json and bench.md; new or empty.
      peer: "sb3", measured in turn with our programs, or "none".
      soak_minutes: length of a soak at the end; 0: none.

    Raises:
      UserError: at construction, naming the flag, the value and what is allowed.
    """

    plan: Plan
    sections: Sequence[str]
    repetitions: int
    output: Path
    peer: str = "none"
    soak_minutes: float = 0.0

    def __post_init__(self) -> None:
        if not self.sections and not self.soak_minutes:
            raise UserError("--sections=none: leaves nothing to measure without --soak_minutes")
        if self.peer != "none" and "programs" not in self.sections:
            raise UserError(f"--peer={self.peer}: is measured in the section programs, which --sections leaves out")
        if self.peer != "none" and self.plan.work not in PEER_WORKS:
            works = " or ".join(f"--work={name}" for name in PEER_WORKS)
            raise UserError(f"--peer={self.peer}: does {works} only, not {self.plan.work}")
        if "sharing" in self.sections and WORKS[self.plan.work].agent != "dqn":
            raise UserError(f"--sections=sharing: is for DQN, and --work={self.plan.work} is not")


def parse_sections(text: str) -> tuple[str, ...]:
    """The sections of a comma list, () for "none". Raises UserError for one that there is not."""
    names = [] if text == "none" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in SECTIONS:
            raise UserError(f"--sections={text}: {name!r} is none of {', '.join(SECTIONS)}; give some of them, or none")
    return tuple(dict.fromkeys(names))


def run_bench(bench: Bench, progress: Progress | None = None) -> int:
    """Measures and reports. Gives the exit code: 0, 1 if anything failed, 130 if interrupted.

    Raises:
      UserError: the output folder cannot be used.
      RunError: the peer cannot be set up.
    """
    try:
        bench.output.mkdir(parents=True, exist_ok=True)
        if any(bench.output.iterdir()):
            raise UserError(f"--output={bench.output}: already holds files; give another folder")
    except OSError as error:
        raise UserError(f"--output={bench.output}: {error.strerror}; give another folder") from error
    # Who starts it with nohup wants it to outlive the terminal.
    hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []
    for number in (signal.SIGINT, signal.SIGTERM, *hangup):
        signal.signal(number, signal.default_int_handler)
    progress, plan = progress or Progress(plain_period=5.0), bench.plan
    data: dict[str, Any] = {"origin": machine.describe(), "busy": machine.busy(), "results": []}
    data["plan"] = {
        "work": plan.work,
        "quick": plan.is_quick,
        "seconds": plan.seconds,
        "settings": config(plan).to_dict(),
        "sections": list(bench.sections),
        "repetitions": bench.repetitions,
    }
    for line in data["busy"]:
        progress.say(f"warning: the machine is busy, and figures will be off: {line}")
    try:
        cases = make_cases(bench, progress.say, data["origin"])
        data["plan"]["measurements"] = bench.repetitions * len(cases)
        for result in measure_in_turn(cases, bench.repetitions, progress.show):
            data["results"].append(result)
            write(bench.output, data)
            if "error" in result:
                progress.say(f"failed: {result['section']}: {result['name']}: {result['error']}")
        if bench.soak_minutes:
            data["soak"] = _outcome(lambda: soak.run(plan, bench.soak_minutes, bench.output, progress.show))
    except KeyboardInterrupt:
        data["interrupted"] = True
    if data["results"] or "soak" in data:
        write(bench.output, data)
        progress.say(f"\n{tables.report(data)}\nwritten to {bench.output / 'bench.md'} and bench.json")
    has_failed = any("error" in result for result in (*data["results"], data.get("soak", {})))
    return INTERRUPTED if data.get("interrupted") else int(has_failed)


def make_cases(bench: Bench, say: Callable[[str], None], origin: dict[str, Any]) -> list[Case]:
    """All cases, in the order in which they are measured; the peer's versions go into `origin`."""
    cases: list[Case] = []
    for section in bench.sections:
        cases += SECTIONS[section](bench.plan)
        if section == "programs" and bench.peer != "none":
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "async-dqn" / "peers"
            python = peer.ensure_environment(cache, say)
            origin["peers"] = {peer.TITLES[bench.plan.work]: peer.VERSIONS}
            cases += peer.cases(python, bench.plan)
    return cases


def measure_in_turn(cases: Sequence[Case], repetitions: int, show: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Measures every case once, then all of them again, so that whatever slows the machine meets all alike.

    Gives for each measurement "section", "name", "repetition", "seconds" that it took, and "values", or "error": why it
    failed; where ratios are made of it also "others": the share of the cores that other programs took meanwhile. `show`
    takes a line on how far it is.
    """
    begin, total = time.monotonic(), repetitions * len(cases)
    for index in range(total):
        repetition, case = index // len(cases), cases[index % len(cases)]
        started = time.monotonic()
        left = (started - begin) * (total - index) / index if index else math.inf
        times = f"{format_seconds(started - begin)} gone, {format_seconds(left)} left"
        show(f"{index + 1} of {total}: {case.section}: {case.name} | {times}")
        others = machine.Others() if case.section in tables.RATIO_SECTIONS else None
        outcome = _outcome(case.measure)
        if "error" not in outcome:
            outcome = {"values": {what: float(value) for what, value in outcome.items() if math.isfinite(value)}}
        seconds = round(time.monotonic() - started, 3)
        if others:
            outcome["others"] = round(others.share(), 3)
        yield {"section": case.section, "name": case.name, "repetition": repetition, "seconds": seconds, **outcome}


def _outcome(measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """What was measured, or {"error": why that failed}: everything else is worth having all the same."""
    try:
        return dict(measure())
    except Exception as error:
        return {"error": one_line(error)}


def write(output: Path, data: Mapping[str, Any]) -> None:
    """Writes bench.json, and bench.md which is made from it alone."""
    write_json(output / "bench.json", data, indent=1)
    write_atomically(output / "bench.md", tables.report(data).encode())
