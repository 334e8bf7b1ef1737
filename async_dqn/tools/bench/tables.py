"""From the data in bench.json to tables, without measuring anything: medians of all repetitions, and their ranges."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_TITLES = {
    "programs": "Whole programs, learning phase only",
    "parts": "Parts",
    "limit": "Limits: nothing but the learner",
    "scale": "Other sizes",
    "learning": "What learning pays for speed",
}
_RATE, _LEARNED = "agent steps/s", "minibatches/s"
_DISTURBED = 0.1  # cores taken by others

Result = Mapping[str, Any]


def report(data: Mapping[str, Any]) -> str:
    """The whole report, as markdown.

    Args:
      data: what bench.json holds: "origin", "busy", "plan", "results", "soak", "interrupted".
    """
    results = data["results"]
    blocks = ["# async-dqn bench", _origin(data), *_warnings(data)]
    for section in _unique(result["section"] for result in results):
        blocks += [f"## {_TITLES.get(section, section)}", *section_blocks(results, section)]
        if section == "programs":
            blocks += _program_blocks(results)
    if data.get("soak"):
        blocks += ["## Soak", soak_table(data["soak"])]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _origin(data: Mapping[str, Any]) -> str:
    origin = data["origin"]
    versions = ", ".join(f"{name} {version or '-'}" for name, version in origin["versions"].items())
    lines = [
        f"`{origin['command']}`, {origin['date']}",
        _what_was_measured(data),
        f"{origin['cpu']} ({', '.join(origin['cpu flags']) or 'no vector units known'}), {origin['cores']} cores, "
        f"{origin['memory GB']:g} GB; {origin['system']}",
        f"{versions}; revision {origin['git revision'] or 'unknown'}",
    ]
    for name, found in origin.get("peers", {}).items():
        lines.append(f"{name}: {', '.join(f'{package} {version}' for package, version in found.items())}")
    lines.append("cells are the median of all repetitions and [least - most]")
    return "\n".join(f"- {line}" for line in lines)


def _what_was_measured(data: Mapping[str, Any]) -> str:
    plan, sections = data["plan"], {result["section"] for result in data["results"]}
    words = []
    if sections != {"learning"} or data.get("soak"):  # learning has tasks of its own, each to its end
        words.append(f"work {plan['work']}")
    if sections:
        words.append(f"repetitions: {plan['repetitions']}, all cases in turn")
    if sections & {"programs", "scale"}:
        words.append(f"windows of {plan['seconds']:g} s")
    return "; ".join(words)


def _warnings(data: Mapping[str, Any]) -> list[str]:
    """What makes the figures less than they seem."""
    lines = [f"the machine was busy: {line}" for line in data["busy"]]
    disturbed = {result["name"]: result["others"] for result in sorted(data["results"], key=_others)}
    worst = [f"{name}: {number(cores)}" for name, cores in disturbed.items() if cores > _DISTURBED]
    if worst:
        lines.append(f"other processes took cores meanwhile, of {', '.join(worst)}")
    if data.get("interrupted"):
        lines.append(f"interrupted after {len(data['results'])} of {data['plan']['measurements']} measurements")
    if data["plan"]["repetitions"] == 1:
        lines.append("one repetition says nothing on how much these figures vary")
    return ["\n".join(f"**Warning: {line}.**  " for line in lines)] if lines else []


def _others(result: Result) -> float:
    """Cores that other processes took during a measurement."""
    return result["others"]


def section_blocks(results: Iterable[Result], section: str) -> list[str]:
    """A table for each kind of case in a section, and a list of what failed."""
    own = [result for result in results if result["section"] == section]
    columns = {name: _metrics(own, name) for name in _unique(result["name"] for result in own)}
    kinds: list[list[str]] = []
    if section == "programs":
        kinds = [list(columns)]
    else:
        for kind in _unique(tuple(names) for names in columns.values()):
            kinds.append([name for name, names in columns.items() if tuple(names) == kind])
    blocks = []
    for names in kinds:
        measured = [name for name in names if columns[name]]
        metrics = _unique(metric for name in measured for metric in columns[name])
        rows = [[name, *(_cell_of(metric, _values(own, name, metric)) for metric in metrics)] for name in measured]
        blocks.append(table(["", *metrics], rows))
    return [*blocks, failures(own)]


def failures(results: Sequence[Result]) -> str:
    """A line on each case that failed, once or always."""
    lines = []
    for name in _unique(result["name"] for result in results if "error" in result):
        own = [result for result in results if result["name"] == name]
        reasons = [result["error"] for result in own if "error" in result]
        lines.append(f"- **failed** ({len(reasons)} of {len(own)}): {name}: {reasons[0]}")
    return "\n".join(lines)


def _program_blocks(results: Sequence[Result]) -> list[str]:
    tables = {
        "Ratios: the median of the ratios of each repetition.": ratio_table(results),
        "Each process: the CPU time it takes, and its memory at the end of the window.": process_table(
            results, lambda metric: not metric.endswith(" %")
        ),
        "Where the time of each worker's cycle goes.": process_table(results, lambda metric: metric.endswith(" %")),
    }
    return [block for caption, text in tables.items() if text for block in (caption, text)]


def process_table(results: Sequence[Result], wanted: Callable[[str], bool]) -> str:
    """What is known of each process of a program: a row each.

    Args:
      wanted: whether a metric, without its process, is a column.
    """
    own = [result for result in results if result["section"] == "programs" and "values" in result]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for result in own:
        for key in result["values"]:
            metric, _, process = key.partition(": ")
            if process and wanted(metric):
                row = rows.setdefault((result["name"], process), {})
                row[metric] = cell(_values(own, result["name"], key))
    metrics = _unique(metric for row in rows.values() for metric in row)
    cells = [
        [name if process == name else f"{name}: {process}", *(row.get(metric, "-") for metric in metrics)]
        for (name, process), row in rows.items()
    ]
    return table(["", *metrics], cells)


def ratio_table(results: Sequence[Result]) -> str:
    """How our programs stand to the baseline, to each peer and to each learner-only limit."""
    programs = _unique(result["name"] for result in results if result["section"] == "programs")
    ours = [name for name in programs if name == "baseline" or name.startswith("local")]
    limits = _unique(
        result["name"] for result in results if result["section"] == "limit" and _LEARNED in result.get("values", {})
    )
    others = [("programs", name, _RATE) for name in programs if not name.startswith("local")]
    others += [("limit", name, _LEARNED) for name in limits]
    rows = []
    for section, other, metric in others:
        cells = ["-" if name == other else cell(ratios(results, name, (section, other), metric)) for name in ours]
        if any(text != "-" for text in cells):
            rows.append([f"to {other}", *cells])
    return table(["", *ours], rows)


def ratios(results: Sequence[Result], name: str, other: tuple[str, str], metric: str) -> list[float]:
    """One program's metric over that of another case (section, name), for each repetition that has both."""
    upper, lower = (_by_repetition(results, case, metric) for case in (("programs", name), other))
    return [upper[index] / lower[index] for index in sorted(upper.keys() & lower.keys()) if lower[index]]


