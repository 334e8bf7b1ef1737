"""Studies: what `async-dqn compare --study=NAME` trains, each a list of kinds of run on the same environment."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from async_dqn.agents import table
from async_dqn.run.progress import count
from async_dqn.settings.config import Config
from async_dqn.tools.report import plot
from async_dqn.tools.report.runs import Run, finite

_GOAL = {"env": "CartPole-v1", "stop_at_return": 195.0, "total_steps": 200_000}
_WORKER_COUNTS = (1, 2, 4, 8)
_LOCAL_STEPS = (0, 1, 16)  # beside those of the preset
_RATIOS = (0, 1, 4, 16, 64, 256)  # simulated minibatches for each real one


class Kind(NamedTuple):
    """One kind of run."""

    name: str
    job: str  # the command that trains it
    agent: str
    settings: dict[str, Any]


def _algorithms(quick: bool) -> Iterator[Kind]:
    del quick
    for agent in table.TABLE:
        yield Kind(agent, "baseline", agent, {})


def _sharing(quick: bool) -> Iterator[Kind]:
    yield Kind("one process", "baseline", "dqn", {})
    if not quick:
        for concurrent in (False, True):
            for synchronized in (False, True):
                name = f"fast_dqn{', concurrent' * concurrent}{', synchronized' * synchronized}"
                settings = {"concurrent": concurrent, "synchronized": synchronized}
                yield Kind(name, "baseline", "fast_dqn", settings)
    servers: dict[str, dict[str, Any]] = {
        "async": {"local_steps": 0},
        "async, 2 ps": {"local_steps": 0, "num_ps": 2},
        "async, deltas": {"local_steps": 1},
        "sync": {"update_mode": "sync"},
        "accumulate 2": {"update_mode": "accumulate", "accumulate": 2},
        "hogwild": {"store": "shared_memory", "update_mode": "hogwild"},
        "locked": {"store": "shared_memory", "update_mode": "locked"},
        "global replay": {"replay": "global"},
    }
    for name, settings in servers.items():
        yield Kind(name, "local", "dqn", {"num_workers": 2} | settings)


def _workers(quick: bool) -> Iterator[Kind]:
    for agent in ("dqn", "nstep_q", "a3c", "paac", "ppo", "dyna_q"):
        for store in ("ps",) if quick or agent == "paac" else ("ps", "shared_memory"):
            for number in _WORKER_COUNTS[:2] if quick else _WORKER_COUNTS:
                name = f"{agent} on {store}, {number}"
                yield Kind(name, "local", agent, {"store": store, "num_workers": number})
    for local_steps in () if quick else _LOCAL_STEPS:
        for number in _WORKER_COUNTS:
            name = f"dqn on ps, {local_steps} local steps, {number}"
            yield Kind(name, "local", "dqn", {"num_workers": number, "local_steps": local_steps})


def _parallelism(quick: bool) -> Iterator[Kind]:
    yield Kind("gradient, 1", "local", "a3c", {"num_workers": 1})  # one worker sends no rollouts
    ways: dict[str, dict[str, Any]] = {
        "gradient": {},
        "data": {"parallelism": "data"},
        "data, V-trace": {"parallelism": "data", "vtrace": True},
    }
    for name, settings in ways.items():
        for number in (2,) if quick else (2, 4):
            yield Kind(f"{name}, {number}", "local", "a3c", {"num_workers": number} | settings)


def _planning(quick: bool) -> Iterator[Kind]:
    # Real minibatches are few, so that there is something for planning to make up for.
    few = {"train_period": 16, "epsilon_steps": 2_000, "total_steps": 30_000}
    for ratio in _RATIOS[:3] if quick else _RATIOS:
        yield Kind(f"{ratio} simulated", "baseline", "dyna_q", few | {"max_simulated_ratio": float(ratio)})
    for sweeping in () if quick else ("prioritized", "novelty"):
        yield Kind(f"4 simulated, {sweeping}", "baseline", "dyna_q", few | {"sweeping": sweeping})


STUDIES: dict[str, Callable[[bool], Iterator[Kind]]] = {
    "algorithms": _algorithms,
    "sharing": _sharing,
    "workers": _workers,
    "parallelism": _parallelism,
    "planning": _planning,
}


def kinds(study: str, *, quick: bool) -> list[Kind]:
    """What a study trains; `quick`: the part of it that takes minutes."""
    return list(STUDIES[study](quick))


def config(kind: Kind, seed: int, shared: dict[str, Any]) -> Config:
    """The settings of one run, by the agent's preset for CartPole; `shared` are those that the user gave."""
    cls = table.find(kind.agent).Config
    fields = {field.name for field in dataclasses.fields(cls)}
    alone = cls.unshared() if kind.job == "baseline" else {}
    if kind.settings.get("store") == "shared_memory":
        alone = {"num_ps": 0}
    given = _GOAL | alone | kind.settings | shared | {"seed": seed}
    return table.make_config(kind.agent, "cartpole", {name: value for name, value in given.items() if name in fields})


