"""What a set of runs shows: its tables and pictures, from their files alone."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from async_dqn.run.progress import count, format_seconds
from async_dqn.run.worker_table import read_worker
from async_dqn.tools.bench.tables import cell, number
from async_dqn.tools.report import figures
from async_dqn.tools.report.experiment import STANDARD, Trial, read_evaluation
from async_dqn.tools.report.page import Picture, Section, Table, Text
from async_dqn.tools.report.runs import Run, Usage, read_stalenesses, read_usage

_WINDOW = 100  # games of a running mean, as of the goal


class Found(NamedTuple):
    """A trial that has left files."""

    trial: Trial
    run: Run

    def summary(self, name: str) -> float:
        """A number of summary.json; NaN where it has none."""
        return _finite(self.run.summary.get(name))

    @property
    def greedy(self) -> float:
        """Mean return of its greedy games; NaN before they were played."""
        return _finite(read_evaluation(self.trial.run).get("mean"))


def _finite(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _ratio(value: float, to: float) -> float:
    return value / to if to else math.nan


def _per_second(name: str) -> Callable[[Found], float]:
    return lambda found: _ratio(found.summary(name), found.summary("wall_seconds"))


_BEST = "best mean of 100 games"

_METRICS: Mapping[str, Callable[[Found], float]] = {
    _BEST: lambda found: found.summary("best_mean_return_100"),
    "agent steps to the goal": lambda found: found.summary("solved_at_steps"),
    "minutes to the goal": lambda found: found.summary("solved_at_seconds") / 60,
    "steps/s": _per_second("env_steps"),
    "milliseconds a step": lambda found: _ratio(1_000 * found.summary("wall_seconds"), found.summary("env_steps")),
    "minibatches/s": _per_second("minibatches"),
    "updates/s": _per_second("updates"),
    "mean staleness": lambda found: found.summary("staleness_mean"),
    "greedy games, mean return": lambda found: found.greedy,
}


def _kinds(found: Sequence[Found]) -> dict[str, list[Found]]:
    kinds: dict[str, list[Found]] = {}
    for one in found:
        kinds.setdefault(one.trial.name, []).append(one)
    return kinds


def _values(found: Sequence[Found], metric: str) -> list[float]:
    """Of all of them; none where one has no such value, as a median over the others would flatter."""
    values = [_METRICS[metric](one) for one in found]
    return values if all(map(math.isfinite, values)) else []


def result_table(found: Sequence[Found]) -> Table:
    """A column for each kind, so that it fits on a narrow screen: medians over seeds, and their ranges.

    Of runs that are over; those that are not stand in the table of runs. Without a goal, their best takes its place.
    """
    kinds = _kinds([one for one in found if one.trial.is_over])
    rows = {metric: [cell(_values(members, metric)) for members in kinds.values()] for metric in _METRICS}
    if _has_goal(found):
        del rows[_BEST]
        reached = [f"{sum(map(_is_solved, members))} of {len(members)}" for members in kinds.values()]
        speed_up = [_speed_up(kinds, members) for members in kinds.values()]
        rows = {"runs that reached the goal": reached, **rows, "speed-up": speed_up}
    else:
        rows = {metric: cells for metric, cells in rows.items() if not metric.endswith("the goal")}
    return Table(["", *kinds], [[name, *cells] for name, cells in rows.items()])


def _has_goal(found: Sequence[Found]) -> bool:
    return any(math.isfinite(one.trial.config.stop_at_return) for one in found)


def _is_solved(found: Found) -> bool:
    return math.isfinite(found.summary("solved_at_steps"))


def _speed_up(kinds: Mapping[str, Sequence[Found]], members: Sequence[Found]) -> str:
    """Of the median time to the goal, over the standard agent's; only where every run of both has reached it."""
    times = [_values(one, "minutes to the goal") for one in (kinds.get(STANDARD, []), members)]
    return f"{number(statistics.median(times[0]) / statistics.median(times[1]))} x" if all(times) else "-"


def run_table(found: Sequence[Found]) -> Table:
    """A row for each run."""
    header = ["", "ended", "agent steps", "wall clock", "to the goal", _BEST, "greedy games"]
    rows = [
        [
            one.trial.title,
            str(one.run.summary.get("exit_reason", "-")).partition(":")[0],
            _whole(one.summary("env_steps")),
            format_seconds(one.summary("wall_seconds")),
            format_seconds(one.summary("solved_at_seconds")),
            number(one.summary("best_mean_return_100")),
            number(one.greedy),
        ]
        for one in found
    ]
    return Table(header, rows)


