"""The tables of README and docs say what the code and the files in results/ say."""

import csv
import dataclasses
import json
import math
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from async_dqn.__main__ import COMMANDS
from async_dqn.run.progress import Progress
from async_dqn.settings.config import PRESETS, Config, make_config
from async_dqn.tools.bench import soak
from async_dqn.tools.bench.tables import report
from async_dqn.tools.bench.trend import slope
from async_dqn.tools.bench.window import read_rows
from async_dqn.tools.report.compare import Comparison, run_compare
from async_dqn.tools.report.experiment import check_counts
from async_dqn.tools.report.plot import run_plot

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SB3 = "Stable-Baselines3 DQN"
ALONE_AND_CLUSTER = ("baseline", "local, 1 ps + 2 workers")
DOCS = [
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("speed", "learning", "faults", "reference", "design")
]
SPEED, LEARNING, FAULTS, REFERENCE, DESIGN = DOCS
README_LINE, SPEED_LINE, LEARNING_LINE = (" ".join(text.split()) for text in (README, SPEED, LEARNING))


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
    """The line on one Pong run, from its summary and its evaluation."""
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
    assert result_row(name, label) in LEARNING


def reached_18(folder: Path, summary: dict) -> tuple[int | None, float | None]:
    """When the mean of 100 games came to 18; for a run that had no goal, by its rows of metrics."""
    if not math.isinf(float(json.loads((folder / "config.json").read_text())["config"]["stop_at_return"])):
        return summary["solved_at_steps"], summary["solved_at_seconds"]
    rows = read_rows(folder / "metrics.csv")
    row = next((row for row in rows if row["episodes"] >= 100 and row["mean_return_100"] >= 18), None)
    return (int(row["env_steps"]), row["wall_seconds"]) if row else (None, None)


def staleness_row(name: str, averages: str) -> str:
    """The line on one Pong run: how far behind its updates were, and the mean return of its games as it went on."""
    folder = ROOT / "results" / "pong" / name
    settings, summary = (json.loads((folder / file).read_text()) for file in ("config.json", "summary.json"))
    settings = settings["config"]
    is_cluster = averages != "-"
    deltas = settings["local_steps"] if settings["local_steps"] > 0 else 8  # -1, of one version, was 8 for two workers
    cells = [str(settings["num_workers"]), str(deltas), "beside" if settings["overlap"] else "between", averages]
    cells = [*cells, f"{summary['staleness_mean'] * deltas:.0f}"] if is_cluster else ["1", "-", "-", "-", "0"]
    rows = read_rows(folder / "episodes.csv")
    for low, high in ((160_000, 200_000), (200_000, 240_000), (260_000, 300_000), (400_000, 440_000)):
        returns = [row["episode_return"] for row in rows if low <= row["env_steps"] < high]
        cells.append(f"{np.mean(returns):.1f}" if summary["env_steps"] >= high else "-")
    steps, seconds = reached_18(folder, summary)
    cells.append(f"{steps:,}, {seconds / 60:.1f} min" if steps else "-")
    return f"| `{name.replace('/runs/', '/').removesuffix('/run')}` | {' | '.join(cells)} |"


@pytest.mark.parametrize(
    ("run", "averages"),
    [
        ("comparison/runs/standard-seed-0", "-"),
        ("comparison/runs/standard-seed-1", "-"),
        ("comparison/runs/async-2-seed-0", "own"),
        ("comparison/runs/async-2-seed-1", "own"),
        ("soak/run", "own"),
        ("two-workers-memory", "own"),
        ("comparison/runs/async-1-seed-0", "own"),
        ("comparison/runs/async-1-seed-1", "own"),
        ("comparison/runs/async-4-seed-0", "shared"),
        ("comparison/runs/async-4-seed-1", "shared"),
        ("standard-seed-0", "-"),
        ("standard-again", "-"),
        ("standard-seed-1", "-"),
        ("async-2-seed-0", "own"),
        ("one-worker", "own"),
        ("two-workers-long", "own"),
        ("two-workers-again", "own"),
        ("two-workers-averages", "shared"),
        ("two-workers-nooverlap", "own"),
        ("two-workers-short", "own"),
        ("two-workers-short-again", "own"),
        ("two-workers-short-seed-1", "own"),
        ("two-workers-stopped", "own"),
        ("two-workers-higher-rate", "own"),
        ("four-workers", "own"),
        ("four-workers-nooverlap", "own"),
        ("four-workers-averages", "shared"),
        ("four-workers-short-overlap", "shared"),
        ("four-workers-short", "shared"),
    ],
)
def test_what_staleness_costs_is_what_the_files_say(run: str, averages: str) -> None:
    assert staleness_row(run, averages) in LEARNING


