import dataclasses

import matplotlib
import numpy as np
import pytest
from report_helpers import write_run

from async_dqn.tools.report import figures
from async_dqn.tools.report.runs import Usage, read_run


def read(tmp_path, **runs):
    return [read_run(write_run(tmp_path / name, **options)) for name, options in runs.items()]


def draw(runs, x="steps", window=1):
    return figures.learning_curves(figures.group(runs), x, window=window).axes[0]


def lines(axes):
    """The strong lines: x and y of each, by label."""
    return {line.get_label(): line.get_data() for line in axes.lines if line.get_linewidth() == 2}


def test_runs_that_differ_in_their_seed_share_a_curve(tmp_path):
    runs = read(
        tmp_path,
        a={"returns": [1.0], "seed": 0},
        b={"returns": [1.0], "seed": 1},
        c={"returns": [1.0], "command": "baseline", "num_workers": 1},
    )
    curves = figures.group(runs)
    assert [curve.label for curve in curves] == ["asynchronous: 1 ps + 2 workers", "standard: one process"]
    assert [len(curve.runs) for curve in curves] == [2, 1]


def test_settings_tell_curves_of_one_kind_apart(tmp_path):
    runs = read(tmp_path, a={"returns": [], "local_steps": 8}, b={"returns": [], "local_steps": 4}, c={"returns": []})
    labels = [curve.label for curve in figures.group(runs)]
    assert labels == [f"asynchronous: 1 ps + 2 workers, local_steps={number}" for number in (8, 4, 0)]


def test_folders_tell_curves_apart_where_settings_are_too_many_or_of_another_version(tmp_path):
    many = {"returns": [], "local_steps": 8, "batch_size": 7, "discount": 0.5, "learning_rate": 0.1}
    first, second = read(tmp_path, first=many, second={"returns": []})
    labels = [curve.label for curve in figures.group([first, second])]
    assert labels == ["asynchronous: 1 ps + 2 workers, first", "asynchronous: 1 ps + 2 workers, second"]
    older = {name: value for name, value in first.settings.items() if name != "prefetch"}
    labels = [curve.label for curve in figures.group([first, dataclasses.replace(second, settings=older)])]
    assert labels == ["asynchronous: 1 ps + 2 workers, first", "asynchronous: 1 ps + 2 workers, second"]


def test_folders_are_added_where_what_all_have_in_common_does_not_tell_them_apart(tmp_path):
    options = {"returns": [], "local_steps": 4}
    first, second, third = read(tmp_path, **{"a/run": options, "b/run": options, "c": {"returns": []}})
    second = dataclasses.replace(second, settings=second.settings | {"unknown": 1})
    labels = [curve.label for curve in figures.group([first, second, third])]
    kind = "asynchronous: 1 ps + 2 workers"
    assert labels == [f"{kind}, local_steps=4, a/run", f"{kind}, local_steps=4, b/run", f"{kind}, local_steps=0"]


def test_a_curve_of_several_runs_names_all_of_their_folders_or_how_many(tmp_path):
    one = {"returns": [], "batch_size": 7, "discount": 0.5, "learning_rate": 0.1, "n_step": 9}
    runs = read(
        tmp_path, **{f"run-{seed}": {"returns": [], "seed": seed} for seed in range(4)}, x=one, y=one | {"seed": 1}
    )
    labels = [curve.label for curve in figures.group(runs)]
    kind = "asynchronous: 1 ps + 2 workers"
    assert labels == [f"{kind}, run-0, 3 more", f"{kind}, x, y"]


def test_one_run_is_a_running_mean_over_all_its_games(tmp_path):
    axes = draw(read(tmp_path, a={"returns": [1.0, 3.0, 8.0]}), window=2)
    ((x, y),) = lines(axes).values()
    np.testing.assert_allclose(x, [0.05, 0.1, 0.15])  # thousands of steps
    np.testing.assert_allclose(y, [1, 2, 5.5])
    faint = axes.lines[0]
    np.testing.assert_allclose(faint.get_ydata(), [1, 3, 8])
    assert faint.get_alpha() < 0.5


def seeds(tmp_path, *returns):
    return read(tmp_path, **{f"seed-{seed}": {"returns": own, "seed": seed} for seed, own in enumerate(returns)})


def of_width(axes, width):
    """First and last x and last y of each line of that width."""
    found = [line.get_xydata() for line in axes.lines if line.get_linewidth() == width]
    return sorted((own[0, 0], own[-1, 0], own[-1, 1]) for own in found)


