"""What has to hold after a round."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from async_dqn.run import checkpoints
from async_dqn.run.resume import STORE
from async_dqn.store.base import Counters, saved_counters
from chaos.rounds import Round

_IN_FLIGHT = 200  # steps a worker may have claimed or done since the last row, of which no row tells
_SAVING = 3.0  # seconds: a checkpoint is due late, and is written
_ODD = re.compile(r"Traceback|^async-dqn: [A-Za-z]*(Error|Exception|Outage|LostStep) at|^Exception in thread", re.M)


def odd_lines(round_: Round) -> list[str]:
    """Lines that no user should ever see."""
    return [f"odd output: {line}" for line in round_.output().splitlines() if _ODD.search(line)]


def unreadable(round_: Round) -> list[str]:
    """Checkpoints and snapshots that claim to be whole and are not, those apart that the harness spoilt."""
    return [fault for folder in _folders(round_) for fault in _unreadable(folder, round_)]


def _folders(round_: Round) -> Iterator[Path]:
    if round_.run.checkpoints.is_dir():
        yield round_.run.checkpoints
    yield from sorted(round_.run.path.glob("worker-*/snapshots"))


def _unreadable(folder: Path, round_: Round) -> list[str]:
    faults = []
    for number in checkpoints.numbers(folder):
        files = [folder / f"{number:012d}{suffix}" for suffix in (".npz", ".json")]
        if any(path in round_.spoilt and path.read_bytes() == round_.spoilt[path] for path in files):
            continue
        try:
            arrays = checkpoints.load(folder, number).arrays
        except ValueError as error:
            faults.append(f"unreadable: {error}")
            continue
        if folder == round_.run.checkpoints and not all(np.isfinite(array).all() for array in arrays.values()):
            faults.append(f"not finite: checkpoint {number}")
    return faults


def finished(round_: Round) -> list[str]:
    """A run that met its budget, and whose books agree."""
    summary = round_.summary()
    if not summary:
        return ["no summary.json"]
    found = []

    def check(name: str, value: object, wanted: object) -> None:
        if value != wanted:
            found.append(f"{name} is {value}, not {wanted}")

    check("exit_reason", summary["exit_reason"], "finished")
    check("env_steps", summary["env_steps"], round_.total)
    base = _base(round_)
    for name in ("env_steps", "minibatches"):
        before = getattr(base, name) if base else 0
        if base or name == "env_steps":
            before = before if base else round_.resumed_at()
            check(f"{name} of all workers", before + sum(w[name] for w in summary["workers"]), summary[name])
    if round_.run.episodes not in round_.spoilt:
        check("rows of episodes.csv", round_.num_episode_rows(), summary["episodes"])
    newest, faults = checkpoints.load_newest(round_.run.checkpoints)
    check("the newest checkpoint", newest.number if newest else None, round_.total)
    found += faults
    return found


def _base(round_: Round) -> Counters | None:
    """What the counters were last set to; None where that checkpoint is no longer there."""
    number = round_.resumed_at()
    if not number:
        return Counters()
    try:
        arrays = checkpoints.load(round_.run.checkpoints, number).arrays
    except ValueError:
        return None
    return saved_counters({name.removeprefix(STORE): array for name, array in arrays.items()})


def steps_lost(round_: Round) -> list[str]:
    """No more is lost than what was done since the last checkpoint."""
    summary = round_.summary()
    lost = summary.get("steps_lost", 0)
    times = max(1, summary.get("ps_recoveries", 0))
    allowed = round_.most_steps_within(round_.checkpoint_period + _SAVING) + _IN_FLIGHT * round_.num_workers
    return [f"{lost} steps lost, at most {allowed * times} may be"] if lost > allowed * times else []


def unharmed(round_: Round) -> list[str]:
    """Nothing was lost but time."""
    summary = round_.summary()
    names = ("worker_restarts", "ps_recoveries", "steps_lost")
    found = [f"{name} is {summary.get(name)}, not 0" for name in names if summary.get(name) != 0]
    return found + (["a worker counted as lost"] if "counts as lost" in round_.output() else [])