def waiting_share(worker: Path) -> float:
    """Percent of a worker's time that went into waiting for the ps, by the last row of its metrics."""
    seconds = {name: value for name, value in read_rows(worker)[-1].items() if name.startswith("seconds_")}
    return 100 * seconds["seconds_waiting"] / sum(seconds.values())


def test_what_short_deltas_cost_is_what_the_files_say() -> None:
    pong = ROOT / "results" / "pong"
    short, again = (
        json.loads((pong / f"two-workers-{name}" / "summary.json").read_text()) for name in ("short", "again")
    )
    alone = json.loads((pong / "standard-again" / "summary.json").read_text())
    speeds = [f"{found['env_steps'] / found['wall_seconds']:.0f}" for found in (short, again, alone)]
    text = "{} steps/s instead of {} on the same day, when the baseline made {},".format(*speeds)
    assert text in LEARNING_LINE
    workers = [pong / "two-workers-short" / f"worker-{worker}" / "metrics.csv" for worker in (0, 1)]
    low, high = sorted(f"{waiting_share(worker):.0f}" for worker in workers)
    assert f"{low} to {high} %" in LEARNING


def test_the_short_runs_quoted_are_those_of_the_files() -> None:
    names = ("short", "short-seed-1", "higher-rate")
    greedy = []
    for name in names:
        evaluation = json.loads((ROOT / "results" / "pong" / f"two-workers-{name}" / "evaluation.json").read_text())
        greedy.append(f"{evaluation['mean']:.1f}")
    assert f"(greedy games of the first and the last: {greedy[0]} and {greedy[1]})" in LEARNING_LINE
    assert f"whose greedy games are at {greedy[2]}," in LEARNING_LINE
    stopped = json.loads((ROOT / "results" / "pong" / "settings" / "run-25" / "summary.json").read_text())
    assert stopped["exit_reason"] == "interrupted"
    quote = f"at a mean of {stopped['mean_return_100']:.1f} when it was stopped after {stopped['env_steps']:,} steps"
    assert quote in LEARNING_LINE