_PANELS = {
    "games to the goal": lambda run: finite(run.summary.get("episodes")),
    "seconds to the goal": lambda run: finite(run.summary.get("solved_at_seconds")),
    "seconds per game": lambda run: finite(run.summary.get("wall_seconds")) / finite(run.summary.get("episodes")),
}


def workers_figures(runs: Sequence[Run], cores: float) -> dict[str, Figure]:
    """What more workers bring, by name: "workers" by agent and store, "local-steps" by how often DQN synchronises.

    Args:
      runs: with labels as `kinds` names them: "AGENT on STORE, NUMBER", "dqn on ps, K local steps, NUMBER".
      cores: of the machine, where a line is drawn; NaN: not known.
    """
    curves: dict[str, dict[int, list[Run]]] = {}
    for run in runs:
        name, _, number = run.kind.rpartition(", ")
        curves.setdefault(name, {}).setdefault(int(number), []).append(run)
    often = {name: curve for name, curve in curves.items() if "local steps" in name}
    figures = {"workers": _figure({name: curve for name, curve in curves.items() if name not in often}, cores)}
    if often:
        usual = count(table.find("dqn").presets["cartpole"]["local_steps"], "local step")
        preset = {f"{name}, {usual}": curve for name, curve in curves.items() if name == "dqn on ps"}
        figures["local-steps"] = _figure(preset | often, cores)
    return figures


@matplotlib.rc_context(plot.STYLE)
def _figure(curves: dict[str, dict[int, list[Run]]], cores: float) -> Figure:
    """Games and seconds to the goal, seconds per game, and the speed-up over one worker, over the number of workers.

    An agent has one colour, and a dashed line in shared memory. A number of workers with a run that never reached the
    goal has no point.
    """
    figure = Figure(figsize=(9, 8), layout="constrained")
    panels = figure.subplots(2, 2).ravel()
    colour_of = dict(zip(dict.fromkeys(map(_without_store, curves)), itertools.cycle(plot.COLOURS), strict=False))
    for name, by_number in curves.items():
        colour, line = colour_of[_without_store(name)], "--" if "shared_memory" in name else "-"
        numbers = sorted(by_number)
        found = {
            title: np.array([_median(by_number[number], of) for number in numbers]) for title, of in _PANELS.items()
        }
        found["speed-up over one worker"] = found["seconds to the goal"][0] / found["seconds to the goal"]
        for axes, values in zip(panels, found.values(), strict=True):
            axes.plot(numbers, values, marker="o", ms=4, color=colour, linestyle=line, label=name)
    for axes, title in zip(panels, [*_PANELS, "speed-up over one worker"], strict=True):
        axes.set_xscale("log", base=2)
        axes.set(title=title, xlabel="workers")
        axes.set_xticks(_WORKER_COUNTS, map(str, _WORKER_COUNTS))
        if title in _PANELS:  # some agents need a hundred times as long as others
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        if math.isfinite(cores):
            axes.axvline(cores, color="0.6", linewidth=1, linestyle=":")
    panels[-1].set_ylim(0, None)
    panels[-1].plot(_WORKER_COUNTS, _WORKER_COUNTS, color="0.6", linewidth=1, label="ideal")
    figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@matplotlib.rc_context(plot.STYLE)
def planning_figure(runs: Sequence[Run]) -> Figure:
    """How far Dyna-Q gets with how much planning: a dot for each run, a line through the medians.

    Args:
      runs: with labels as `kinds` names them: "RATIO simulated", and others, which are left out.
    """
    by_ratio: dict[int, list[Run]] = {}
    for run in runs:
        number, _, rest = run.kind.partition(" ")
        if rest == "simulated":
            by_ratio.setdefault(int(number), []).append(run)
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    panels = figure.subplots(1, 2)
    shown = {
        "best mean return of 100 games": lambda run: finite(run.summary.get("best_mean_return_100")),
        "agent steps to the goal": lambda run: finite(run.summary.get("solved_at_steps")),
    }
    for axes, (title, of) in zip(panels, shown.items(), strict=True):
        medians: list[float] = []
        for place, ratio in enumerate(sorted(by_ratio)):
            values = [of(run) for run in by_ratio[ratio]]
            axes.plot([place] * len(values), values, "o", ms=4, color=plot.COLOURS[0], alpha=0.5)
            medians.append(float(np.median(values)))  # NaN where a run never reached the goal
        axes.plot(range(len(medians)), medians, color=plot.COLOURS[0])
        limits = {"xlim": (-0.5, len(by_ratio) - 0.5), "ylim": (0, 1.05 * axes.get_ylim()[1])}
        axes.set(title=title, xlabel="simulated minibatches for each real one", **limits)
        axes.set_xticks(range(len(by_ratio)), map(str, sorted(by_ratio)))
        axes.yaxis.set_major_formatter("{x:,.0f}")
    return figure


def _without_store(name: str) -> str:
    return name.replace(" on ps", "").replace(" on shared_memory", "")


def _median(runs: Sequence[Run], of: Callable[[Run], float]) -> float:
    reached = all(math.isfinite(finite(run.summary.get("solved_at_seconds"))) for run in runs)
    return float(np.median([of(run) for run in runs])) if reached else math.nan