def _whole(value: float) -> str:
    """With commas; a dash where it is not known."""
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def worker_table(found: Sequence[Found]) -> Table:
    """What each worker did: its share, its replay ratio, its wait."""
    header = ["", "agent steps", "minibatches", "minibatches per step", "waiting for ps"]
    rows = []
    for one in found:
        for index in range(one.trial.config.num_workers):
            worker = read_worker(one.run.path, index, last=None)
            if worker is None:
                continue
            ratio = _ratio(worker.minibatches, worker.env_steps)
            waiting = f"{worker.waiting_percent:.1f} %" if math.isfinite(worker.waiting_percent) else "-"
            cells = [_whole(worker.env_steps), _whole(worker.minibatches), number(ratio), waiting]
            rows.append([f"{one.trial.title}: worker {index}", *cells])
    return Table(header, rows)


def sections(
    found: Sequence[Found], calls: Sequence[Mapping[str, Any]], folder: Path, *, num_planned: int
) -> list[Section]:
    """The whole report; draws its pictures into `folder`/figures. Raises OSError.

    Args:
      calls: the commands that trained these runs, each with its date, machine and versions; the first one first.
    """
    runs = [one.run for one in found]
    curves = figures.group(runs)
    pictures = []
    for x, what in (("steps", "agent steps of all workers"), ("time", "wall-clock time")):
        file = f"figures/return-{x}.png"
        figures.save(figures.learning_curves(curves, x, window=_WINDOW), folder / file)
        caption = f"Return of every game (faint) and the mean of {_WINDOW} (strong) over {what}."
        if any(len(curve.runs) > 1 for curve in curves):
            caption += " Seeds share a colour, and a band as far as all of them went."
        pictures.append(Picture(file, caption))
    blocks: list[Text | Table | Picture] = []
    num_over = sum(one.trial.is_over for one in found)
    if num_over < num_planned:
        blocks.append(Text([f"Not complete: {count(num_over, 'run')} of {num_planned} so far."]))
    blocks += [Text([line]) for line in _differences(found)]
    noted = [(one.trial.title, [*one.run.notes, *_troubles(one)]) for one in found]
    notes = [f"{title}: {'; '.join(lines)}" for title, lines in noted if lines]
    return [
        Section("Result", [*blocks, result_table(found), Text([_how_to_read(found)])] if num_over else blocks),
        Section("Learning curves", pictures),
        Section("Staleness", [_staleness(found, folder)]),
        Section("Runs", [run_table(found), *([Text(notes)] if notes else [])]),
        Section("Workers", [worker_table(found)]),
        Section("CPU and memory", _usage(found, folder)),
        Section("How it was made", [Text(_provenance(calls, found))]),
    ]


def _how_to_read(found: Sequence[Found]) -> str:
    seeds = max(len(members) for members in _kinds(found).values())
    few = "One seed says little on steps to the goal" if seeds == 1 else f"{seeds} seeds say little on its spread"
    goal = (
        "; those on the goal are left out where a run has not reached it. All kinds have the same settings; the "
        "speed-up is that of the median wall-clock time to the goal over the standard agent's, on this machine"
    )
    return (
        f"Cells are the median over seeds and [least - most]{goal if _has_goal(found) else ''}. "
        f"Times count from the first agent step, without start-up. {few}."
    )


def _differences(found: Sequence[Found]) -> list[str]:
    """What the runs do not have in common and a comparison of times needs."""
    described = [one.run.described for one in found]
    hosts = {_machine(one.get("host")) for one in described}
    revisions = {str(one.get("git_revision")) for one in described}
    lines = [f"Made on {len(hosts)} different machines: their times do not compare."] if len(hosts) > 1 else []
    return lines + ([f"Made by {len(revisions)} versions of this program."] if len(revisions) > 1 else [])


def _machine(host: Any) -> str:
    """What times depend on: neither a name, which a container changes, nor the version of the system."""
    return f"{host.get('cpu')}, {host.get('cores')} cores" if isinstance(host, dict) else str(host)


