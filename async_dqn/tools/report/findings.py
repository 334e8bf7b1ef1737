"""What a set of runs shows: report.md and report.html with tables and pictures, from the runs' files alone."""

import base64
import html
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from async_dqn.base.files import write_atomically, write_json
from async_dqn.run.directory import is_over
from async_dqn.run.progress import count, format_seconds
from async_dqn.run.worker_table import read_process
from async_dqn.tools.report import plot, studies
from async_dqn.tools.report.runs import BASELINE, Run, finite, read_evaluation, read_megabytes, read_stalenesses
from async_dqn.tools.tables import cell, number, table

_MAX_STALENESS = 60  # that has a bar of its own
_HOW_TO_READ = "Each cell is the median over seeds, with [least - most]. Times count from the first agent step."
_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
body { margin: 0 auto; max-width: 60rem; padding: 1rem; font: 16px/1.5 system-ui; color: #222; background: #fff }
h1 { font-size: 1.6rem } h2 { margin-top: 2.5rem; font-size: 1.2rem } img { width: 100% }
div { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top }
th:first-child, td:first-child { padding-left: 0; text-align: left } li, p { overflow-wrap: anywhere }
</style></head>
<body>
$body
</body></html>
""")


def write_report(
    runs: Sequence[Run], calls: Sequence[Mapping], folder: Path, *, num_planned: int, study: str = ""
) -> None:
    """Writes report.md, report.html and figures/*.png into a folder. Raises OSError.

    Args:
      runs: those that have begun, one or more.
      calls: the commands that trained them, each with its date.
      num_planned: runs that there will be.
      study: its name, where it is one; it has its numbers in results.json too.
    """
    env = runs[0].settings.get("env", "?")
    title = f"{runs[0].settings.get('agent', '?')} on {env}: one process and clusters"
    if study:
        title = f"{study} on {env}"
    over = [run for run in runs if is_over(run.exit_reason)]
    made: dict[str, list[str]] = {}
    for run in runs:
        model = f" ({run.host['cpu_model']})" if run.host.get("cpu_model") else ""
        where = f"{run.host.get('cpu', '?')}{model}, {run.host.get('cores', '?')} cores"
        made.setdefault(f"revision {run.described.get('git_revision')} on {where}", []).append(run.title)
    blocks = [f"# {title}", "## Result"]
    if len(over) < num_planned:
        blocks.append(f"Not complete: {count(len(over), 'run')} of {num_planned} so far.")
    if len(made) > 1:
        blocks.append("Versions of this program, or processors, differ between runs (see the end); so may their times.")
    if over:
        rows = [["", *_kinds(over)], *result_rows(over)]
        if study:  # it has more kinds than quantities
            rows = [list(row) for row in zip(*rows, strict=True)]
        blocks += [table(rows[0], rows[1:]), _HOW_TO_READ]
    if over and (drawn := studies.figures(study, [result(run) for run in over])):
        caption = "A dot is one run. A line goes through the medians, but not to where a run never reached the goal."
        blocks += [f"## {study.title()}", *(_picture(drawn[name], folder, name, caption) for name in drawn)]
    blocks.append("## Learning curves")
    for x, what in (("steps", "agent steps of all workers"), ("time", "training time")):
        figure = plot.learning_curves(plot.group(runs), x, window=100)
        caption = f"Mean return of 100 games over {what}."
        blocks.append(_picture(figure, folder, f"return-{x}", caption))
    counts = {kind: sum(map(read_stalenesses, of), Counter()) for kind, of in _kinds(runs).items() if kind != BASELINE}
    if any(counts.values()) and not study:
        caption = "Updates that were applied between the pull that an update was computed on and its push."
        colours = dict(zip(_kinds(runs), itertools.cycle(plot.COLOURS), strict=False))
        blocks += ["## Staleness", _picture(staleness_figure(counts, colours), folder, "staleness", caption)]
    header = ["", "ended", "agent steps", "time", "time to the goal", "best mean of 100 games", "greedy games"]
    blocks += ["## Runs", table(header, [run_row(run) for run in runs])]
    blocks.append(_list(f"{run.title}: {'; '.join(lines)}" for run in runs if (lines := [*run.notes, *_troubles(run)])))
    header = ["", "agent steps", "minibatches", "minibatches per step", "% waiting", "cores used", "memory, MB"]
    blocks += ["## Processes", table(header, [row for run in runs for row in process_rows(run)])]
    lines = [f"{call.get('command', '?')}, {call.get('date', '?')}" for call in calls]
    blocks += ["## How it was made", _list([*lines, *(f"{how}: {'; '.join(of)}" for how, of in made.items())])]
    if study:
        found = {"calls": [dict(call) for call in calls], "runs": [result(run) for run in runs]}
        write_json(folder / "results.json", found, indent=1)
    body = "\n".join(_as_html(block, folder) for block in blocks if block)
    write_atomically(folder / "report.md", ("\n\n".join(filter(None, blocks)) + "\n").encode())
    write_atomically(folder / "report.html", _PAGE.substitute(title=html.escape(title), body=body).encode())


def result(run: Run) -> dict[str, Any]:
    """What tables and pictures say of a run, for programs: numbers without those that it lacks, and what it ran on."""
    about = {"kind": run.kind, "seed": run.settings.get("seed"), "ended": run.exit_reason}
    about["local_steps"] = run.settings.get("local_steps")
    machine = {name: run.host.get(name) for name in ("cpu", "cpu_model", "cores")}
    machine["revision"] = run.described.get("git_revision")
    numbers = {name: value for name, value in quantities(run).items() if math.isfinite(value)}
    return about | machine | ({} if math.isnan(run.goal) else {"goal": run.goal}) | numbers


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _picture(figure: Figure, folder: Path, name: str, caption: str) -> str:
    plot.save(figure, folder / "figures" / f"{name}.png")
    return f"![{caption}](figures/{name}.png)\n\n{caption}"


def _as_html(block: str, folder: Path) -> str:
    """A block of the markdown above, its picture inside, so that the page needs no other file. Raises OSError."""
    lines = html.escape(block).split("\n")
    if block.startswith("#"):
        marks, _, text = lines[0].partition(" ")
        return f"<h{len(marks)}>{text}</h{len(marks)}>"
    if picture := re.match(r"!\[(.*)\]\((.*)\)", lines[0]):
        data = base64.b64encode((folder / picture[2]).read_bytes()).decode()
        return f'<img alt="{picture[1]}" src="data:image/png;base64,{data}"><p>{picture[1]}</p>'
    if block.startswith("- "):
        return f"<ul>{''.join(f'<li>{line[2:]}</li>' for line in lines)}</ul>"
    if block.startswith("| "):
        header, _, *rows = ([text.strip() for text in line[1:-1].split("|")] for line in lines)
        head = "".join(f"<th>{text}</th>" for text in header)
        body = "".join(f"<tr>{''.join(f'<td>{text}</td>' for text in row)}</tr>" for row in rows)
        return f"<div><table><tr>{head}</tr>{body}</table></div>"
    return f"<p>{lines[0]}</p>"


def result_rows(runs: Sequence[Run]) -> list[list[str]]:
    """For each quantity that some run has, a cell for each kind of run: median and range over the seeds.

    The speed-up is that of the median time to the goal over the baseline's, where all runs of both have reached it.
    """
    kinds = {kind: [quantities(run) for run in members] for kind, members in _kinds(runs).items()}
    rows = [[name, *(cell([one[name] for one in own]) for own in kinds.values())] for name in quantities(runs[0])]
    if any(not math.isnan(run.goal) for run in runs):
        minutes = {kind: [one["minutes to the goal"] for one in own] for kind, own in kinds.items()}
        reached = [f"{int(np.isfinite(own).sum())} of {len(own)}" for own in minutes.values()]
        speed_ups = [number(np.median(minutes.get(BASELINE, math.nan)) / np.median(own)) for own in minutes.values()]
        rows = [["runs that reached the goal", *reached], *rows, ["speed-up by time to the goal", *speed_ups]]
    return [row for row in rows if set(row[1:]) != {"-"}]


def quantities(run: Run) -> dict[str, float]:
    """What runs are compared by; NaN where one has no such number."""

    def found(name: str) -> float:
        return finite(run.summary.get(name))

    seconds = found("wall_seconds") or math.nan
    has_lost = found("steps_lost") > 0  # whose bytes were counted, and whose time was not
    return {
        "best mean of 100 games": found("best_mean_return_100"),
        "games to the goal": found("episodes") if found("solved_at_seconds") > 0 else math.nan,  # where a run ends
        "agent steps to the goal": found("solved_at_steps"),
        "minutes to the goal": found("solved_at_seconds") / 60,
        "agent steps/s": found("env_steps") / seconds,
        "minibatches/s": found("minibatches") / seconds,
        "updates/s": found("updates") / seconds,
        "MB/s exchanged": math.nan if has_lost else read_megabytes(run) / seconds,
        "mean staleness": found("staleness_mean"),
        "mean age of data": found("data_age_mean"),
        "greedy games, mean return": finite(read_evaluation(run.path).get("mean")),
    }


def run_row(run: Run) -> list[str]:
    """How one run went."""
    steps, *seconds = (finite(run.summary.get(name)) for name in ("env_steps", "wall_seconds", "solved_at_seconds"))
    returns = [quantities(run)[name] for name in ("best mean of 100 games", "greedy games, mean return")]
    reason = run.exit_reason.partition(":")[0]
    return [run.title, reason, number(steps), *map(format_seconds, seconds), *map(number, returns)]


def _troubles(run: Run) -> Iterator[str]:
    """What a run survived, and the workers that it ended without."""
    for name in ("worker_restarts", "ps_recoveries", "steps_lost"):
        if finite(run.summary.get(name)) > 0:
            yield f"{name}: {run.summary[name]:,.0f}"
    workers = run.summary.get("workers")
    for index, worker in enumerate(workers if is_over(run.exit_reason) and isinstance(workers, list) else ()):
        if isinstance(worker, dict) and worker.get("state", "done") != "done":
            yield f"worker {index} was {worker['state']} at the end"


def process_rows(run: Run) -> Iterator[list[str]]:
    """What each worker and each ps did and took, as far as it has recorded it."""
    for job in ("worker", "ps"):
        for folder in sorted(run.path.glob(f"{job}-*"), key=lambda path: (len(path.name), path.name)):
            found = read_process(folder / "metrics.csv", last=None) or {}
            found["ratio"] = found.get("minibatches", math.nan) / (found.get("env_steps") or math.nan)
            names = ("env_steps", "minibatches", "ratio", "waiting_percent", "cores_mean", "resident_mb")
            cells = [number(found.get(name, math.nan)) for name in names]
            yield [f"{run.title}: {folder.name.replace('-', ' ')}", *cells]


@matplotlib.rc_context(plot.STYLE)
def staleness_figure(counts: Mapping[str, Mapping[int, int]], colours: Mapping[str, str]) -> Figure:
    """How often an update was how stale, in percent.

    Args:
      counts: updates by their staleness, by kind of run; a kind may have none.
      colours: of each kind.
    """
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.add_subplot()
    highest = min(_MAX_STALENESS, max(max(own, default=0) for own in counts.values()))
    width = 0.8 / len(counts)
    for place, (kind, own) in enumerate(counts.items()):
        times = np.bincount(np.minimum(list(own), highest).astype(int), list(own.values()), highest + 1)
        where = np.arange(highest + 1) + (place - (len(counts) - 1) / 2) * width
        axes.bar(where, 100 * times / max(1, times.sum()), width, color=colours[kind], label=kind)
    more = f" ({highest}: or more)" if highest == _MAX_STALENESS else ""
    axes.set(xlabel=f"staleness, in updates{more}", ylabel="% of updates")
    axes.xaxis.set_major_locator(MaxNLocator(20, integer=True))
    axes.legend()
    return figure


def _kinds(runs: Sequence[Run]) -> dict[str, list[Run]]:
    return {kind: [run for run in runs if run.kind == kind] for kind in dict.fromkeys(run.kind for run in runs)}
