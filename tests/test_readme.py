"""The tables of README and docs say what the code and the files in results/ say."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from async_dqn.__main__ import COMMANDS
from async_dqn.bench.tables import report
from async_dqn.bench.trend import slope
from async_dqn.bench.window import read_rows
from async_dqn.config import PRESETS, Config, make_config
from async_dqn.report.plot import run_plot

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SB3 = "Stable-Baselines3 DQN"
SPEED, FAULTS, REFERENCE, DESIGN = (
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("speed", "faults", "reference", "design")
)


def preset_table() -> str:
    """One row for each setting in which any preset differs from another."""
    names = list(PRESETS)
    rows = [f"| | {' | '.join(f'`{name}`' for name in names)} |", "|---" * (len(names) + 1) + "|"]
    for field in dataclasses.fields(Config):
        values = [getattr(make_config(name, {}), field.name) for name in names]
        if len(set(values)) > 1:
            rows.append(f"| `{field.name}` | {' | '.join(map(str, values))} |")
    return "\n".join(rows)


def result_row(name: str, label: str) -> str:
    """The README's line on one Pong run, from its summary and its evaluation."""
    folder = ROOT / "results" / "pong" / name
    summary = json.loads((folder / "summary.json").read_text())
    evaluation = json.loads((folder / "evaluation.json").read_text())
    cells = [
        label,
        f"{summary['solved_at_steps']:,}",
        f"{summary['solved_at_seconds'] / 60:.1f} min",
        f"{summary['env_steps'] / summary['wall_seconds']:.0f}",
        f"{summary['minibatches'] / summary['wall_seconds']:.0f}",
        f"{summary['staleness_mean']:.1f}",
        f"{evaluation['mean']:.1f} +- {evaluation['std']:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def test_the_preset_table_is_the_code_s() -> None:
    assert preset_table() in REFERENCE


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("baseline", "`baseline`, one process"),
        ("local", "`local`, 1 ps + 2 workers"),
        ("local-again", "`local-again`, the same, a later version"),
        ("local-third", "`local-third`, the same, beside a soak's sampling"),
        ("local-fourth", "`local-fourth`, the same, heap trimmed"),
    ],
)
def test_the_results_are_those_of_the_files(name: str, label: str) -> None:
    assert result_row(name, label) in README


def test_every_command_and_flag_named_exists() -> None:
    flags = set(re.findall(r"(?<![\w-])--([a-z_]+)", README + SPEED + FAULTS + REFERENCE + DESIGN)) - {"help"}
    known = {field.name for field in dataclasses.fields(Config)}
    known |= {option[0] for command in COMMANDS.values() for option in command.options}
    known |= {"preset", "resume", "logdir", "verbose", "cluster_spec", "task_index"}
    known |= set(re.findall(r'add_argument\("--(\w+)"', (ROOT / "tests" / "chaos" / "__main__.py").read_text()))
    assert flags <= known | {f"no{name}" for name in known}
    assert all(re.search(rf"`{name}[` ]", README) for name in COMMANDS)


def tables(text: str) -> list[str]:
    """The tables of a report, each as it stands there."""
    lines = [line if line.startswith("|") else "" for line in text.splitlines()]
    blocks = "\n".join(lines).split("\n\n")
    return [block.strip("\n") for block in blocks if block.strip("\n")]


def test_the_curves_are_drawn_from_the_files_by_the_command_beside_them(tmp_path: Path) -> None:
    found = re.findall(r"`launch/plot\.sh ([^`]+) --output=([^`]+)`", README)
    assert found
    for runs, picture in found:
        drawn = tmp_path / "drawn.png"
        run_plot([str(ROOT / run) for run in runs.split()], x="steps", smooth=100, output=str(drawn))
        # A little smaller, so that another version of matplotlib may set its letters in its own way.
        ours, again = (
            np.asarray(Image.open(path).convert("RGB").resize((200, 120)), np.float32)
            for path in (ROOT / picture, drawn)
        )
        assert np.abs(ours - again).mean() < 1  # a curve that is missing makes it 2.6 or more
        assert ours.std() > 10  # there is something on it


@pytest.mark.parametrize("name", ["nature", "parts", "scale", "learning"])
def test_the_tables_of_the_benchmark_are_those_of_the_files(name: str) -> None:
    folder = ROOT / "results" / "bench" / name
    data = json.loads((folder / "bench.json").read_text())
    text = (folder / "bench.md").read_text()
    assert text == report(data)
    found = tables(text)
    assert len(found) >= 1
    for table in found:
        assert table in SPEED, table
    assert data["origin"]["command"].removeprefix("async-dqn bench ").partition(" --output")[0] in SPEED


@pytest.mark.parametrize("name", ["cartpole", "pong"])
def test_the_tables_of_faults_are_those_of_the_files(name: str) -> None:
    text = (ROOT / "results" / "faults" / name / "chaos.md").read_text()
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    assert table in FAULTS
    (in_all,) = (line for line in table.splitlines() if line.startswith("| **all** |"))
    assert in_all.removeprefix("| **all**") in README


@pytest.mark.parametrize(
    ("worker", "minute"),
    [
        ("baseline/worker-0", 16),
        ("local/worker-0", 10),
        ("local/worker-1", 10),
        ("local-again/worker-0", 12),
        ("local-again/worker-1", 12),
        ("local-third/worker-0", 12),
        ("local-third/worker-1", 12),
        ("local-fourth/worker-0", 12),
        ("local-fourth/worker-1", 12),
        ("local-fourth/ps-0", 12),
    ],
)
def test_memory_grows_by_what_is_said(worker: str, minute: int) -> None:
    rows = [
        row
        for row in read_rows(ROOT / "results" / "pong" / worker / "metrics.csv")
        if row["wall_seconds"] >= 60 * minute
    ]
    value, low, high = slope([row["wall_seconds"] / 3600 for row in rows], [row["resident_mb"] for row in rows])
    assert f"| {worker} | {minute} | {value:.0f} [{low:.0f} - {high:.0f}] |" in SPEED


@pytest.mark.parametrize("name", ["nature-1", "nature-2", "nature"])
def test_the_ratios_of_each_time_the_benchmark_ran_are_those_of_the_files(name: str) -> None:
    folder = ROOT / "results" / "bench" / name
    data = json.loads((folder / "bench.json").read_text())
    text = (folder / "bench.md").read_text()
    assert text == report(data)
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| to ")]
    ratios = {what: of_cluster for _, what, _, of_cluster, _ in rows}
    when, repetitions = data["origin"]["date"].partition("T")[2][:5], data["plan"]["repetitions"]
    cells = [
        f"{when} UTC, {repetitions} repetitions",
        *(ratios[f"to {of}"] for of in ("baseline", f"{SB3}, 8 environments", "learner only, 2 processes, float32")),
    ]
    assert f"| {' | '.join(cells)} |" in README
