"""`async-dqn plot`: learning curves in one picture, in the colours of Okabe and Ito, which the colour-blind can tell
apart; drawn without a screen."""

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from async_dqn.base.errors import UserError
from async_dqn.tools.report.runs import Run, read_runs, running_mean

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
_LINES = ("-", "--", ":", "-.")  # for curves beyond the number of colours
_MAX_DOTS = 4_000  # games drawn one by one, of each run
_MAX_TOLD = 3  # settings in a label
_MAX_TITLES = 3  # pairs of an agent and an environment that a title names
_MAX_STRONG = 4  # runs of a curve that are a strong line each: the mean of a fast and a slow one is like neither
_PLACES = ("num_ps", "num_workers", "store", "seed", "gpus", "threads")  # of the kind of run, or of the machine
_UNITS = {  # names of an axis, and what to divide by: the first that its end is several of
    "steps": {"agent steps (millions)": 1e6, "agent steps (thousands)": 1e3},
    "time": {"training time (hours)": 3_600.0, "training time (minutes)": 60.0, "training time (seconds)": 1.0},
}


def run_plot(paths: Sequence[str], *, x: str, smooth: int, output: str) -> int:
    """Draws the runs in these folders. Gives the exit code.

    Args:
      paths: run directories.
      x: what to draw over: steps or time.
      smooth: games that a running mean is over.
      output: the file to write; its name says the format.

    Raises:
      UserError: naming what is wrong; nothing is written then.
    """
    if not paths:
        raise UserError("plot needs run directories: async-dqn plot RUN [RUN ...]")
    if not output.endswith((".png", ".svg", ".pdf")):
        raise UserError(f"--output={output}: must end in .png, .svg, .pdf")
    curves = group(read_runs(paths))
    try:
        save(learning_curves(curves, x, window=smooth), Path(output))
    except OSError as error:
        raise UserError(f"--output={output}: {error.strerror}; give another file") from error
    for label, runs in curves.items():
        for run in runs:
            print("; ".join([f"{run.path}: {label}, {len(run.games['env_steps']):,} games", *run.notes]))
    print(f"written to {output}")
    return 0


def group(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The curves to draw of one or more runs, by label: runs that differ in their seeds at most share one.

    A label has the kind of run and a few settings; where these are not enough, the folder of the curve's first run.
    """
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        settings = sorted((name, str(value)) for name, value in run.settings.items() if name != "seed")
        groups.setdefault((run.kind, *settings), []).append(run)
    firsts = [members[0] for members in groups.values()]
    common = [name for name in firsts[0].settings if all(name in run.settings for run in firsts)]
    told = [name for name in common if len({str(run.settings[name]) for run in firsts}) > 1 and name not in _PLACES]
    if len(told) > _MAX_TOLD:
        told = [name for name in told if name in ("agent", "env")]
    if any(run.label for run in firsts):
        told = []
    labels = [", ".join([run.kind, *(f"{name}={run.settings[name]}" for name in told)]) for run in firsts]
    top = os.path.commonpath([run.path.parent.resolve() for run in runs])
    folders = [os.path.relpath(run.path.resolve(), top) for run in firsts]
    labels = [f"{own}, {folder}" if labels.count(own) > 1 else own for own, folder in zip(labels, folders, strict=True)]
    return dict(zip(labels, groups.values(), strict=True))


@matplotlib.rc_context(STYLE)
def learning_curves(curves: Mapping[str, Sequence[Run]], x: str, *, window: int) -> Figure:
    """Return against agent steps or training time: every game faint, the running mean of every run strong.

    Where a curve has many runs, their lines are thin, and their mean is strong as far as all of them went.

    Args:
      x: steps or time.
      window: games that a running mean is over.
    """
    legends = [_legend(label, members, window) for label, members in curves.items()]
    columns = 1 if max(map(len, legends), default=0) > 45 else 2
    figure = Figure(figsize=(8, 4.8 + 0.2 * max(0, len(curves) // columns - 6)), layout="constrained")
    axes = figure.add_subplot()
    runs = [run for members in curves.values() for run in members]
    column = {"steps": "env_steps", "time": "seconds"}[x]
    longest = np.nanmax(np.concatenate([[0.0], *(run.games[column] for run in runs)]))
    name = next((name for name, size in _UNITS[x].items() if longest >= 2 * size), list(_UNITS[x])[-1])
    looks = itertools.cycle(itertools.product(_LINES, COLOURS))
    for members, legend, (line, colour) in zip(curves.values(), legends, looks, strict=False):
        points = [(run.games[column] / _UNITS[x][name], run.games["episode_return"]) for run in members]
        _draw(axes, points, window, legend, {"color": colour, "linestyle": line})
    for goal in {run.goal for run in runs if not np.isnan(run.goal)}:
        axes.axhline(goal, color="0.4", linewidth=1, linestyle="--", zorder=1)
        axes.text(1, goal, f"goal {goal:g}", transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=8)
    titles = dict.fromkeys(f"{run.settings.get('agent', '?')} on {run.settings.get('env', '?')}" for run in runs)
    envs = dict.fromkeys(str(run.settings.get("env", "?")) for run in runs)
    axes.set_title(", ".join(titles if len(titles) <= _MAX_TITLES else envs), loc="left", fontsize=11)
    axes.set(xlim=(0, None), xlabel=name, ylabel="return of a game (unclipped)")
    figure.legend(loc="outside lower center", ncols=columns)
    return figure


def _draw(axes: Axes, runs: Sequence[tuple], window: int, legend: str, look: Mapping[str, Any]) -> None:
    """Draws runs of one curve, each by where its games are [G], NaN if unknown, and their returns [G]."""
    lines = [(where[known], returns[known]) for where, returns in runs if (known := np.isfinite(where)).any()]
    for where, returns in lines:
        some = slice(None, None, -(-len(where) // _MAX_DOTS))
        faint = float(np.clip(100 / len(where), 0.1, 0.4))
        axes.plot(where[some], returns[some], ".", color=look["color"], alpha=faint, ms=4, mew=0, rasterized=True)
    lines = [(where, running_mean(returns, window)) for where, returns in lines]
    if len(lines) > _MAX_STRONG:  # beyond the shortest run a mean would jump: often the best one ends first
        for where, mean in lines:
            axes.plot(where, mean, linewidth=0.6, **look)
        begin, end = max(where[0] for where, _ in lines), min(where[-1] for where, _ in lines)
        grid = np.linspace(begin, end, 400) if begin <= end else np.empty(0)
        lines = [(grid, np.mean([np.interp(grid, where, mean) for where, mean in lines], axis=0))]
    for place, (where, mean) in enumerate(lines or [(np.empty(0), np.empty(0))]):
        axes.plot(where, mean, linewidth=2, label=f"_{place}" if place else legend, **look)


def _legend(label: str, runs: Sequence[Run], window: int) -> str:
    together = f", {len(runs)} runs" if len(runs) > 1 else ""
    notes = "; ".join(dict.fromkeys(note for run in runs for note in run.notes))
    return f"{label}{together}; mean of {window} games" + (f" ({notes})" if notes else "")


@matplotlib.rc_context(STYLE)
def save(figure: Figure, path: Path) -> None:
    """Writes a picture; the format is that of the name. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
