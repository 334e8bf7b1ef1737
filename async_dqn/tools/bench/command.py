"""`async-dqn bench`: measures all cases in turn, again and again, and makes one report of it."""

import contextlib
import dataclasses
import importlib
import json
import math
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from async_dqn.base.errors import UserError, one_line
from async_dqn.base.files import write_atomically
from async_dqn.run.progress import Progress, format_seconds
from async_dqn.system.task import INTERRUPTED
from async_dqn.tools.bench import machine, tables
from async_dqn.tools.bench.case import Case
from async_dqn.tools.bench.work import PEER_WORK, Plan, settings

SECTIONS = ("programs", "parts", "limit", "scale", "learning")  # each a module here with `cases(plan)`
PEERS = ("none", "sb3")  # those of `peer.PEERS`, which takes seconds to import
_SHOW_PERIOD = 5.0  # seconds between two lines of progress, where they cannot be rewritten
_END_DEADLINE = 10.0  # seconds that a process left over may take to end well


@dataclasses.dataclass(frozen=True)
class Bench:
    """One call of the command.

    Attributes:
      plan: what is measured.
      sections: names of SECTIONS, in the order in which they are measured.
      repetitions: how often each case is measured.
      output: folder for bench.json and bench.md; new or empty.
      peer: one of PEERS, measured in turn with our programs.
      peer_python: a Python that has what the peer needs; None: one is made.
      soak_minutes: length of a soak at the end; 0: none.

    Raises:
      UserError: at construction, naming the flag, the value and what is allowed.
    """

    plan: Plan
    sections: Sequence[str]
    repetitions: int
    output: Path
    peer: str = "none"
    peer_python: str | None = None
    soak_minutes: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.repetitions <= 1_000:
            raise UserError(f"--repetitions={self.repetitions}: must be 1 to 1000")
        if not 0 <= self.soak_minutes <= 100_000:
            raise UserError(f"--soak_minutes={self.soak_minutes:g}: must be a number of at least 0 and at most 100000")
        if not self.sections and not self.soak_minutes:
            raise UserError("--sections=none: leaves nothing to measure without --soak_minutes")
        if self.peer_python is not None and self.peer == "none":
            raise UserError(f"--peer_python={self.peer_python}: say with --peer whose Python it is")
        if self.peer != "none" and "programs" not in self.sections:
            raise UserError(f"--peer={self.peer}: is measured in the section programs, which --sections leaves out")
        if self.peer != "none" and self.plan.work != PEER_WORK:
            raise UserError(f"--peer={self.peer}: does --work={PEER_WORK} only, not {self.plan.work}")
        _check_output(self.output)


def parse_sections(text: str) -> tuple[str, ...]:
    """The sections of a comma list, () for "none". Raises UserError for one that there is not."""
    if text == "none":
        return ()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in SECTIONS:
            raise UserError(f"--sections={text}: {name!r} is none of {', '.join(SECTIONS)}; give some of them, or none")
    return tuple(dict.fromkeys(names))


def default_output() -> Path:
    """runs/bench-TIME in the current folder."""
    return Path("runs") / f"bench-{time.strftime('%Y%m%d-%H%M%S')}"


def _check_output(output: Path) -> None:
    """Raises UserError unless it is a folder that is empty, or one that can be made."""
    try:
        if output.is_dir() and any(output.iterdir()):
            raise UserError(f"--output={output}: already holds files; give another folder")
        above = next(path for path in (output, *output.absolute().parents) if os.path.lexists(path))
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise UserError(f"--output={output}: {above} is no folder that can be written to; give another one")
    except OSError as error:
        raise UserError(f"--output={output}: {error.strerror}; give another folder") from error


def _try_output(output: Path) -> None:
    """Raises UserError unless it can be made. It is gone again then, as it may be long until there is a result."""
    missing = [path for path in (output, *output.absolute().parents) if not path.exists()]
    try:
        output.mkdir(parents=True, exist_ok=True)
        for path in missing:
            path.rmdir()
    except OSError as error:
        raise UserError(f"--output={output}: {error.strerror}; give another folder") from error


def run_bench(bench: Bench, progress: Progress | None = None) -> int:
    """Measures and reports. Gives the exit code: 0, 1 if anything failed, 130 if interrupted.

    Raises RunError or UserError where a peer cannot be set up or nothing be written, before anything is measured.
    """
    _try_output(bench.output)
    progress = progress or Progress(plain_period=_SHOW_PERIOD)
    stage = Stage(progress)
    bench = dataclasses.replace(bench, plan=dataclasses.replace(bench.plan, say=stage.say))
    with _processes_ended():
        data = _begin(bench, progress)
        try:
            cases = make_cases(bench, progress.say, data["origin"])
            data["plan"]["measurements"] = bench.repetitions * len(cases)
            for result in measure_in_turn(cases, bench.repetitions, stage):
                data["results"].append(result)
                write(bench.output, data)
                if "error" in result:
                    progress.say(f"failed: {result['section']}: {result['name']}: {result['error']}")
            if bench.soak_minutes:
                stage.enter(f"soak of {bench.soak_minutes:g} minutes")
                data["soak"] = soak(bench)
        except KeyboardInterrupt:
            data["interrupted"] = True
            progress.say("interrupted; ending what still runs")
    if data["results"] or "soak" in data:
        write(bench.output, data)
        progress.say(f"\n{tables.report(data)}\nwritten to {bench.output / 'bench.md'} and bench.json")
    return exit_code(data)