def test_the_comparison_is_quoted_as_its_files_say() -> None:
    runs = ROOT / "results" / "pong" / "comparison" / "runs"
    alone, cluster = (
        [json.loads((runs / f"{kind}-seed-{seed}" / "summary.json").read_text()) for seed in (0, 1)]
        for kind in ("standard", "async-2")
    )
    faster = np.divide(*[np.median([run["steps_per_second"] for run in kind]) for kind in (cluster, alone)])
    assert f"makes {faster:.2f} times the baseline's steps" in README_LINE
    assert f"the steps per second, {faster:.2f} times the baseline's" in README_LINE
    met, missed = sorted(run["solved_at_seconds"] - 20 * 60 for run in cluster)
    assert met <= 0 < missed
    assert f"one met the aim of 20 minutes to 18, one missed it by {missed:.0f} seconds and two by" in README_LINE
    later = [ROOT / "results" / "pong" / name for name in ("soak/run", "two-workers-memory")]
    found = [reached_18(folder, json.loads((folder / "summary.json").read_text())) for folder in later]
    quote = "even {:,} and {:,}, which took {:.1f} and {:.1f} minutes"
    steps, minutes = zip(*((steps, seconds / 60) for steps, seconds in found), strict=True)
    assert quote.format(*steps, *minutes) in README_LINE
    assert min(minutes) - 20 > 11  # "two by more than eleven minutes"
    assert "came to 18 after {:,} and {:,} steps, later than both".format(*steps) in LEARNING_LINE
    assert min(steps) > max(run["solved_at_steps"] for run in cluster)
    shares = [waiting_share(folder / f"worker-{worker}" / "metrics.csv") for folder in later for worker in (0, 1)]
    assert f"through memory, waited for {min(shares):.1f} to {max(shares):.1f} %" in README_LINE
    assert f"{min(shares[:2]):.1f} to {max(shares[:2]):.1f} % went into waiting for the ps" in SPEED_LINE
    needed = sorted([*(run["solved_at_steps"] for run in cluster), *steps])
    one = sorted(run["solved_at_steps"] for run in alone)
    quote = (
        f"needed {needed[0]:,} to {needed[-1]:,} steps in four runs, a single process {one[0]:,} and {one[-1]:,} in two"
    )
    assert quote in LEARNING_LINE
    first = json.loads((ROOT / "results" / "pong" / "async-2-seed-0" / "summary.json").read_text())
    assert f", {first['solved_at_steps']:,} and " in LEARNING_LINE
    four = [json.loads((runs / f"async-4-seed-{seed}" / "summary.json").read_text()) for seed in (0, 1)]
    more = np.divide(*[np.median([run["solved_at_steps"] for run in kind]) for kind in (four, cluster)])
    assert 1.8 < more < 2  # "nearly twice as many of them"
    assert max(run["steps_per_second"] for run in four) < min(run["steps_per_second"] for run in cluster)
    table = tables((runs.parent / "report.md").read_text())
    waiting = [
        line.split("|")[-2].strip(" %")
        for text in table
        for line in text.splitlines()
        if re.match(r"\| async-2, seed \d: worker", line) and line.endswith("% |")
    ]
    assert len(waiting) == 4
    assert f"and waited for {min(waiting)} to {max(waiting)} % of its time" in README_LINE
    one = json.loads((ROOT / "results" / "pong" / "one-worker" / "summary.json").read_text())
    stopped = f"{one['mean_return_100']:.1f} after {one['env_steps']:,} steps"
    assert stopped in LEARNING_LINE
    for name in ("standard-seed-1", "two-workers-stopped"):  # README: they stood still far below 18
        still = json.loads((ROOT / "results" / "pong" / name / "summary.json").read_text())
        assert still["exit_reason"] == "interrupted" and still["best_mean_return_100"] < 12


def test_the_runs_that_were_stopped_are_quoted_as_the_files_say() -> None:
    pong = ROOT / "results" / "pong"
    again, four = (
        json.loads((pong / name / "summary.json").read_text()) for name in ("two-workers-again", "four-workers")
    )
    assert again["exit_reason"] == "interrupted" and again["mean_return_100"] < 5
    assert f"still far from it after {again['env_steps']:,} another time" in LEARNING_LINE
    assert f"{four['steps_lost']:,} steps were made again" in LEARNING_LINE
    short = json.loads((pong / "four-workers-short" / "summary.json").read_text())
    quote = f"a mean of {short['mean_return_100']:.1f} when they were stopped after {short['env_steps']:,} steps"
    assert quote in LEARNING_LINE


def test_the_baseline_played_the_same_games_again() -> None:
    pong = ROOT / "results" / "pong"
    first, again = (
        [{name: row[name] for name in ("env_steps", "episode_return", "length")} for row in read_rows(path)]
        for path in (pong / "standard-seed-0" / "episodes.csv", pong / "standard-again" / "episodes.csv")
    )
    assert first == again and len(again) > 200


@pytest.mark.parametrize("run", ["two-workers", "three-workers-seed-1", "three-workers-seed-2"])
def test_how_small_deltas_learned_is_what_the_files_say(run: str) -> None:
    found = json.loads((ROOT / "results" / "cartpole" / run / "summary.json").read_text())
    assert found["env_steps"] == 30_000
    cells = f"{found['mean_return_100']:.1f} | {found['wall_seconds']:.0f}"
    assert f"| `{run}`, {found['num_ps']} ps | {cells} |" in LEARNING


TRIED = {
    "double": False,
    "learning_rate": 4e-4,
    "n_step": 5,
    "target_period": 500,
    "dueling": True,
    "optimizer_epsilon": 1.5e-4,
    "epsilon_steps": 50_000,
    "learning_rate_steps": 250_000,
}


