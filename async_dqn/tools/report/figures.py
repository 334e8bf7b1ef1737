"""Pictures of runs, drawn without a screen, in the colours of Okabe and Ito, which the colour-blind can tell apart."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from async_dqn.tools.report.runs import Run, Usage, running_mean

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", ":", "-.")  # for curves beyond the number of colours
_MAX_DOTS = 4_000  # games drawn one by one, of each run
_MAX_TOLD = 3  # settings in a label, or folders
_ROWS = 6  # of a legend that a picture of the usual height has room for
_ROW = 0.2  # inches
_MAX_STRONG = 4  # runs of a curve that are a line each: the mean of a lucky and an unlucky one is like neither
_GRID = 400  # points of a mean over seeds
_PATIENCE = 3  # rows that a process has not written before it counts as ended
_MAX_STALENESS = 60  # that has a bar of its own
_HOUR, _MINUTE = 3_600.0, 60.0
_STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.hashsalt": "async-dqn",  # the same picture is the same file
}


class Curve(NamedTuple):
    """The running means of one run, or of several at equal settings.

    Attributes:
      label: for the legend.
      runs: those that it is made of.
    """

    label: str
    runs: Sequence[Run]


def group(runs: Sequence[Run]) -> list[Curve]:
    """Runs that differ in their seeds at most share a curve. Labels tell the curves apart, by settings if need be."""
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    labels: dict[tuple, str] = {}
    for kind in dict.fromkeys(run.kind for run in runs):
        alike = {key: members for key, members in groups.items() if members[0].kind == kind}
        own = [", ".join([kind, *words]) for words in _tell_apart(list(alike.values()))]
        labels |= dict(zip(alike, own, strict=True))
    return [Curve(labels[key], members) for key, members in groups.items()]


def _tell_apart(alike: Sequence[Sequence[Run]]) -> list[list[str]]:
    """What sets curves of one kind off from each other: a few settings, or else the names of their folders."""
    if len(alike) < 2:
        return [[]]
    differing = _differing([members[0].settings for members in alike])
    if len(differing) > _MAX_TOLD:
        differing = []
    told = [[f"{name}={members[0].settings[name]}" for name in differing] for members in alike]
    folders = _folders([[run.path.resolve() for run in members] for members in alike])
    return [own if told.count(own) == 1 else [*own, *names] for own, names in zip(told, folders, strict=True)]


def _folders(paths: Sequence[Sequence[Path]]) -> list[list[str]]:
    """Names of the folders of each curve, with as much of what is above as tells them apart; of many the first."""
    everything = [path for members in paths for path in members]
    depth = 1
    while len({path.parts[-depth:] for path in everything}) < len(set(everything)):
        depth += 1
    names = [["/".join(path.parts[-depth:]) for path in members] for members in paths]
    return [own if len(own) <= _MAX_TOLD else [own[0], f"{len(own) - 1} more"] for own in names]


_PLACES = ("num_ps", "num_workers", "seed", "gpus", "threads")  # of a kind, or of no meaning for what is learned


def _key(run: Run) -> tuple:
    settings = {name: value for name, value in run.settings.items() if name != "seed"}
    return (run.kind, *sorted((name, str(value)) for name, value in settings.items()))


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of settings that all have, and not all the same."""
    names = [name for name in settings[0] if name not in _PLACES and all(name in one for one in settings)]
    return [name for name in names if len({str(one[name]) for one in settings}) > 1]