def exit_code(data: Mapping[str, Any]) -> int:
    """130 if interrupted, 1 if anything failed, else 0."""
    if data.get("interrupted"):
        return INTERRUPTED
    return int(any("error" in result for result in (*data["results"], data.get("soak", {}))))


def _begin(bench: Bench, progress: Progress) -> dict[str, Any]:
    """What bench.json says before anything is measured."""
    busy = machine.look()
    for line in busy:
        progress.say(f"warning: the machine is busy, and figures will be off: {line}")
    plan = {
        "work": bench.plan.work,
        "quick": bench.plan.is_quick,
        "seconds": bench.plan.seconds,
        "settings": {name: str(value) if value == math.inf else value for name, value in settings(bench.plan).items()},
        "sections": list(bench.sections),
        "repetitions": bench.repetitions,
        "measurements": 0,
    }
    return {"origin": machine.describe(), "busy": busy, "plan": plan, "results": []}


def make_cases(bench: Bench, say: Callable[[str], None], origin: dict[str, Any]) -> list[Case]:
    """All cases, in the order in which they are measured; a peer's versions go into `origin`."""
    cases: list[Case] = []
    for section in bench.sections:
        cases += importlib.import_module(f"async_dqn.tools.bench.{section}").cases(bench.plan)
        if section == "programs" and bench.peer != "none":
            from async_dqn.tools.bench import peer

            chosen = peer.PEERS[bench.peer]
            given = bench.peer_python
            python = Path(given) if given else peer.ensure_environment(chosen, peer.default_folder(chosen), say)
            origin["peers"] = {chosen.title: peer.versions(chosen, python)}
            cases += peer.cases(chosen, python, bench.plan)
    return cases


def soak(bench: Bench) -> dict[str, Any]:
    """What a soak found, or {"error": why it failed}."""
    try:
        found = importlib.import_module("async_dqn.tools.bench.soak").run(bench.plan, bench.soak_minutes, bench.output)
        return _finite(found)
    except Exception as error:  # what was measured before is worth having all the same
        return {"error": one_line(error)}


def _finite(value: Any) -> Any:
    """The same, with None for each number that JSON does not have."""
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Stage:
    """The progress line: which measurement it is, and what is being done for it."""

    def __init__(self, progress: Progress):
        self._progress = progress
        self._header = ""

    def enter(self, header: str) -> None:
        """The next measurement begins."""
        self._header = header
        self._progress.show(header)

    def say(self, line: str) -> None:
        """Something begins within it."""
        self._progress.show(f"{self._header} | {line}")


def measure_in_turn(
    cases: Sequence[Case], repetitions: int, stage: Stage, clock: Callable[[], float] = time.monotonic
) -> Iterator[dict[str, Any]]:
    """Measures every case once, then all of them again, so that whatever slows the machine meets all alike.

    Gives a result for each measurement: "section", "name", "repetition", "seconds" that it took, "others": cores that
    other processes took meanwhile, and "values", or "error": why it failed.
    """
    begin = clock()
    durations: dict[Case, list[float]] = {}
    order = [(repetition, case) for repetition in range(repetitions) for case in cases]
    for number, (repetition, case) in enumerate(order):
        left = seconds_left(durations, [later for _, later in order[number:]])
        stage.enter(
            f"{number + 1} of {len(order)}: {case.section}: {case.name} | "
            f"{format_seconds(clock() - begin)} gone, {format_seconds(left)} left"
        )
        others, started = machine.Others(), clock()
        outcome: dict[str, Any]
        try:
            values = case.measure()
            outcome = {"values": {what: float(value) for what, value in values.items() if math.isfinite(value)}}
        except Exception as error:  # the other cases are worth having all the same
            outcome = {"error": one_line(error)}
        durations.setdefault(case, []).append(clock() - started)
        yield {
            "section": case.section,
            "name": case.name,
            "repetition": repetition,
            "seconds": round(durations[case][-1], 3),
            "others": round(sum(others.cores().values()), 3),
        } | outcome


def seconds_left(durations: Mapping[Case, Sequence[float]], cases: Sequence[Case]) -> float:
    """How long `cases` will take, by what each took so far, or else all did on average; inf: nothing is known yet."""
    if not durations:
        return math.inf
    average = statistics.mean(seconds for all_of_it in durations.values() for seconds in all_of_it)
    return sum(statistics.mean(durations.get(case, [average])) for case in cases)


def write(output: Path, data: Mapping[str, Any]) -> None:
    """Writes bench.json, and bench.md which is made from it alone."""
    output.mkdir(parents=True, exist_ok=True)
    write_atomically(output / "bench.json", json.dumps(data, indent=1, allow_nan=False).encode() + b"\n")
    write_atomically(output / "bench.md", tables.report(data).encode())


@contextlib.contextmanager
def _processes_ended() -> Iterator[None]:
    """Ends on the way out whatever was started within and still runs. The first signal is a KeyboardInterrupt.

    A second one ends everything at once.
    """
    mine = psutil.Process()
    before = {child.pid for child in mine.children(recursive=True)}
    num_signals = 0

    def left() -> list[psutil.Process]:
        return [child for child in mine.children(recursive=True) if child.pid not in before]

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal num_signals
        del number, frame
        num_signals += 1
        if num_signals > 1:
            _each(left(), psutil.Process.kill)
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        remaining = left()
        _each(remaining, psutil.Process.terminate)
        _, alive = psutil.wait_procs(remaining, _END_DEADLINE)
        _each(alive, psutil.Process.kill)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _each(processes: Sequence[psutil.Process], action: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            action(process)