def settings_run(name: str) -> tuple[dict, list[float]]:
    """The settings of one run, and the mean return of its games that ended in each of two intervals of 50,000 steps."""
    folder = ROOT / "results" / "pong" / "settings" / name
    rows = read_rows(folder / "episodes.csv")
    assert json.loads((folder / "summary.json").read_text())["env_steps"] >= 200_000
    halves = [
        [row["episode_return"] for row in rows if low < row["env_steps"] <= low + 50_000] for low in (100_000, 150_000)
    ]
    return json.loads((folder / "config.json").read_text())["config"], [float(np.mean(half)) for half in halves]


def settings_row(name: str) -> str:
    settings, means = settings_run(name)
    cells = ["x" if settings[flag] == value else "" for flag, value in TRIED.items()]
    return f"| `{name}` | {settings['seed']} | {' | '.join(cells)} | {' | '.join(f'{mean:.1f}' for mean in means)} |"


def effects_row(half: int, label: str) -> str:
    """What each change was worth: mean of the four runs with it less that of the four without."""
    runs = [settings_run(f"run-{number}") for number in range(1, 9)]
    cells = []
    for flag, value in TRIED.items():
        means = [[mean[half] for settings, mean in runs if (settings[flag] == value) is on] for on in (True, False)]
        assert [len(of) for of in means] in ([4, 4], [0, 8])
        cells.append(f"{np.mean(means[0]) - np.mean(means[1]):+.1f}" if means[0] else "")
    return f"| with it less without, {label} | | {' | '.join(cells)} | | |"


@pytest.mark.parametrize("name", [f"run-{number}" for number in range(1, 20)])
def test_what_the_settings_are_worth_is_what_the_files_say(name: str) -> None:
    assert settings_row(name) in LEARNING


@pytest.mark.parametrize(("half", "label"), [(0, "100 - 150"), (1, "150 - 200")])
def test_what_each_setting_is_worth_is_what_the_files_say(half: int, label: str) -> None:
    assert effects_row(half, label) in LEARNING


EPSILON_AND_RATE = ["standard-seed-0", "standard-seed-1", "settings/run-16"]
EPSILON_AND_RATE += [f"settings/run-{number}" for number in range(20, 26)]
EPSILON_AND_RATE += ["async-2-seed-0", "two-workers-short-again", "two-workers-stopped", "two-workers-higher-rate"]
EPSILON_AND_RATE += ["soak/run", "two-workers-memory"]
KINDS = ("standard", "async-2", "async-1", "async-4")
EPSILON_AND_RATE += [f"comparison/runs/{kind}-seed-{seed}" for kind in KINDS for seed in (0, 1)]


def epsilon_and_rate_row(name: str) -> str:
    """A run's settings, and of its games in each interval the mean return and how many were won short."""
    folder = ROOT / "results" / "pong" / name
    settings, summary = (json.loads((folder / file).read_text()) for file in ("config.json", "summary.json"))
    settings = settings["config"]
    rows = read_rows(folder / "episodes.csv")
    cells = [f"{settings['epsilon_final']:g}", f"{settings['final_learning_rate']:g}"]
    cells = [str(settings["num_workers"]), str(settings["seed"]), *cells, "yes" if settings["double"] else "no"]
    for low in range(160_000, 640_000, 80_000):
        high = low + 40_000
        games = [row for row in rows if low <= row["env_steps"] < high]
        won_short = [row["length"] < 2_300 and row["episode_return"] > 10 for row in games]
        returns = [row["episode_return"] for row in games]
        whole = summary["env_steps"] >= high
        cells.append(f"{np.mean(returns):.1f}, {100 * np.mean(won_short):.0f} %" if whole else "-")
    steps, _ = reached_18(folder, summary)
    shown = name.replace("/runs/", "/").removeprefix("settings/").removesuffix("/run")
    return f"| `{shown}` | {' | '.join(cells)} | {f'{steps:,}' if steps else '-'} |"


@pytest.mark.parametrize("name", EPSILON_AND_RATE)
def test_what_epsilon_and_the_rate_are_worth_is_what_the_files_say(name: str) -> None:
    assert epsilon_and_rate_row(name) in LEARNING


