"""From the data in bench.json to bench.md: medians of all repetitions and their ranges. Nothing is measured here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from async_dqn.tools.tables import cell, number, table

_TITLES = {
    "programs": "Whole programs, learning phase only",
    "parts": "Parts",
    "limit": "Limits: nothing but the learner",
    "scale": "Other sizes",
}

RATIO_SECTIONS = ("programs", "limit")  # whose measurements are compared with each other
MAX_OTHERS = 0.1  # share of the cores that other programs may take during a measurement that a ratio is made of
_BUSY = "machine was busy"

Result = Mapping[str, Any]  # of one measurement, as `command.measure_in_turn` gives it
Row = Mapping[str, Mapping[int, float]]  # {metric: {repetition: value}} of one case


def report(data: Mapping[str, Any]) -> str:
    """The whole report in markdown, from what bench.json holds."""
    results = data["results"]
    blocks = ["# async-dqn bench", _origin(data), _warnings(data)]
    for section in dict.fromkeys(result["section"] for result in results):
        rows = collect(results, section)
        blocks += [f"## {_TITLES.get(section, section)}", *section_tables(rows, one_table=section == "programs")]
        failed = [result for result in results if result["section"] == section and "error" in result]
        blocks.append("\n".join(f"- **failed**: {result['name']}: {result['error']}" for result in failed))
        if section == "programs":
            if ratios := ratio_table(results):
                blocks += ["Ratios: the median of the ratios of each repetition.", ratios]
            captioned = {
                "Each process: the CPU time it takes, and its memory at the end of the window.": process_rows(rows, ""),
                "Where the time of each worker's cycle goes.": process_rows(rows, " %"),
            }
            blocks += [block for caption, found in captioned.items() if found for block in (caption, grid(found))]
    if data.get("soak"):
        plain = {name: value for name, value in data["soak"].items() if isinstance(value, str | float | int)}
        cells = [[name, value if isinstance(value, str) else number(value)] for name, value in plain.items()]
        blocks += ["## Soak", table(["", ""], cells)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _origin(data: Mapping[str, Any]) -> str:
    origin, plan, sections = data["origin"], data["plan"], {result["section"] for result in data["results"]}
    measured = {
        f"work {plan['work']}": True,
        f"repetitions: {plan['repetitions']}, all cases in turn": sections,
        f"windows of {plan['seconds']:g} s": sections & {"programs", "scale", "sharing"},
    }
    flags = ", ".join(origin["cpu flags"]) or "no vector units known"
    lines = [
        f"`{origin['command']}`, {origin['date']}",
        "; ".join(text for text, is_true in measured.items() if is_true),
        f"{origin['cpu']} ({'; '.join(filter(None, [origin.get('cpu model'), flags]))}), {origin['cores']} cores, "
        f"{origin['memory GB']:g} GB; {origin['system']}",
        f"{_versions(origin['versions'])}; revision {origin['git revision'] or 'unknown'}",
        *(f"{name}: {_versions(found)}; it computes in float32" for name, found in origin.get("peers", {}).items()),
        *([f"our programs compute in {plan['settings']['compute_dtype']}"] if origin.get("peers") else []),
        "cells are the median of all repetitions and [least - most]",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _versions(found: Mapping[str, str | None]) -> str:
    return ", ".join(f"{package} {version or '-'}" for package, version in found.items())


def _warnings(data: Mapping[str, Any]) -> str:
    """A line on each thing that makes the figures less reliable."""
    lines = [f"the machine was busy: {line}" for line in data["busy"]]
    if data.get("interrupted"):
        lines.append(f"interrupted after {len(data['results'])} of {data['plan']['measurements']} measurements")
    if taken := [result["others"] for result in data["results"] if _is_busy(result)]:
        lines.append(
            f"other programs took up to {max(taken):.0%} of the cores during {len(taken)} of "
            f"{len(data['results'])} measurements; no ratios are made where it was more than {MAX_OTHERS:.0%}"
        )
    if data["plan"]["repetitions"] == 1:
        lines.append("one repetition says nothing on how much these figures vary")
    return "\n".join(f"**Warning: {line}.**  " for line in lines)


def collect(results: Iterable[Result], section: str) -> Mapping[str, Row]:
    """What was measured in a section, by the name of the case."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for result in results:
        if result["section"] == section and "values" in result:
            row = found.setdefault(result["name"], {})
            for metric, value in result["values"].items():
                row.setdefault(metric, {})[result["repetition"]] = value
    return found


def section_tables(rows: Mapping[str, Row], *, one_table: bool) -> list[str]:
    """A table for all cases with the same metrics, or one for all; metrics of single processes are left out."""
    tables: dict[Any, dict[str, Row]] = {}
    for name, row in rows.items():
        own = {metric: values for metric, values in row.items() if ": " not in metric}
        tables.setdefault(one_table or tuple(own), {})[name] = own
    return [grid(found) for found in tables.values()]


def process_rows(programs: Mapping[str, Row], unit: str) -> Mapping[str, Row]:
    """A row for each process of each program: its shares of time where `unit` is " %", else what it takes."""
    found: dict[str, dict[str, Mapping[int, float]]] = {}
    for name, row in programs.items():
        for key, values in row.items():
            metric, _, process = key.partition(": ")
            if process and metric.endswith(" %") == (unit == " %"):
                found.setdefault(name if process == name else f"{name}: {process}", {})[metric] = values
    return found


def _is_busy(result: Result) -> bool:
    """Whether other programs took too much of the machine meanwhile; an earlier version did not measure it."""
    return result.get("others", 0.0) > MAX_OTHERS


def ratio_table(results: Sequence[Result]) -> str:
    """Of our programs to what they are compared with; where only busy repetitions have a ratio, it says so."""
    calm = [result for result in results if not _is_busy(result)]
    rows, trusted = (ratio_rows(*(collect(some, section) for section in RATIO_SECTIONS)) for some in (results, calm))

    def text(to: str, name: str) -> str:
        kept = trusted.get(to, {}).get(name, {})
        return _BUSY if rows[to].get(name) and not kept else cell(list(kept.values()))

    ours = list(dict.fromkeys(name for row in rows.values() for name in row))
    return table(["", *ours], [[to, *(text(to, name) for name in ours)] for to in rows])


def ratio_rows(programs: Mapping[str, Row], limits: Mapping[str, Row]) -> dict[str, Row]:
    """Each of our programs against the baseline and each peer (steps) and each learner-only limit (minibatches)."""
    ours = [name for name in programs if name == "baseline" or name.startswith("local")]
    others = [(name, row, "agent steps/s") for name, row in programs.items() if not name.startswith("local")]
    others += [(name, row, "minibatches/s") for name, row in limits.items()]
    found = {
        f"to {other}": {name: ratios(programs[name], row, metric) if name != other else {} for name in ours}
        for other, row, metric in others
    }
    return {name: row for name, row in found.items() if any(row.values())}


def ratios(upper: Row, lower: Row, metric: str) -> dict[int, float]:
    """One case's metric over another's, for each repetition that has both."""
    below = lower.get(metric, {})
    return {index: value / below[index] for index, value in upper.get(metric, {}).items() if below.get(index)}


def grid(rows: Mapping[str, Row]) -> str:
    """A table with a row a name and a column a metric."""
    metrics = list(dict.fromkeys(metric for row in rows.values() for metric in row))
    cells = [[name, *(cell(list(row.get(metric, {}).values())) for metric in metrics)] for name, row in rows.items()]
    return table(["", *metrics], cells if metrics else [])
