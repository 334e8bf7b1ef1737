import json
import math

import pytest
from matplotlib.colors import to_hex
from report_helpers import write_csv, write_run

from async_dqn.tools.report import plot
from async_dqn.tools.report.findings import process_rows, result_rows, run_row, staleness_figure, write_report
from async_dqn.tools.report.runs import read_run

NUMBERS = {
    "env_steps": 6_000, "minibatches": 1_500, "updates": 300, "wall_seconds": 120.0, "best_mean_return_100": 18.2
}  # fmt: skip


def run(tmp_path, seed, *, minutes=None, workers=0, greedy=None, goal=18.0, agent="dqn", described=None, **summary):
    """A run that reached its goal after so many minutes, or never did; without workers it is the baseline."""
    path = tmp_path / f"{workers}-{seed}"
    solved = {"solved_at_steps": minutes and 5_000, "solved_at_seconds": minutes and 60 * minutes}
    settings = {"seed": seed, "num_workers": max(1, workers), "stop_at_return": goal, "agent": agent}
    command = "worker" if workers else "baseline"
    summary = NUMBERS | solved | summary
    write_run(path, [1.0, 2.0], command=command, summary=summary, described=described, **settings)
    if greedy is not None:
        (path / "evaluation.json").write_text(
            json.dumps({"mean": greedy, "checkpoint_env_steps": 6_000, "actions": "greedy"})
        )
    return read_run(path)


def row(rows, name):
    (found,) = (cells for label, *cells in rows if label == name)
    return found


def test_the_result_is_medians_over_seeds_and_a_speed_up(tmp_path):
    rows = result_rows(
        [
            *(run(tmp_path, seed, minutes=minutes) for seed, minutes in enumerate((30, 40, 36))),
            *(run(tmp_path, seed, minutes=minutes, workers=2) for seed, minutes in enumerate((20, 18, 25))),
        ]
    )
    assert row(rows, "runs that reached the goal") == ["3 of 3", "3 of 3"]
    assert row(rows, "minutes to the goal") == ["36 [30 - 40]", "20 [18 - 25]"]
    assert row(rows, "agent steps/s") == ["50", "50"]
    assert row(rows, "updates/s") == ["2.5", "2.5"]
    assert row(rows, "speed-up by time to the goal") == ["1", "1.8"]  # 36 / 20


def test_no_speed_up_is_claimed_where_a_run_never_got_there(tmp_path):
    runs = [run(tmp_path, 0, minutes=30), run(tmp_path, 0, minutes=10, workers=2), run(tmp_path, 1, workers=2)]
    rows = result_rows(runs)
    assert row(rows, "runs that reached the goal") == ["1 of 1", "1 of 2"]
    assert row(rows, "speed-up by time to the goal") == ["1", "-"]
    assert row(rows, "minutes to the goal") == ["30", "-"]  # not the median of those that got there
    assert "speed-up by time to the goal" not in [name for name, *_ in result_rows(runs[1:])]


@pytest.mark.parametrize("agent", ["dqn", "ppo"])
def test_quantities_that_no_run_has_are_left_out(tmp_path, agent):
    rows = result_rows([run(tmp_path, 0, goal=math.inf, agent=agent, minibatches=None, wall_seconds=0.0)])
    assert [name for name, *_ in rows] == ["best mean of 100 games"]


def test_each_run_has_a_row(tmp_path):
    assert run_row(run(tmp_path, 0, minutes=1.5, greedy=20.25, exit_reason="solved")) == [
        "baseline, seed 0", "solved", "6,000", "2:00", "1:30", "18.2", "20.2"
    ]  # fmt: skip
    bare = run(tmp_path, 0, workers=2, env_steps=None, wall_seconds="x", best_mean_return_100=math.nan)
    assert run_row(bare) == ["1 ps + 2 workers, seed 0", "finished", "-", "-", "-", "-", "-"]


def test_each_process_has_its_share_its_wait_and_what_it_took(tmp_path):
    one = run(tmp_path, 0, workers=2)
    fields = ("env_steps", "minibatches", "seconds_gradient", "seconds_waiting", "cores_used", "resident_mb")
    rows = [(0, 0, 0.0, 0.0, 1, 1), (4_000, 1_000, 9.0, 1.0, 0.5, 812.4)]
    write_csv(one.path / "worker-1" / "metrics.csv", [dict(zip(fields, row, strict=True)) for row in rows], fields)
    write_csv(one.path / "ps-0" / "metrics.csv", [{"cores_used": 0.2, "resident_mb": 702}], fields[-2:])
    assert list(process_rows(one)) == [
        ["1 ps + 2 workers, seed 0: worker 1", "4,000", "1,000", "0.25", "10", "0.75", "812"],
        ["1 ps + 2 workers, seed 0: ps 0", "-", "-", "-", "-", "0.2", "702"],
    ]