def _by_repetition(results: Sequence[Result], case: tuple[str, str], metric: str) -> dict[int, float]:
    return {
        result["repetition"]: result["values"][metric]
        for result in results
        if (result["section"], result["name"]) == case and metric in result.get("values", {})
    }


def soak_table(soak: Mapping[str, Any]) -> str:
    """Plain values of a soak, a row each; lists and the like stay in bench.json."""
    plain = {name: value for name, value in soak.items() if isinstance(value, bool | int | float | str)}
    return table(
        ["", ""],
        [
            [name, value if isinstance(value, str) else str(value) if isinstance(value, bool) else number(value)]
            for name, value in plain.items()
        ],
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table, its first column to the left and all others to the right; nothing without rows."""
    if not rows:
        return ""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(text.replace('|', '/') for text in line)} |" for line in lines)


def _cell_of(metric: str, values: Sequence[float]) -> str:
    """A share of all repetitions is a mean: each of them has 0 or 100 %."""
    return number(statistics.fmean(values)) if values and metric.startswith("% of ") else cell(values)


def cell(values: Sequence[float]) -> str:
    """The median and, where it says more, the range."""
    if not values:
        return "-"
    middle, least, most = number(statistics.median(values)), number(min(values)), number(max(values))
    return middle if least == most else f"{middle} [{least} - {most}]"


def number(value: float) -> str:
    """Three digits that say something: 1,234, 123, 12.3, 1.23, 0.123, 0.00123."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1 or size == 0:
        return f"{value:.2f}" if size else "0"
    return f"{value:.3g}"


def _metrics(results: Iterable[Result], name: str) -> list[str]:
    """Of a case as a whole, not of its single processes."""
    own = (result for result in results if result["name"] == name)
    return _unique(metric for result in own for metric in result.get("values", {}) if ": " not in metric)


def _values(results: Iterable[Result], name: str, metric: str) -> list[float]:
    own = (result.get("values", {}) for result in results if result["name"] == name)
    return [values[metric] for values in own if metric in values]


def _unique(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))
