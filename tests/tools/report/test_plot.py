from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report_helpers import write_run

from async_dqn.cli import main as command_line
from async_dqn.tools.report import plot
from async_dqn.tools.report.runs import read_run

RUNS = Path(__file__).parents[3] / "results" / "pong" / "dqn" / "runs"


def read(tmp_path, **runs):
    return [read_run(write_run(tmp_path / name, **({"returns": []} | options))) for name, options in runs.items()]


def draw(runs, x="steps", window=1):
    return plot.learning_curves(plot.group(runs), x, window=window).axes[0]


def strong(axes):
    """x and y of each line that is a mean of runs."""
    return [line.get_data() for line in axes.lines if line.get_linewidth() == 2.5]


def thin(axes):
    """x and y of the line of each run."""
    return [line.get_data() for line in axes.lines if line.get_linewidth() == 1 and line.get_zorder() != 1]


def test_runs_that_differ_in_their_seed_share_a_curve(tmp_path):
    runs = read(tmp_path, a={"seed": 0}, b={"seed": 1}, c={"command": "baseline", "num_workers": 1})
    curves = plot.group(runs)
    found = [(label, len(members)) for label, members in curves.items()]
    assert found == [("baseline", 1), ("1 ps + 2 workers", 2)]  # first, so that its colour is the same in all pictures


def test_the_store_is_named_once(tmp_path):
    runs = read(
        tmp_path,
        a={"command": "baseline", "store": "ps", "local_steps": 0},
        b={"store": "shared_memory", "local_steps": 0},
    )
    assert list(plot.group(runs)) == ["baseline", "shared memory, hogwild + 2 workers"]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"local_steps": 8}, {"local_steps": 4}, ["local_steps=8", "local_steps=4"]),
        ({"agent": "dqn"}, {"agent": "ppo"}, ["dqn: ", "ppo: "]),
        ({"env": "CartPole-v1"}, {"env": "Acrobot-v1"}, ["env=CartPole-v1", "env=Acrobot-v1"]),
        ({"local_steps": 8, "batch_size": 7, "discount": 0.5, "learning_rate": 0.1}, {}, ["first/run", "second/run"]),
    ],
)
def test_settings_tell_curves_apart_and_folders_where_these_are_too_many(tmp_path, first, second, words):
    labels = list(plot.group(read(tmp_path, **{"first/run": first, "second/run": second})))
    assert len(labels) == 2
    for label, word in zip(labels, words, strict=True):
        assert "1 ps + 2 workers" in label and word in label


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([[2.0] * 20], []),
        ([[2.0] * 20, [1.0] * 10], [(1.0, 1.5)]),  # what has ended keeps its last value
        ([[2.0] * 20, [1.0]], [(1.0, 1.5)]),
        ([[2.0] * 20, [6.0] * 20, [1.0] * 10, [1.0] * 20, [5.0] * 20], [(1.0, 3.0)]),
    ],
)
def test_runs_are_thin_lines_and_the_mean_of_several_a_thick_one(tmp_path, returns, expected):
    runs = read(tmp_path, **{f"seed-{seed}": {"returns": own, "seed": seed} for seed, own in enumerate(returns)})
    axes = draw(runs)
    np.testing.assert_allclose([(x[-1], y[-1]) for x, y in strong(axes)], expected)
    assert [len(y) for _, y in thin(axes)] == [len(own) for own in returns]
    assert ("thick line" in axes.figure.legends[0].get_title().get_text()) == bool(expected)


@pytest.mark.parametrize("exit_reason", [None, "interrupted", "failed: not finite"])
def test_a_mean_ends_with_a_run_that_was_not_trained_to_its_end(tmp_path, exit_reason):
    runs = read(tmp_path, a={"returns": [2.0] * 20}, b={"returns": [1.0] * 10, "seed": 1, "exit_reason": exit_reason})
    ((x, y),) = strong(draw(runs))
    assert (x[-1], y[-1]) == (pytest.approx(0.5), 1.5)