def band(axes):
    """The most x, the least and the most y of the one band."""
    (only,) = axes.collections
    corners = only.get_paths()[0].vertices
    return corners[:, 0].max(), corners[:, 1].min(), corners[:, 1].max()


def test_a_few_seeds_are_a_line_each_in_a_band_from_the_least_to_the_most(tmp_path):
    axes = draw(seeds(tmp_path, [2.0] * 20, [6.0] * 20, [1.0] * 10))  # the last has ended half-way
    np.testing.assert_allclose(of_width(axes, 2), [(0.05, 0.5, 1.0), (0.05, 1.0, 2.0), (0.05, 1.0, 6.0)])
    assert band(axes) == pytest.approx((0.5, 1, 6))
    labels = [line.get_label() for line in axes.lines if not line.get_label().startswith("_")]
    assert labels == ["asynchronous: 1 ps + 2 workers, 3 runs; mean of 1 games"]


def test_many_seeds_are_thin_lines_and_their_mean(tmp_path):
    axes = draw(seeds(tmp_path, [2.0] * 20, [6.0] * 20, [1.0] * 10, [1.0] * 20, [5.0] * 20))
    ((x, y),) = lines(axes).values()
    assert (x[0], x[-1]) == pytest.approx((0.05, 0.5))  # as far as all went
    np.testing.assert_allclose(y, 3)
    assert band(axes) == pytest.approx((0.5, 1, 6))
    thin = [(0.05, 0.5, 1), (0.05, 1, 1), (0.05, 1, 2), (0.05, 1, 5), (0.05, 1, 6)]
    np.testing.assert_allclose(of_width(axes, 0.6), thin)


def test_seeds_that_have_no_time_in_common_have_no_band(tmp_path):
    runs = read(tmp_path, a={"returns": [2.0], "seed": 0}, b={"returns": [6.0] * 9, "seed": 1, "game_length": 80})
    axes = draw(runs)
    assert [len(line.get_xdata()) for line in axes.lines if line.get_linewidth() == 2] == [1, 9]
    assert not any(len(path.vertices) for band in axes.collections for path in band.get_paths())


@pytest.mark.parametrize(
    ("x", "games", "label", "last"),
    [
        ("steps", 10, "agent steps (thousands)", 0.5),
        ("steps", 20_000, "agent steps (millions)", 1.0),
        ("time", 10, "wall-clock time (seconds)", 5.0),
        ("time", 600, "wall-clock time (minutes)", 5.0),
        ("time", 36_000, "wall-clock time (hours)", 5.0),
    ],
)
def test_axes_say_what_they_show(tmp_path, x, games, label, last):
    axes = draw(read(tmp_path, a={"returns": [0.0] * games}), x)
    assert axes.get_xlabel() == label
    assert axes.get_ylabel() == "return of a game (unclipped)"
    assert axes.get_title(loc="left") == "CartPole-v1"
    ((where, _),) = lines(axes).values()
    assert where[-1] == pytest.approx(last)


@pytest.mark.parametrize(
    ("env", "title"),
    [
        ("pong", "pong, protocol machado"),
        ("ALE/Pong-v5", "ALE/Pong-v5, protocol machado"),
        ("Acrobot-v1", "Acrobot-v1"),
    ],
)
def test_the_title_names_the_protocol_where_there_is_one(tmp_path, env, title):
    axes = draw(read(tmp_path, a={"returns": [1.0], "env": env, "protocol": "machado"}))
    assert axes.get_title(loc="left") == title


def test_long_runs_draw_some_of_their_games_and_the_mean_of_all(tmp_path):
    axes = draw(read(tmp_path, a={"returns": [float(i % 2) for i in range(9_001)]}), window=1_000)
    assert len(axes.lines[0].get_xdata()) <= 4_000
    ((x, y),) = lines(axes).values()
    assert len(x) == 9_001
    assert y[-1] == pytest.approx(0.5)


def test_the_legend_says_what_is_amiss(tmp_path):
    runs = read(tmp_path, a={"returns": [], "exit_reason": None}, b={"returns": [1.0], "seed": 1})
    (label,) = lines(draw(runs, window=7))
    assert label == "asynchronous: 1 ps + 2 workers, 2 runs; mean of 7 games (has not ended; no games yet)"


def test_times_that_nobody_knows_are_not_drawn(tmp_path):
    path = write_run(tmp_path / "a", [1.0, 2.0])
    (path / "metrics.csv").unlink()
    ((x, y),) = lines(draw([read_run(path)], "time")).values()
    assert len(x) == len(y) == 0