def learning_curves(curves: Sequence[Curve], x: str, *, window: int) -> Figure:
    """Return against agent steps or wall-clock time: every game faint, the running mean strong.

    Several runs in a curve are a line each, in a band from the least to the most of them, as far as all of them went.
    Where they are many, the lines are thin and their mean is strong.

    Args:
      x: steps or time.
      window: games that a running mean is over.
    """
    with matplotlib.rc_context(_STYLE):
        columns = 1 if _is_wordy(curves) else 2
        rows = -(-len(curves) // columns)
        figure = Figure(figsize=(8, 4.8 + _ROW * max(0, rows - _ROWS)), layout="constrained")
        axes = figure.add_subplot()
        ends = [_x(run, x)[-1] for curve in curves for run in curve.runs if len(run.steps)]
        longest = max((end for end in ends if np.isfinite(end)), default=0.0)
        unit, divisor = _unit(x, longest)
        looks = itertools.cycle(itertools.product(_LINES, COLOURS))
        for curve, (line, colour) in zip(curves, looks, strict=False):
            _draw(axes, curve, colour, line, x, divisor, window)
        goals = {_goal(run) for curve in curves for run in curve.runs}
        goal = goals.pop()
        if goal is not None and not goals:
            axes.axhline(goal, color="0.4", linewidth=1, linestyle="--", zorder=1)
            axes.annotate(
                f"goal {goal:g}", (1, goal), (-2, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
                ha="right", fontsize=8, color="0.4",
            )  # fmt: skip
        axes.set_xlim(left=0)
        axes.set_xlabel(unit)
        axes.set_ylabel("return of a game (unclipped)")
        axes.set_title(_title(curves), loc="left", fontsize=11)
        figure.legend(loc="outside lower center", ncols=columns, fontsize=9)
        return figure


def colours(kinds: Iterable[str]) -> dict[str, str]:
    """A colour for each kind of run, in the order in which `learning_curves` deals them out."""
    return dict(zip(kinds, itertools.cycle(COLOURS), strict=False))


def staleness(counts: Mapping[str, Mapping[int, int]], colour_of: Mapping[str, str]) -> Figure:
    """How often an update was how stale, in percent, by kind of run. Raises ValueError where there is nothing to show.

    Args:
      counts: updates by their staleness, by the name of the kind.
      colour_of: each kind's.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        axes = figure.add_subplot()
        width = 0.8 / len(counts)
        highest = max(max(those) for those in counts.values())
        bars = np.arange(min(highest, _MAX_STALENESS) + 1)
        for place, (name, those) in enumerate(counts.items()):
            total = sum(those.values())
            shares = [100 * those.get(int(bar), 0) / total for bar in bars]
            shares[-1] += 100 * sum(times for value, times in those.items() if value > bars[-1]) / total
            axes.bar(bars + (place - (len(counts) - 1) / 2) * width, shares, width, color=colour_of[name], label=name)
        axes.set_xticks(bars[:: -(-len(bars) // 20)])
        over = " (the last bar: or more)" if highest > bars[-1] else ""
        axes.set_xlabel(f"staleness, in updates{over}")
        axes.set_ylabel("% of updates")
        axes.legend(fontsize=9)
        return figure


def usage(usages: Mapping[str, Mapping[str, Usage]], colour_of: Mapping[str, str]) -> Figure:
    """Cores used and memory held over time, of all processes of a run together; a curve for each kind of run.

    Args:
      usages: of each process, by the name of the kind; at least one.
      colour_of: each kind's.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8, 4.8), layout="constrained")
        cores, memory = figure.subplots(2, sharex=True)
        ends = {kind: max(each.seconds[-1] for each in processes.values()) for kind, processes in usages.items()}
        unit, divisor = _unit("time", max(ends.values()))
        for kind, processes in usages.items():
            grid = np.linspace(0, ends[kind], _GRID)
            cores_used = sum(_smooth(grid, each.seconds, each.cores) for each in processes.values())
            resident_gb = sum(_smooth(grid, each.seconds, each.resident_mb) for each in processes.values()) / 1_000
            cores.plot(grid / divisor, cores_used, color=colour_of[kind], linewidth=1.5, label=kind)
            memory.plot(grid / divisor, resident_gb, color=colour_of[kind], linewidth=1.5)
        cores.set(ylabel="cores used", ylim=(0, None))
        memory.set(ylabel="memory (GB)", ylim=(0, None), xlabel=unit, xlim=(0, None))
        figure.legend(loc="outside lower center", ncols=3, fontsize=9)
        return figure


def _smooth(grid: np.ndarray, seconds: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean of a hundredth of all values; before its time the first one, once it has ended 0. [T], [T] -> [grid]."""
    smooth = np.interp(grid, seconds, running_mean(values, max(1, len(values) // 100)))
    period = np.median(np.diff(seconds, prepend=0.0))
    return np.where(grid > seconds[-1] + _PATIENCE * period, 0.0, smooth)


def _draw(axes: Axes, curve: Curve, colour: str, line: str, x: str, divisor: float, window: int) -> None:
    lines = []
    for run in curve.runs:
        where = _x(run, x) / divisor
        known = np.isfinite(where)
        where, returns = where[known], run.returns[known]
        if not len(where):
            continue
        some = slice(None, None, -(-len(where) // _MAX_DOTS))
        faint = float(np.clip(100 / len(where), 0.1, 0.4))
        axes.plot(where[some], returns[some], ".", color=colour, alpha=faint, ms=4, mew=0, rasterized=True)
        lines.append((where, running_mean(returns, window)))
    strong, thin = lines or [(np.empty(0), np.empty(0))], []
    if len(lines) > 1:
        begin, end = max(where[0] for where, _ in lines), min(where[-1] for where, _ in lines)
        grid = np.linspace(begin, end, _GRID) if begin <= end else np.empty(0)
        means = np.stack([np.interp(grid, where, mean) for where, mean in lines])
        axes.fill_between(grid, means.min(axis=0), means.max(axis=0), color=colour, alpha=0.12, linewidth=0)
        if len(lines) > _MAX_STRONG:  # beyond the shortest run a mean would jump: often the best one ends first
            strong, thin = [(grid, means.mean(axis=0))], lines
    for where, mean in thin:
        axes.plot(where, mean, line, color=colour, linewidth=0.6)
    for place, (where, mean) in enumerate(strong):
        axes.plot(where, mean, line, color=colour, linewidth=2, label=None if place else _legend(curve, window))


def _legend(curve: Curve, window: int) -> str:
    together = f", {len(curve.runs)} runs" if len(curve.runs) > 1 else ""
    notes = dict.fromkeys(note for run in curve.runs for note in run.notes)
    return f"{curve.label}{together}; mean of {window} games" + (f" ({'; '.join(notes)})" if notes else "")


def _is_wordy(curves: Sequence[Curve]) -> bool:
    return max(len(_legend(curve, 100)) for curve in curves) > 45


def _x(run: Run, x: str) -> np.ndarray:
    return run.steps if x == "steps" else run.seconds


def _unit(x: str, longest: float) -> tuple[str, float]:
    """What the axis says, and what to divide by."""
    if x == "steps":
        return ("agent steps (millions)", 1e6) if longest >= 1e6 else ("agent steps (thousands)", 1e3)
    if longest >= 3 * _HOUR:
        return "wall-clock time (hours)", _HOUR
    return ("wall-clock time (minutes)", _MINUTE) if longest >= 3 * _MINUTE else ("wall-clock time (seconds)", 1.0)


def _goal(run: Run) -> float | None:
    goal = run.settings.get("stop_at_return")
    return float(goal) if isinstance(goal, int | float) and np.isfinite(goal) else None


def _title(curves: Sequence[Curve]) -> str:
    runs = [run for curve in curves for run in curve.runs]
    names = dict.fromkeys(str(run.settings.get("env", "?")) for run in runs)
    protocols = dict.fromkeys(str(run.settings.get("protocol", "?")) for run in runs)
    is_atari = any(name.startswith("ALE/") or not re.search(r"-v[0-9]+$", name) for name in names)
    return ", ".join([*names, *(f"protocol {protocol}" for protocol in protocols if is_atari)])


def save(figure: Figure, path: Path) -> None:
    """Writes a picture; the format is that of the name. Raises OSError."""
    metadata = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        figure.savefig(path, dpi=150, metadata=metadata[path.suffix])