@pytest.mark.parametrize(
    ("x", "games", "unit", "last"),
    [
        ("steps", 10, "thousands", 0.5),
        ("steps", 80_000, "millions", 4.0),
        ("time", 10, "seconds", 5.0),
        ("time", 600, "minutes", 5.0),
        ("time", 36_000, "hours", 5.0),
    ],
)
def test_axes_say_what_they_show(tmp_path, x, games, unit, last):
    axes = draw(read(tmp_path, a={"returns": [0.0] * games}), x)
    assert unit in axes.get_xlabel()
    assert axes.get_title(loc="left") == "dqn on CartPole-v1"
    ((where, _),) = thin(axes)
    assert (len(where), where[-1]) == (games, pytest.approx(last))


def test_the_legend_says_what_is_amiss_and_times_that_nobody_knows_are_not_drawn(tmp_path):
    path = write_run(tmp_path / "a", [1.0, 2.0], exit_reason=None)
    (path / "metrics.csv").unlink()
    figure = plot.learning_curves(plot.group([read_run(path)]), "time", window=7)
    (text,) = figure.legends[0].get_texts()
    assert "has not ended" in text.get_text() and "mean return of the last 7 games" in figure.axes[0].get_ylabel()
    ((x, _),) = thin(figure.axes[0])
    assert np.isnan(x).all()


@pytest.mark.parametrize("number", [1, 7, 8, 40])
def test_many_curves_differ_in_their_look_and_leave_room_for_the_picture(tmp_path, number):
    runs = read(tmp_path, **{f"run-{i}": {"returns": [1.0, 2.0], "local_steps": i + 1} for i in range(number)})
    figure = plot.learning_curves(plot.group(runs), "steps", window=1)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert axes.get_window_extent().height / figure.dpi > 2.5  # inches
    assert figure.legends[0].get_window_extent().y0 >= 0
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == min(number, 28)


def call(*arguments):
    return command_line.main(["plot", *map(str, arguments)])


@pytest.mark.parametrize("x", ["steps", "time"])
def test_the_runs_of_the_repository_are_drawn(capsys, tmp_path, x):
    output = tmp_path / "pictures" / "pong.png"
    assert call(*sorted(RUNS.iterdir()), f"--x={x}", f"--output={output}") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count(": baseline") == 1 and out.count("1 ps + 2 workers") == len(list(RUNS.glob("async-2-*"))) > 1
    with Image.open(output) as picture:
        assert picture.size == (1200, 750)
        assert len(picture.convert("RGB").getcolors(2**20)) > 50


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "plot needs run directories"),
        (["{run}", "{missing}"], "{missing} holds no run"),
        (["{run}", "--output=a.jpg"], "--output=a.jpg: must end in .png, .svg, .pdf"),
        (["{run}", "--smooth=0"], "--smooth=0: must be 1 to 1000000"),
        (["{run}", "--output={run}/config.json/a.png"], "--output={run}/config.json/a.png: "),
        (["{run}", "--x=frames"], "--x=frames"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, tmp_path, arguments, words):
    names = {"run": write_run(tmp_path / "a", [1.0]), "missing": tmp_path / "missing"}
    before = sorted(tmp_path.rglob("*"))
    assert call(*(argument.format(**names) for argument in arguments)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert words.format(**names) in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_title_names_the_environment_alone_where_there_are_many_agents(tmp_path):
    runs = read(tmp_path, **{agent: {"agent": agent, "returns": [1.0]} for agent in ("dqn", "ppo", "c51", "pqn")})
    assert draw(runs).get_title(loc="left") == "CartPole-v1"


def test_a_long_title_stays_within_the_picture(tmp_path):
    envs = ["minatar:MinAtar/Breakout-v1", "minigrid:MiniGrid-Empty-5x5-v0", "highway_env:highway-fast-v0"]
    axes = draw(read(tmp_path, **{f"run{i}": {"env": env, "returns": [1.0]} for i, env in enumerate(envs)}))
    axes.figure.draw_without_rendering()
    title = axes._left_title.get_window_extent()
    assert all(env in axes.get_title(loc="left").replace("\n", " ") for env in envs)
    assert title.x1 <= axes.figure.bbox.x1 and title.y1 <= axes.figure.bbox.y1
