"""`async-dqn plot`: learning curves in one picture, in the colours of Okabe and Ito, which the colour-blind can tell
apart; drawn without a screen."""

import itertools
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from async_dqn.base.errors import UserError
from async_dqn.run.directory import COMPLETE
from async_dqn.run.progress import count
from async_dqn.tools.report.runs import BASELINE, Run, read_runs, running_mean

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
_MAX_TOLD = 3  # settings in a label
_MAX_TITLES = 3  # pairs of an agent and an environment that a title names
_TITLE_WIDTH = 80  # characters in a line of it
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
    """The curves to draw of one or more runs, the baseline first: runs that differ in their seeds at most share one.

    A label has the kind of run and a few settings; where these are not enough, the folder of the curve's first run.
    """
    groups: dict[tuple, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.kind != BASELINE):
        settings = sorted((name, str(value)) for name, value in run.settings.items() if name != "seed")
        groups.setdefault((run.kind, *settings), []).append(run)
    firsts = [members[0] for members in groups.values()]
    common = [name for name in firsts[0].settings if all(name in run.settings for run in firsts)]
    told = [name for name in common if len({str(run.settings[name]) for run in firsts}) > 1 and name not in _PLACES]
    if len(told) > _MAX_TOLD:
        told = [name for name in told if name in ("agent", "env")]
    if any(run.label for run in firsts):
        told = []
    agents = [f"{run.settings['agent']}: " if "agent" in told else "" for run in firsts]
    others = [[f"{name}={run.settings[name]}" for name in told if name != "agent"] for run in firsts]
    labels = [agent + ", ".join([run.kind, *own]) for agent, run, own in zip(agents, firsts, others, strict=True)]
    top = os.path.commonpath([run.path.parent.resolve() for run in runs])
    folders = [os.path.relpath(run.path.resolve(), top) for run in firsts]
    labels = [f"{own}, {folder}" if labels.count(own) > 1 else own for own, folder in zip(labels, folders, strict=True)]
    return dict(zip(labels, groups.values(), strict=True))


@matplotlib.rc_context(STYLE)
def learning_curves(curves: Mapping[str, Sequence[Run]], x: str, *, window: int) -> Figure:
    """Return against agent steps or training time: thin lines one run each, a thick one the mean of several.

    Args:
      x: steps or time.
      window: games that a running mean is over.
    """
    legends = [_legend(label, members) for label, members in curves.items()]
    columns = 1 if max(map(len, legends), default=0) > 45 else 2
    figure = Figure(figsize=(8, 5 + 0.2 * max(0, len(curves) // columns - 6)), layout="constrained")
    axes = figure.add_subplot()
    runs = [run for members in curves.values() for run in members]
    column = {"steps": "env_steps", "time": "seconds"}[x]
    longest = np.nanmax(np.concatenate([[0.0], *(run.games[column] for run in runs)]))
    units = list(_UNITS[x].items())
    unit, size = next((one for one in units if longest >= 2 * one[1]), units[-1])
    looks = itertools.cycle(itertools.product(_LINES, COLOURS))
    handles, has_mean = [], False
    for members, (linestyle, color) in zip(curves.values(), looks, strict=False):
        lines = [(run.games[column] / size, running_mean(run.games["episode_return"], window)) for run in members]
        for at, mean in lines:
            (line,) = axes.plot(at, mean, color=color, linestyle=linestyle, linewidth=1)
        known = [(at, mean) for at, mean in lines if np.isfinite(at[:1]).any()]
        begin, end = max((at[0] for at, _ in known), default=0), max((at[-1] for at, _ in known), default=0)
        for run, (at, _) in zip(members, lines, strict=True):
            if np.isfinite(at[:1]).any() and run.exit_reason not in COMPLETE:  # nobody knows how it would go on
                end = min(end, at[-1])
        if len(known) > 1 and begin < end:
            has_mean = True
            grid = np.linspace(begin, end, 400)
            means = [np.interp(grid, at, mean) for at, mean in known]
            (line,) = axes.plot(grid, np.mean(means, axis=0), color=color, linestyle=linestyle, linewidth=2.5)
        handles.append(line)
    for goal in {run.goal for run in runs if not np.isnan(run.goal)}:
        axes.axhline(goal, color="0.4", linewidth=1, linestyle="--", zorder=1)
        axes.text(0.01, goal, f"goal {goal:g}", transform=axes.get_yaxis_transform(), va="bottom", fontsize=8)
    titles = dict.fromkeys(f"{run.settings.get('agent', '?')} on {run.settings.get('env', '?')}" for run in runs)
    envs = dict.fromkeys(str(run.settings.get("env", "?")) for run in runs)
    title = textwrap.fill(", ".join(titles if len(titles) <= _MAX_TITLES else envs), _TITLE_WIDTH)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set(xlim=(0, None), xlabel=unit, ylabel=f"mean return of the last {window} games")
    how = "thin line: one run; thick line: their mean, where a finished run keeps its last value" if has_mean else None
    figure.legend(handles, legends, loc="outside lower center", ncols=columns, title=how, title_fontsize=9)
    return figure


def _legend(label: str, runs: Sequence[Run]) -> str:
    notes = "; ".join(dict.fromkeys(note for run in runs for note in run.notes))
    return f"{label}, {count(len(runs), 'run')}" + (f" ({notes})" if notes else "")


@matplotlib.rc_context(STYLE)
def save(figure: Figure, path: Path) -> None:
    """Writes a picture; the format is that of the name. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