def _troubles(one: Found) -> list[str]:
    """What a run survived, and the workers that it ended without."""
    counted = {
        "worker restarts": one.summary("worker_restarts"),
        "recoveries of a ps": one.summary("ps_recoveries"),
        "agent steps lost": one.summary("steps_lost"),
    }
    lines = [f"{name}: {value:,.0f}" for name, value in counted.items() if value > 0]
    workers = one.run.summary.get("workers")
    if one.trial.is_over and isinstance(workers, list):
        states = [worker.get("state") if isinstance(worker, dict) else None for worker in workers]
        left = [(index, state) for index, state in enumerate(states) if state not in (None, "done")]
        lines += [f"worker {index} was {state} at the end" for index, state in left]
    return lines


def _staleness(found: Sequence[Found], folder: Path) -> Picture | Text:
    counts: dict[str, Counter[int]] = {}
    for one in found:
        if one.trial.name != STANDARD:
            own = read_stalenesses(one.run.path, one.trial.config.num_workers)
            counts[one.trial.name] = counts.get(one.trial.name, Counter()) + own
    if not counts:
        return Text(["In a single process nothing is stale."])
    counts = {name: those for name, those in counts.items() if those}
    if not counts:
        return Text(["These runs have not recorded it."])
    file = "figures/staleness.png"
    figures.save(figures.staleness(counts, figures.colours(_kinds(found))), folder / file)
    return Picture(
        file,
        "Staleness of updates: how many updates were applied between the pull that an update was computed on and its "
        "push, of other workers or of its own.",
    )


def _usage(found: Sequence[Found], folder: Path) -> list[Text | Table | Picture]:
    """Over time for the first seed of each kind, and a row for each process of all."""
    usages = [(one, processes) for one in found if (processes := _usage_of(one))]
    if not usages:
        return [Text(["These runs have not recorded it."])]
    first: dict[str, Mapping[str, Usage]] = {}
    for one, processes in usages:
        first.setdefault(one.trial.name, processes)
    file = "figures/usage.png"
    figures.save(figures.usage(first, figures.colours(_kinds(found))), folder / file)
    caption = (
        "Cores used and memory of all processes of a run together, the launcher aside; first seed of each kind. Pages "
        "that processes share, some 400 MB of libraries, count once for each."
    )
    rows = [
        [
            f"{one.trial.title}: {name}",
            number(usage.mean_cores),
            f"{usage.half_way_mb:,.0f} MB",
            f"{usage.resident_mb[-1]:,.0f} MB",
        ]
        for one, processes in usages
        for name, usage in processes.items()
    ]
    return [Picture(file, caption), Table(["", "cores used", "memory at half time", "memory at the end"], rows)]


def _usage_of(one: Found) -> Mapping[str, Usage]:
    config = one.trial.config
    num_ps = 0 if one.trial.name == STANDARD else config.num_ps
    return read_usage(one.run.path, num_ps=num_ps, num_workers=config.num_workers)


def _revisions(found: Sequence[Found]) -> list[str]:
    """A line for each revision of this program, with its runs where there are several: it may change between runs."""
    made: dict[str, list[str]] = {}
    for one in found:
        made.setdefault(str(one.run.described.get("git_revision") or "unknown"), []).append(one.trial.title)
    return [f"revision: {name}" + (f" ({'; '.join(runs)})" if len(made) > 1 else "") for name, runs in made.items()]


def _provenance(calls: Sequence[Mapping[str, Any]], found: Sequence[Found]) -> list[str]:
    """The first call in full; of later ones, which trained more of the runs, what was asked and when."""
    origin = calls[0] if calls else {}
    lines = [
        f"command: {origin.get('command', '?')}",
        f"date: {origin.get('date', '?')}",
        *(f"gone on with: {call.get('command', '?')}, {call.get('date', '?')}" for call in calls[1:]),
        f"machine: {origin.get('cpu', '?')}, {origin.get('cores', '?')} cores, {origin.get('memory GB', '?')} GB; "
        f"{origin.get('system', '?')}",
        *_revisions(found),
    ]
    versions = origin.get("versions")
    if isinstance(versions, dict):
        lines.append("versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    if found:
        config = found[0].trial.config
        lines.append(
            f"work: {config.env}, protocol {config.protocol}, {config.network} network; config.json of each run"
        )
    return lines