def test_a_goal_that_all_share_is_a_line(tmp_path):
    goals = {
        "a": {"returns": [1.0], "stop_at_return": 18.0},
        "b": {"returns": [1.0], "stop_at_return": 18.0, "seed": 1},
    }
    axes = draw(read(tmp_path, **goals))
    (goal,) = (line for line in axes.lines if line.get_linestyle() == "--")
    assert list(goal.get_ydata()) == [18, 18]
    assert [text.get_text() for text in axes.texts] == ["goal 18"]
    other = write_run(tmp_path / "c", [1.0])
    assert not draw([*map(read_run, (tmp_path / "a", other))]).texts


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_runs_are_the_same_file(tmp_path, suffix):
    (run,) = read(tmp_path, a={"returns": [1.0, 5.0, 2.0]})
    for name in ("one", "two"):
        figure = figures.learning_curves(figures.group([run]), "steps", window=2)
        figures.save(figure, tmp_path / "made" / f"{name}{suffix}")
    one, two = ((tmp_path / "made" / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
    assert len(one) > 1_000
    assert one == two


def test_staleness_is_a_share_of_all_updates_of_a_kind():
    axes = figures.staleness({"a": {0: 1, 2: 3}, "b": {1: 5}}, {"a": "C0", "b": "C1"}).axes[0]
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [[25, 0, 75], [0, 100, 0]]
    assert axes.get_xlabel() == "staleness, in updates"


def test_what_is_staler_than_there_are_bars_is_in_the_last_one():
    axes = figures.staleness({"a": {0: 1, 60: 1, 61: 1, 999: 1}}, {"a": "C0"}).axes[0]
    heights = [bar.get_height() for bar in axes.containers[0]]
    assert (len(heights), heights[0], heights[-1]) == (61, 25, 75)
    assert axes.get_xlabel() == "staleness, in updates (the last bar: or more)"


def test_the_machine_s_use_is_that_of_all_processes_together():
    worker = Usage(np.array([0.0, 60, 120]), np.array([1.0, 1, 1]), np.array([1_000.0, 2_000, 3_000]))
    ps = Usage(np.array([60.0, 240]), np.array([0.5, 0.5]), np.array([500.0, 500]))
    usages = {"async-1": {"worker 0": worker, "ps 0": ps}, "standard": {"worker 0": worker}}
    cores, memory = figures.usage(usages, figures.colours(usages)).axes
    both, alone = (line.get_data() for line in cores.lines)
    np.testing.assert_allclose(both[1], 1.5)
    np.testing.assert_allclose(alone[1], 1)
    assert (both[0][-1], alone[0][-1]) == (4, 2)  # minutes
    both, alone = (line.get_data() for line in memory.lines)
    assert (both[1][0], both[1][-1], alone[1][-1]) == (1.5, 3.5, 3.0)  # GB
    assert memory.get_xlabel() == "wall-clock time (minutes)"
    assert [axes.get_ylabel() for axes in (cores, memory)] == ["cores used", "memory (GB)"]


def test_a_process_that_has_ended_takes_nothing(tmp_path):
    worker = Usage(np.arange(0.0, 601, 10), np.full(61, 1.0), np.full(61, 1_000.0))
    lost = Usage(np.arange(0.0, 301, 10), np.full(31, 0.5), np.full(31, 500.0))
    usages = {"async-2": {"worker 0": worker, "worker 1": lost}}
    cores, memory = figures.usage(usages, figures.colours(usages)).axes
    for axes, before, after in ((cores, 1.5, 1.0), (memory, 1.5, 1.0)):
        minutes, total = axes.lines[0].get_data()
        np.testing.assert_allclose(total[minutes <= 5], before)
        np.testing.assert_allclose(total[minutes > 5.5 + 0.01], after)  # three rows later it counts as ended


@pytest.mark.parametrize("number", [1, 7, 8, 60])
def test_many_curves_differ_in_their_look_and_leave_room_for_the_picture(tmp_path, number):
    runs = read(tmp_path, **{f"run-{i}": {"returns": [1.0, 2.0], "local_steps": i + 1} for i in range(number)})
    figure = figures.learning_curves(figures.group(runs), "steps", window=1)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert axes.get_window_extent().height / figure.dpi > 2.5  # inches
    assert figure.legends[0].get_window_extent().y0 >= 0
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines if line.get_linewidth() == 2}
    assert len(looks) == min(number, 28)


def test_drawing_changes_nobody_else_s_style(tmp_path):
    before = dict(matplotlib.rcParams)
    draw(read(tmp_path, a={"returns": [1.0]}))
    assert dict(matplotlib.rcParams) == before