def test_staleness_is_a_share_of_all_updates_of_a_kind():
    axes = staleness_figure({"a": {0: 1, 2: 3}, "b": {1: 5}, "c": {}}, {"a": "C0", "b": "C1", "c": "C2"}).axes[0]
    assert [[bar.get_height() for bar in bars] for bars in axes.containers] == [[25, 0, 75], [0, 100, 0], [0, 0, 0]]
    axes = staleness_figure({"a": {0: 1, 60: 1, 61: 1, 999: 1}}, {"a": "C0"}).axes[0]
    heights = [bar.get_height() for bar in axes.containers[0]]
    assert (len(heights), heights[0], heights[-1]) == (61, 25, 75)


def test_a_kind_has_the_same_colour_in_every_picture(monkeypatch, tmp_path):
    drawn = {}
    save = plot.save
    monkeypatch.setattr(plot, "save", lambda figure, path: drawn.update({path.stem: figure}) or save(figure, path))
    runs = [run(tmp_path, 0, minutes=1), run(tmp_path, 0, minutes=1, workers=2)]
    write_csv(runs[1].path / "worker-1" / "metrics.csv", [{"stalenesses": "1:2"}], ("stalenesses",))
    write_report(runs, [], tmp_path, num_planned=2)
    colours = [line.get_color() for line in drawn["return-time"].axes[0].lines]
    (bar, *_) = drawn["staleness"].axes[0].patches
    assert to_hex(bar.get_facecolor()) == colours[1].lower()


def report(tmp_path, runs, calls=(), num_planned=None):
    write_report(runs, calls, tmp_path, num_planned=num_planned or len(runs))
    return (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("agent", ["dqn", "ppo"])
def test_the_report_has_all_parts_and_its_pictures(tmp_path, agent):
    runs = [run(tmp_path, 0, minutes=30, agent=agent), run(tmp_path, 0, minutes=20, workers=2, agent=agent)]
    write_csv(runs[1].path / "worker-0" / "metrics.csv", [{"stalenesses": "1:2 3:1"}], ("stalenesses",))
    calls = [{"command": "async-dqn compare <i>", "date": "now"}, {"command": "async-dqn compare --seeds=3"}]
    markdown, html = report(tmp_path, runs, calls, num_planned=4)
    assert markdown.startswith(f"# {agent} on CartPole-v1")
    parts = ["Result", "Learning curves", "Staleness", "Runs", "Processes", "How it was made"]
    assert [line[3:] for line in markdown.splitlines() if line.startswith("## ")] == parts
    assert all(f"<h2>{part}</h2>" in html for part in parts)
    assert "Not complete: 2 runs of 4 so far." in markdown
    assert "| speed-up by time to the goal | 1 | 1.5 |" in markdown
    assert "<td>speed-up by time to the goal</td><td>1</td><td>1.5</td>" in html
    assert "- async-dqn compare <i>, now\n- async-dqn compare --seeds=3" in markdown
    for name in ("return-steps", "return-time", "staleness"):
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert html.count('src="data:image/png;base64,') == 3 and "<i>" not in html


def test_what_goes_on_counts_for_nothing_yet(tmp_path):
    runs = [run(tmp_path, 0, minutes=30), run(tmp_path, 0, workers=2, exit_reason="running")]
    markdown, _ = report(tmp_path, runs)
    assert "|  | baseline |\n" in markdown and "| 1 ps + 2 workers, seed 0 | running |" in markdown
    markdown, _ = report(tmp_path, runs[1:], num_planned=2)
    assert "Not complete: 0 runs of 2" in markdown and "runs that reached the goal" not in markdown
    assert "## Staleness" not in markdown


@pytest.mark.parametrize(
    ("changed", "differ"),
    [
        ({}, False),
        ({"host": {"name": "b", "cpu": "c", "cores": 2}}, False),  # a container changes the name
        ({"host": {"name": "a", "cpu": "d", "cores": 2}}, True),
        ({"host": {"name": "a", "cpu": "c", "cpu_model": "family 26", "cores": 2}}, True),
        ({"git_revision": "s"}, True),
        ({"host": 7}, True),
    ],
)
def test_runs_of_several_processors_and_versions_are_told_apart(tmp_path, changed, differ):
    described = {"host": {"name": "a", "cpu": "c", "cores": 2}, "git_revision": "r"}
    runs = [run(tmp_path, 0, described=described), run(tmp_path, 1, described=described | changed)]
    markdown, _ = report(tmp_path, runs)
    assert markdown.count("- revision ") == (2 if differ else 1)
    assert ("differ between runs" in markdown) == differ


def test_what_a_run_survived_is_told(tmp_path):
    states = [{"state": "done"}, {"state": "lost"}, "?"]
    survived = run(tmp_path, 0, workers=3, worker_restarts=2, steps_lost=1_200, workers_=None)
    survived.summary["workers"] = states
    runs = [run(tmp_path, 0, worker_restarts=0), survived]
    markdown, _ = report(tmp_path, runs)
    (line,) = (line for line in markdown.splitlines() if "worker_restarts" in line)
    assert "worker_restarts: 2" in line and "steps_lost: 1,200" in line and "worker 1 was lost" in line