@pytest.mark.parametrize(
    ("run", "low", "high", "quote"),
    [
        (
            "settings/run-16",
            280_000,
            400_000,
            "stayed between {:.1f} and {:.1f} points, by the mean of every 20,000 steps",
        ),
        ("standard-seed-1", 340_000, 780_000, "stayed between {:.1f} and {:.1f} points from 340,000 to 780,000 steps"),
    ],
)
def test_a_plateau_is_where_the_files_have_it(run: str, low: int, high: int, quote: str) -> None:
    rows = read_rows(ROOT / "results" / "pong" / run / "episodes.csv")
    means = [
        np.mean([row["episode_return"] for row in rows if begin <= row["env_steps"] < begin + 20_000])
        for begin in range(low, high, 20_000)
    ]
    assert quote.format(min(means), max(means)) in LEARNING_LINE


def test_a_higher_rate_came_off_the_plateau_as_the_files_have_it() -> None:
    folder = ROOT / "results" / "pong" / "standard-seed-1-higher-rate"
    assert json.loads((folder / "config.json").read_text())["config"]["final_learning_rate"] == 1e-4
    rows = read_rows(folder / "episodes.csv")
    before = read_rows(folder.with_name("standard-seed-1") / "episodes.csv")
    assert [row["episode_return"] for row in rows[: len(before)]] == [row["episode_return"] for row in before]
    first, last = (
        np.mean([row["episode_return"] for row in rows if begin <= row["env_steps"] < begin + 80_000])
        for begin in (780_000, 1_020_000)
    )
    quote = f"{first:.1f} points from 780,000 to 860,000 steps, {last:.1f} from 1,020,000 to 1,100,000"
    assert quote in LEARNING_LINE


def test_the_whole_runs_of_other_settings_are_those_of_the_files() -> None:
    pong, text = ROOT / "results" / "pong", LEARNING_LINE
    alone, two, again = (
        json.loads((pong / f"nodouble-{name}" / "summary.json").read_text())
        for name in ("standard", "two-workers", "two-workers-again")
    )
    for run in (alone, two):
        assert f"{run['solved_at_steps']:,} steps and {run['solved_at_seconds'] / 60:.1f} minutes" in text
    assert again["exit_reason"] == "interrupted" and not again["solved_at_steps"]
    assert f"stopped after {again['env_steps']:,} steps, at a mean of {again['mean_return_100']:.1f}" in text
    dueling, plain = (
        json.loads((pong / "settings" / run / "summary.json").read_text())["steps_per_second"]
        for run in ("run-8", "run-12")
    )
    assert 0.7 < dueling / plain < 0.8  # "a quarter fewer steps a second"


def test_every_command_and_flag_named_exists() -> None:
    flags = set(re.findall(r"(?<![\w-])--([a-z_]+)", "".join([README, *DOCS]))) - {"help"}
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


