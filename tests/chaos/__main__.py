"""Plays rounds one after another: `python -m chaos --rounds=50`, by way of launch/chaos.sh."""

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from async_dqn.base.quiet import quiet_stderr
from chaos import mounts

_NO_MOUNTS = mounts.enter()  # before TensorFlow is imported, which takes seconds
with quiet_stderr():
    from chaos import invariants, report
    from chaos.rounds import Hang, Settings
    from chaos.scenarios import SCENARIOS, Scenario, make_round, play


def play_round(
    scenario: Scenario, number: int, repetition: int, seed: int, settings: Settings, folder: Path
) -> report.Result:
    """One round, in a folder that stays if something did not hold."""
    result = report.Result(number, scenario.name, scenario.kind, repetition)
    if scenario.needs_mounts and _NO_MOUNTS:
        result.is_skipped, result.notes = True, [_NO_MOUNTS]
        return result
    begin = time.monotonic()
    with contextlib.closing(make_round(scenario, f"{seed}/{repetition}", settings, folder)) as round_:
        try:
            result.violations = play(scenario, round_)
        except Hang as hang:
            result.is_hang = True
            result.violations = [f"hang: {hang}", *invariants.odd_lines(round_)]
        except Exception as error:  # as where a file that a check reads is not there: the other rounds go on
            result.violations = [f"could not be checked: {error!r}", *invariants.odd_lines(round_)]
        result.unreadable = len(invariants.unreadable(round_))
        result.steps_lost = round_.summary().get("steps_lost", 0)
        if result.violations and scenario.needs_mounts:  # what lies on a disk of its own goes with it
            shutil.copytree(round_.run.path, folder / "kept", dirs_exist_ok=True)
    if not result.violations:
        shutil.rmtree(folder)
    result.recoveries = [round(seconds, 2) for seconds in round_.recoveries]
    result.seconds = round(time.monotonic() - begin, 1)
    sizes = f"{round_.num_ps} ps, {round_.num_workers} workers"
    result.notes = [*round_.notes, sizes, " ".join(round_.mode)]
    return result


def main() -> int:
    """Gives the exit code: 0 if everything held in every round."""
    parser = argparse.ArgumentParser(prog="launch/chaos.sh", description="Faults of all kinds in whole runs.")
    parser.add_argument("--rounds", type=int, default=len(SCENARIOS), help="how many; %(default)s are all scenarios")
    parser.add_argument("--seed", type=int, default=0, help="decides everything that is drawn")
    parser.add_argument("--env", default=Settings().env, help="the environment; others than %(default)s take longer")
    parser.add_argument("--output", type=Path, help="folder for chaos.md, chaos.json and what is kept of bad rounds")
    parser.add_argument("--only", help="play the scenarios alone whose name begins so")
    arguments = parser.parse_args()
    chosen = [scenario for scenario in SCENARIOS if scenario.name.startswith(arguments.only or "")]
    if not chosen:
        parser.error(f"--only={arguments.only}: must begin one of {', '.join(one.name for one in SCENARIOS)}")
    if arguments.rounds < 1:
        parser.error(f"--rounds={arguments.rounds}: must be at least 1")
    output = (arguments.output or Path(tempfile.mkdtemp(prefix="chaos-"))).absolute()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output={output}: {error.strerror}; give another folder")
    if any(output.iterdir()):
        parser.error(f"--output={output} already holds files; give another folder")
    settings = Settings.of(arguments.env)
    for ending in (signal.SIGINT, signal.SIGTERM):  # ends what the round has started, also where a shell ignores them
        signal.signal(ending, signal.default_int_handler)
    origin = report.describe(["launch/chaos.sh", *sys.argv[1:]])
    results: list[report.Result] = []
    played: Counter[str] = Counter()
    begin = time.monotonic()
    print(f"{arguments.rounds} rounds of {len(chosen)} scenarios; what fails is kept in {output}", flush=True)
    for number in range(1, arguments.rounds + 1):
        scenario = chosen[(number - 1) % len(chosen)]
        repetition, played[scenario.name] = played[scenario.name], played[scenario.name] + 1
        folder = output / "rounds" / f"{number:03d}-{scenario.name}"
        result = play_round(scenario, number, repetition, arguments.seed, settings, folder)
        results.append(result)
        left = (time.monotonic() - begin) / number * (arguments.rounds - number)
        recovery = f", recovered in {max(result.recoveries):.1f} s" if result.recoveries else ""
        print(
            f"[{number:3d}/{arguments.rounds}] {result.verdict:7s} {scenario.name}: {result.seconds:.0f} s"
            f"{recovery} ({'; '.join(filter(None, result.notes))}); {left / 60:.0f} min left",
            flush=True,
        )
        for violation in result.violations:
            print(f"          {violation}", flush=True)
        if result.violations:
            print(f"          kept in {folder}", flush=True)
        report.write(output, results, origin)
    print(f"\n{report.markdown(results, origin)}")
    return 0 if all(result.verdict in ("ok", "skipped") for result in results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; chaos.md and chaos.json hold the rounds before", flush=True)
        sys.exit(130)
