"""Studies: what `async-dqn compare --study=NAME` trains, each a list of kinds of run on the same environment."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from async_dqn.agents import table
from async_dqn.settings.config import Config
from async_dqn.tools.report import plot
from async_dqn.tools.report.runs import finite

CARTPOLE, LUNARLANDER = "CartPole-v1", "LunarLander-v3"
PRESETS = {CARTPOLE: "cartpole", LUNARLANDER: "lunarlander"}
_GOALS: dict[str, dict[str, Any]] = {
    CARTPOLE: {"stop_at_return": 195.0, "total_steps": 200_000},
    LUNARLANDER: {"stop_at_return": 200.0},
}
_WORKER_COUNTS = (1, 2, 4, 8)
_LOCAL_STEPS = (0, 1, 4, 16)
_REAL_STEPS = 60_000  # of Dyna-Q, which is there to need few; with planners on all cores, many take an hour
_RATIOS = (0, 1, 4, 16, 64, 256)  # simulated minibatches for each real one


class Kind(NamedTuple):
    """One kind of run: its name, the command that trains it (baseline or local), and its settings with any seed."""

    name: str
    job: str
    config: Config


Rows = Iterator[tuple[str, str, str, dict[str, Any]]]  # of each kind of run: name, command, agent, settings


def _algorithms(quick: bool) -> Rows:
    del quick
    for agent in table.TABLE:
        yield agent, "baseline", agent, {}


def _sharing(quick: bool) -> Rows:
    yield "one process", "baseline", "dqn", {}
    if not quick:
        for concurrent in (False, True):
            for synchronized in (False, True):
                name = f"fast_dqn{', concurrent' * concurrent}{', synchronized' * synchronized}"
                settings = {"concurrent": concurrent, "synchronized": synchronized}
                yield name, "baseline", "fast_dqn", settings
    servers: dict[str, dict[str, Any]] = {
        "async": {"local_steps": 0},
        "async, 2 ps": {"local_steps": 0, "num_ps": 2},
        "async, deltas": {"local_steps": 1},
        "async, 4 local steps": {"local_steps": 4},
        "sync": {"update_mode": "sync"},
        "accumulate 2": {"update_mode": "accumulate", "accumulate": 2},
        "hogwild": {"store": "shared_memory", "update_mode": "hogwild"},
        "locked": {"store": "shared_memory", "update_mode": "locked"},
        "sync, shared memory": {"store": "shared_memory", "update_mode": "sync"},
        "global replay": {"replay": "global"},
    }
    for name, settings in servers.items():
        yield name, "local", "dqn", {"num_workers": 2} | settings


def _workers(quick: bool) -> Rows:
    for agent in ("dqn", "nstep_q", "a3c", "paac", "ppo", "dyna_q"):
        for store in ("ps",) if quick else ("ps", "shared_memory"):
            for number in _WORKER_COUNTS[:2] if quick else _WORKER_COUNTS:
                name = f"{agent} on {store}, {number}"
                few = {"total_steps": _REAL_STEPS} if agent == "dyna_q" else {}
                yield name, "local", agent, {"store": store, "num_workers": number} | few
    for local_steps in () if quick else _LOCAL_STEPS:
        for number in _WORKER_COUNTS:
            preset = table.make_config("dqn", PRESETS[CARTPOLE], {"num_workers": number})
            if local_steps != preset.local_steps:  # else it is there already
                name = f"dqn on ps, {local_steps} local steps, {number}"
                yield name, "local", "dqn", {"num_workers": number, "local_steps": local_steps}


def _parallelism(quick: bool) -> Rows:
    yield "gradient, 1", "local", "a3c", {"num_workers": 1}  # one worker sends no rollouts
    ways: dict[str, dict[str, Any]] = {
        "gradient": {},
        "data": {"parallelism": "data", "vtrace": False},
        "data, V-trace": {"parallelism": "data"},
    }
    for name, settings in ways.items():
        for number in (2,) if quick else (2, 4):
            yield f"{name}, {number}", "local", "a3c", {"num_workers": number} | settings


def _planning(quick: bool) -> Rows:
    # Real minibatches are few, so that there is something for planning to make up for.
    few = {"train_period": 16, "epsilon_steps": 2_000, "total_steps": 30_000}
    for ratio in _RATIOS[:3] if quick else _RATIOS:
        yield f"{ratio} simulated", "baseline", "dyna_q", few | {"max_simulated_ratio": float(ratio)}
    for sweeping in () if quick else ("prioritized", "novelty"):
        yield f"4 simulated, {sweeping}", "baseline", "dyna_q", few | {"sweeping": sweeping}


# On LunarLander a run takes minutes, so there are only the most telling kinds.


def _sharing_on_lunarlander(quick: bool) -> Rows:
    del quick
    yield "one process", "baseline", "dqn", {}
    ways: dict[str, dict[str, Any]] = {
        "async, 4 local steps": {"local_steps": 4},
        "hogwild": {"store": "shared_memory"},
        "global replay": {"replay": "global"},
    }
    for name, settings in ways.items():
        yield name, "local", "dqn", {"num_workers": 2} | settings


def _workers_on_lunarlander(quick: bool) -> Rows:
    del quick
    for agent in ("dqn", "a3c", "dyna_q"):
        for number in (1, 2, 4):
            yield f"{agent} on ps, {number}", "local", agent, {"num_workers": number}


# By environment, the first of which is the usual one. Each is told whether only its quick part is wanted.
STUDIES: dict[str, dict[str, Callable[[bool], Rows]]] = {
    "algorithms": {CARTPOLE: _algorithms},
    "sharing": {CARTPOLE: _sharing, LUNARLANDER: _sharing_on_lunarlander},
    "workers": {CARTPOLE: _workers, LUNARLANDER: _workers_on_lunarlander},
    "parallelism": {CARTPOLE: _parallelism},
    "planning": {CARTPOLE: _planning},
}


def kinds(study: str, env: str = CARTPOLE, *, quick: bool, given: Mapping[str, Any]) -> list[Kind]:
    """What a study trains, by each agent's preset for the environment.

    Args:
      quick: only the part of it that takes minutes.
      given: settings that the user gave to all runs.
    """
    found = []
    for name, job, agent, own in STUDIES[study][env](quick):
        cls = table.find(agent).Config
        fields = {field.name for field in dataclasses.fields(cls)}
        alone = cls.unshared() if job == "baseline" else {}
        all_of_them = {"env": env} | _GOALS[env] | alone | own | dict(given)
        settings = {key: value for key, value in all_of_them.items() if key in fields}
        found.append(Kind(name, job, table.make_config(agent, PRESETS[env], settings)))
    return found


Result = Mapping[str, Any]  # of a run, as results.json has it
Curves = dict[str, list[tuple[int, Result]]]  # the runs of each curve, and the number that each is drawn over


def _of(run: Result, name: str) -> float:
    """A number of a run; NaN where it has none, as one that has never reached the goal."""
    return finite(run.get(name))


def _seconds(run: Result) -> float:
    return 60 * _of(run, "minutes to the goal")


_RETURN, _SPEED_UP = "best mean return of 100 games", "speed-up over one worker"
_WORKERS: dict[str, Callable[[Result], float]] = {
    "games to the goal": lambda run: _of(run, "games to the goal"),
    "seconds to the goal": _seconds,
    "seconds per game": lambda run: _seconds(run) / _of(run, "games to the goal"),
    _SPEED_UP: _seconds,
}
_PLANNING: dict[str, Callable[[Result], float]] = {
    _RETURN: lambda run: _of(run, "best mean of 100 games"),
    "agent steps to the goal": lambda run: _of(run, "agent steps to the goal"),
}


def figures(study: str, runs: Sequence[Result]) -> dict[str, Figure]:
    """The pictures of a study by name, where its kinds are numbers of something.

    Args:
      runs: of kinds as `kinds` names them: "AGENT on STORE, NUMBER", "dqn on ps, K local steps, NUMBER", or "RATIO
        simulated"; others of the study of planning are left out.
    """
    if study == "planning":
        curve = [(int(run["kind"].split()[0]), run) for run in runs if run["kind"].endswith(" simulated")]
        return {study: _figure({"dyna_q": curve}, _PLANNING, "simulated minibatches for each real one", base=4)}
    if study != "workers":
        return {}
    curves: Curves = {}
    often: dict[int, list[tuple[int, Result]]] = {}  # by local steps; those of the preset are among the curves too
    for run in runs:
        name, _, number = run["kind"].rpartition(", ")
        if "local steps" not in name:
            curves.setdefault(name, []).append((int(number), run))
        if name.startswith("dqn on ps"):
            often.setdefault(run["local_steps"], []).append((int(number), run))
    chosen = {study: curves}
    if any("local steps" in run["kind"] for run in runs):
        chosen["local-steps"] = {f"{steps} local steps": often[steps] for steps in sorted(often)}
    return {name: _figure(some, _WORKERS, "workers", base=2) for name, some in chosen.items()}


@matplotlib.rc_context(plot.STYLE)
def _figure(curves: Curves, panels: Mapping[str, Callable[[Result], float]], xlabel: str, *, base: int) -> Figure:
    """A dot for each run over its number, and by curve a line through the medians.

    An agent has one colour, and a dashed line in shared memory.

    Args:
      panels: what is drawn, by title; NaN where a run never reached the goal, and no line goes there.
      base: of the logarithm of the numbers, which may be 0 too.
    """
    rows = len(panels) // 2
    figure = Figure(figsize=(9, 1 + 3.5 * rows), layout="constrained")
    agents = {name: re.sub(" on (ps|shared_memory)", "", name) for name in curves}
    colours = dict(zip(dict.fromkeys(agents.values()), itertools.cycle(plot.COLOURS), strict=False))
    points = [point for curve in curves.values() for point in curve]
    ticks = sorted({number for number, _ in points})
    cores, goal = (max((_of(run, name) for _, run in points), default=math.nan) for name in ("cores", "goal"))
    faint: Any = {"color": "0.6", "linewidth": 1}
    for axes, (title, of) in zip(figure.subplots(rows, 2).flat, panels.items(), strict=True):
        axes.update_datalim([(at, 0) for at in ticks], updatey=False)
        told = Counter[int]()  # lines of text at a number
        for name, curve in curves.items():
            colour, line = colours[agents[name]], "--" if "shared_memory" in name else "-"
            numbers = sorted({number for number, _ in curve})
            values = [np.array([of(run) for number, run in curve if number == at]) for at in numbers]
            medians = np.array(list(map(np.median, values)))
            if title == _SPEED_UP:
                one = medians[numbers.index(1)] if 1 in numbers else math.nan
                values, medians = [one / own for own in values], one / medians
            for at, own in zip(numbers, values, strict=True):
                axes.plot([at] * len(own), own, "o", ms=4, color=colour, alpha=0.5)
                reached = int(np.isfinite(own).sum())
                if title.endswith("to the goal") and reached < len(own):
                    place = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "top", "fontsize": 8}
                    axes.text(at, 1 - 0.05 * told[at], f"{reached} of {len(own)}", color=colour, **place)
                    told[at] += 1
            axes.plot(
                numbers, medians, color=colour, linestyle=line, label=name.replace("shared_memory", "shared memory")
            )
        if title == _RETURN:
            axes.axhline(goal, **faint, label="goal")
        if panels is _WORKERS and math.isfinite(cores):
            axes.axvline(cores, **faint, linestyle=":", label="cores")
        if title == _SPEED_UP:
            axes.axline((1, 1), (2, 2), **faint, label="ideal")
        axes.set(title=title, xlabel=xlabel, xmargin=0.1, ymargin=0.25)
        axes.set_xscale("symlog", base=base, linthresh=1, linscale=1 - 1 / base)
        axes.set_xticks(ticks, map(str, ticks))
        if panels is _WORKERS:  # some agents need a hundred times as long as others
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter("{x:,g}")
    lines = {str(line.get_label()): line for axes in figure.axes for line in axes.get_lines()}
    named = {label: line for label, line in lines.items() if not label.startswith("_")}
    how = "dot: one run; line: medians; 1 of 3: runs that reached the goal"
    figure.legend(named.values(), named, loc="outside lower center", ncols=3, title=how, title_fontsize=9)
    return figure