def assert_same_picture(ours: Path, again: Path) -> None:
    """Fails where they differ by more than another version of matplotlib, which sets its letters in its own way."""
    size = tuple(side // 5 for side in Image.open(ours).size)
    a, b = (np.asarray(Image.open(path).convert("RGB").resize(size), np.float32) for path in (ours, again))
    assert np.abs(a - b).mean() < 1  # a curve that is missing makes it 2.6 or more
    assert a.std() > 10  # there is something on it


def test_the_curves_are_drawn_from_the_files_by_the_command_beside_them(tmp_path: Path) -> None:
    found = re.findall(r"`launch/plot\.sh ([^`]+) --output=([^`]+)`", README + SPEED + LEARNING)
    assert len(found) == 2
    for runs, picture in found:
        drawn = tmp_path / "drawn.png"
        run_plot([str(ROOT / run) for run in runs.split()], x="steps", smooth=100, output=str(drawn))
        assert_same_picture(ROOT / picture, drawn)


def test_the_comparison_is_reported_from_the_files(tmp_path: Path) -> None:
    (command,) = re.findall(
        r"^launch/compare\.sh --logdir=runs/pong --worker_counts=(\S+) --seeds=(\d+)$", README, re.M
    )
    ours, again = ROOT / "results" / "pong" / "comparison", tmp_path / "comparison"
    shutil.copytree(ours, again)
    shutil.rmtree(again / "figures")
    (again / "report.md").unlink()
    settings = json.loads((ours / "compare.json").read_text())["settings"]
    assert settings.items() <= make_config("pong-fast", {"env": "pong"}).to_dict().items()
    comparison = Comparison(
        Config.from_dict(Config().to_dict() | settings),
        again,
        worker_counts=check_counts(command[0]),
        num_seeds=int(command[1]),
        games=30,
    )
    trials = comparison.trials()
    assert {trial.path.name for trial in trials} == {path.name for path in (ours / "runs").iterdir()}
    assert all(trial.is_done(comparison.games) for trial in trials)  # nothing is trained by this test
    assert run_compare(comparison, threading.Event(), Progress()) == 0
    text = (again / "report.md").read_text()
    assert text == (ours / "report.md").read_text()
    assert tables(text)[0] in README
    pictures = sorted(path.name for path in (ours / "figures").iterdir())
    assert pictures == sorted(path.name for path in (again / "figures").iterdir())
    for name in pictures:
        assert_same_picture(ours / "figures" / name, again / "figures" / name)
    assert {f"results/pong/comparison/figures/return-{x}.png" for x in ("steps", "time")} <= set(
        re.findall(r"\]\(([^)]+)\)", README)
    )


@pytest.mark.parametrize("name", ["nature", "nature-bfloat16", "parts", "scale", "learning"])
def test_the_tables_of_the_benchmark_are_those_of_the_files(name: str) -> None:
    folder = ROOT / "results" / "bench" / name
    data = json.loads((folder / "bench.json").read_text())
    text = (folder / "bench.md").read_text()
    assert text == report(data)
    found = tables(text)
    assert len(found) >= 1
    for table in found:
        assert table in SPEED + LEARNING, table
    assert data["origin"]["command"].removeprefix("async-dqn bench ").partition(" --output")[0] in SPEED + LEARNING


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


def test_the_second_game_is_what_its_files_say() -> None:
    run, text = ROOT / "results" / "boxing" / "run", README_LINE
    summary, evaluation = (json.loads((run / f"{name}.json").read_text()) for name in ("summary", "evaluation"))
    assert evaluation["checkpoint_env_steps"] == summary["env_steps"]
    assert f"{summary['env_steps']:,} agent steps in {summary['wall_seconds'] / 60:.0f} minutes" in text
    assert f"the last 100 games had a mean return of {summary['mean_return_100']:.1f}" in text
    assert f"{evaluation['games']} greedy ones {evaluation['mean']:.1f} +- {evaluation['std']:.1f}" in text
    rows = read_rows(run / "episodes.csv")
    assert f"the first 100 {np.mean([row['episode_return'] for row in rows[:100]]):.1f}" in text


@pytest.mark.parametrize("name", ["boxing", "pong/soak"])
def test_a_soak_says_what_its_samples_say(name: str) -> None:
    folder = ROOT / "results" / name
    data = json.loads((folder / "bench.json").read_text())
    text = (folder / "bench.md").read_text()
    assert text == report(data)
    (table,) = tables(text)
    assert table in SPEED
    with open(folder / "soak.csv") as file:
        samples = [
            soak.Sample(float(row["seconds"]), row["process"], row["what"], float(row["value"]))
            for row in csv.DictReader(file)
        ]
    settings = json.loads((folder / "run" / "config.json").read_text())["config"]
    again = soak.report(samples, settings["replay_capacity"])
    said, found = (
        {name: value.partition(" ") for name, value in one.items() if isinstance(value, str)}
        for one in (data["soak"], again)
    )
    verdict, _, _ = said.pop("verdict")
    assert found.pop("verdict")[0] == verdict
    assert {name: rest for name, (_, _, rest) in found.items()} == {name: rest for name, (_, _, rest) in said.items()}
    for name, (number, _, _) in said.items():  # the samples are written with six digits
        assert float(found[name][0]) == pytest.approx(float(number), abs=0.02), name


def test_what_is_said_of_the_soak_is_what_its_files_say() -> None:
    folder = ROOT / "results" / "pong" / "soak"
    summary, evaluation = (
        json.loads((folder / "run" / f"{name}.json").read_text()) for name in ("summary", "evaluation")
    )
    assert f"none of its {summary['updates']:,} trips" in SPEED_LINE
    assert evaluation["checkpoint_env_steps"] == summary["env_steps"]
    quote = f"30 greedy games, after {summary['env_steps']:,} steps, are at {evaluation['mean']:.1f}"
    assert evaluation["games"] == 30 and quote in LEARNING_LINE
    with open(folder / "soak.csv") as file:
        last = {row["process"]: float(row["value"]) for row in csv.DictReader(file) if row["what"] == "resident MB"}
    quote = f"the ps held {last['ps 0']:.0f} MB and the workers {last['worker 0']:,.0f} and {last['worker 1']:,.0f},"
    assert quote in SPEED_LINE
    speeds = []
    for begin, end in ((63, 90), (45, 57)):
        rows = [
            row for row in read_rows(folder / "run" / "metrics.csv") if 60 * begin <= row["wall_seconds"] < 60 * end
        ]
        steps, seconds = (rows[-1][name] - rows[0][name] for name in ("env_steps", "wall_seconds"))
        speeds.append(f"{steps / seconds:.0f}")
    assert f"{speeds[0]} steps/s were made after them, and {speeds[1]} before" in SPEED_LINE


def test_what_is_said_of_learning_on_cartpole_is_what_the_files_say() -> None:
    found: dict[str, list[list[float]]] = {}
    for result in json.loads((ROOT / "results" / "bench" / "learning" / "bench.json").read_text())["results"]:
        found.setdefault(result["name"].removeprefix("local, "), []).append(list(result["values"].values()))
    assert all(len(runs) == 10 for runs in found.values())
    steps, seconds = ({name: np.median([run[i] for run in runs]) for name, runs in found.items()} for i in (0, 1))
    missed = {name: sum(run[2] == 0 for run in runs) for name, runs in found.items()}
    each = [name for name in found if name.startswith("deltas of 1") or name == "gradients"]
    low, high = (f"{end(steps[name] for name in each):,.0f}" for end in (min, max))
    assert f"{low} to {high} steps by the median, where the baseline needs {steps['baseline']:,.0f}," in LEARNING_LINE
    assert len(each) == 6 and "Of these 60 runs one, with deltas of 1, never came there" in LEARNING_LINE
    assert {name: missed[name] for name in each} == {name: int(name == "deltas of 1") for name in each}
    assert (missed["baseline"], missed["deltas of 4"], missed["deltas of 8"]) == (0, 1, 3)
    assert (
        f"those of 8 came there with seven, and needed {steps['deltas of 8']:,.0f} steps by the median" in LEARNING_LINE
    )
    low, high = (f"{end(seconds[name] for name in each):.0f}" for end in (min, max))
    quote = f"{low} to {high} seconds, where the baseline needs {seconds['baseline']:.0f} and deltas of 4"
    assert f"{quote} {seconds['deltas of 4']:.0f}." in LEARNING_LINE


@pytest.mark.parametrize(("name", "dtype"), [("nature", "float32"), ("nature-bfloat16", "bfloat16")])
def test_the_ratios_of_the_benchmark_are_those_of_the_files(name: str, dtype: str) -> None:
    text = (ROOT / "results" / "bench" / name / "bench.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| ")]
    ratios = {row[1]: row[3] for row in rows if row[1].startswith("to ")}
    speed, *_ = (row[2] for row in rows if row[1] == "local, 1 ps + 2 workers")
    cells = [
        *(dtype, speed, ratios["to baseline"], ratios[f"to {SB3}, 8 environments"]),
        ratios[f"to learner only, 2 processes, {dtype}"],
    ]
    assert f"| {' | '.join(cells)} |" in README
    assert f"{cells[3].partition(' ')[0]} times" in README
    cores = {row[1]: float(row[6].partition(" ")[0]) for row in rows if len(row) == 12 and row[1] in ALONE_AND_CLUSTER}
    assert 1.6 <= cores[ALONE_AND_CLUSTER[0]] <= 1.8 and cores[ALONE_AND_CLUSTER[1]] > 1.9  # "Cores that work"
    if dtype == "float32":
        assert f"{ratios[f'to {SB3}, 1 environment'].partition(' ')[0]} times those with one" in README_LINE
        waiting = sorted(
            row[7].partition(" ")[0]
            for row in rows
            if row[1].startswith("local, 1 ps + 2 workers: worker") and len(row) == 10
        )
        assert f"took {' to '.join(waiting)} % of a worker's cycle here" in README_LINE
        several, one = (
            float(row[2].partition(" ")[0]) for row in rows if row[1].startswith("learner only") and dtype in row[1]
        )
        assert f"compute {several / one:.2f} times the minibatches" in SPEED
        assert f"limit itself is {several / one:.2f} times what one process computes" in README_LINE
