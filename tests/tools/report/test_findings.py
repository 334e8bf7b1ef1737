import dataclasses
import json
import math

import pytest
from matplotlib.colors import to_hex
from report_helpers import write_run

from async_dqn.run.csv_log import CsvWriter
from async_dqn.settings.config import Config
from async_dqn.tools.report import findings
from async_dqn.tools.report.experiment import Trial
from async_dqn.tools.report.findings import Found, result_table, run_table, sections, worker_table
from async_dqn.tools.report.page import Picture, Table, Text
from async_dqn.tools.report.runs import read_run


def found(tmp_path, name, seed, *, minutes=None, workers=1, greedy=None, staleness=0.0, goal=18.0, **summary):
    """A run that reached its goal after so many minutes, or never did."""
    path = tmp_path / f"{name}-{seed}"
    numbers = {
        "env_steps": 6_000,
        "minibatches": 1_500,
        "updates": 300,
        "wall_seconds": 120.0,
        "best_mean_return_100": 18.2,
        "staleness_mean": staleness,
        "solved_at_steps": None if minutes is None else 5_000,
        "solved_at_seconds": None if minutes is None else 60 * minutes,
    }
    job = "local" if workers > 1 else "baseline"
    settings = {"seed": seed, "num_workers": workers, "stop_at_return": goal}
    write_run(path, [1.0, 2.0], command=job.replace("local", "worker"), summary=numbers | summary, **settings)
    if greedy is not None:
        (path / "evaluation.json").write_text(json.dumps({"mean": greedy, "checkpoint_env_steps": 6_000}))
    config = Config(env="CartPole-v1", replay_capacity=10_000, warmup_steps=100, **settings)
    return Found(Trial(name, job, config, path), read_run(path))


def write_stalenesses(path, worker, *cells):
    file = path / f"worker-{worker}" / "metrics.csv"
    writer = CsvWriter(file, ("env_steps", "stalenesses"))
    for cell in cells:
        writer.write({"env_steps": 1, "stalenesses": cell})
    writer.close()


def row(table, name):
    (found,) = (cells for label, *cells in table.rows if label == name)
    return found


def test_the_result_is_medians_over_seeds_and_a_speed_up(tmp_path):
    runs = [
        *(found(tmp_path, "standard", seed, minutes=minutes) for seed, minutes in enumerate((30, 40, 36))),
        *(found(tmp_path, "async-2", seed, minutes=minutes, workers=2) for seed, minutes in enumerate((20, 18, 25))),
    ]
    table = result_table(runs)
    assert table.header == ["", "standard", "async-2"]
    assert row(table, "runs that reached the goal") == ["3 of 3", "3 of 3"]
    assert row(table, "minutes to the goal") == ["36.0 [30.0 - 40.0]", "20.0 [18.0 - 25.0]"]
    assert row(table, "steps/s") == ["50.0", "50.0"]
    assert row(table, "milliseconds a step") == ["20.0", "20.0"]
    assert row(table, "updates/s") == ["2.50", "2.50"]
    assert row(table, "speed-up") == ["1.00 x", "1.80 x"]


def test_a_run_that_has_done_nothing_yet_has_no_rates(tmp_path):
    table = result_table([found(tmp_path, "standard", 0, env_steps=0, minibatches=0, wall_seconds=0.0)])
    assert [row(table, name) for name in ("steps/s", "milliseconds a step", "minibatches/s")] == [["-"]] * 3


def test_no_speed_up_is_claimed_where_a_run_never_got_there(tmp_path):
    runs = [
        found(tmp_path, "standard", 0, minutes=30),
        found(tmp_path, "async-2", 0, minutes=10, workers=2),
        found(tmp_path, "async-2", 1, workers=2),
    ]
    table = result_table(runs)
    assert row(table, "runs that reached the goal") == ["1 of 1", "1 of 2"]
    assert row(table, "speed-up") == ["1.00 x", "-"]
    assert row(table, "minutes to the goal") == ["30.0", "-"]  # not the median of those that got there
    assert row(result_table(runs[1:]), "speed-up") == ["-"]


def test_where_there_is_no_goal_the_best_takes_its_place(tmp_path):
    runs = [found(tmp_path, "standard", seed, goal=math.inf) for seed in range(2)]
    table, text = sections(runs, [], tmp_path, num_planned=2)[0].blocks
    assert isinstance(table, Table) and isinstance(text, Text)
    assert "goal" not in text.lines[0]
    names = [name for name, *_ in table.rows]
    assert not any("goal" in name or name == "speed-up" for name in names)
    assert row(table, "best mean of 100 games") == ["18.2"]
    assert names[1] == "steps/s"


def test_what_goes_on_counts_for_nothing_yet(tmp_path):
    runs = [
        found(tmp_path, "standard", 0, minutes=30),
        found(tmp_path, "standard", 1, exit_reason="interrupted"),
        found(tmp_path, "async-2", 0, workers=2, exit_reason="running"),
    ]
    table = result_table(runs)
    assert table.header == ["", "standard"]
    assert row(table, "runs that reached the goal") == ["1 of 1"]
    assert len(run_table(runs).rows) == 3
    assert sections(runs, [], tmp_path, num_planned=3)[0].blocks[0] == Text(["Not complete: 1 run of 3 so far."])


def test_where_no_run_is_over_there_is_no_table_of_results(tmp_path):
    result, *_ = sections([found(tmp_path, "standard", 0, exit_reason="interrupted")], [], tmp_path, num_planned=3)
    assert result.blocks == [Text(["Not complete: 0 runs of 3 so far."])]


def test_a_kind_has_the_same_colour_in_every_picture(monkeypatch, tmp_path):
    drawn = {}
    monkeypatch.setattr(findings.figures, "save", lambda figure, path: drawn.update({path.stem: figure}))
    runs = [found(tmp_path, "standard", 0, minutes=1), found(tmp_path, "async-2", 0, minutes=1, workers=2)]
    write_stalenesses(runs[1].run.path, 1, "1:2")
    for one in runs:
        write_usage(one.run.path, "worker-0", (10, 1.0, 800), (20, 1.0, 800))
    sections(runs, [], tmp_path, num_planned=2)
    strong = [line.get_color() for line in drawn["return-time"].axes[0].lines if line.get_linewidth() == 2]
    assert [line.get_color() for line in drawn["usage"].axes[0].lines] == strong
    (bar, *_) = drawn["staleness"].axes[0].patches
    assert to_hex(bar.get_facecolor()) == strong[1].lower()


def test_runs_of_several_machines_and_versions_are_told_apart(tmp_path):
    runs = [found(tmp_path, "standard", seed) for seed in range(2)]
    for one, host, revision in zip(runs, ("a", "b"), ("r", "r"), strict=True):
        described = json.loads((one.run.path / "config.json").read_text())
        described |= {"host": {"name": "n", "cpu": host, "cores": 2}, "git_revision": revision}
        (one.run.path / "config.json").write_text(json.dumps(described))
    again = [one._replace(run=read_run(one.run.path)) for one in runs]
    lines = [
        block.lines[0] for block in sections(again, [], tmp_path, num_planned=2)[0].blocks if isinstance(block, Text)
    ]
    assert "Made on 2 different machines: their times do not compare." in lines
    assert not any("versions" in line for line in lines)


def test_a_machine_is_its_processor_not_its_name(tmp_path):
    runs = [found(tmp_path, "standard", seed) for seed in range(2)]
    hosts = [{"name": name, "system": name, "cpu": "c", "cores": 2} for name in "ab"]
    again = [
        one._replace(run=dataclasses.replace(one.run, described={**one.run.described, "host": host}))
        for one, host in zip(runs, hosts, strict=True)
    ]
    blocks = sections(again, [], tmp_path, num_planned=2)[0].blocks
    assert not any("machines" in line for block in blocks if isinstance(block, Text) for line in block.lines)


def test_what_a_run_survived_is_told(tmp_path):
    runs = [
        found(tmp_path, "standard", 0, worker_restarts=0, ps_recoveries=0, steps_lost=0),
        found(tmp_path, "async-3", 0, workers=3, worker_restarts=2, ps_recoveries=1, steps_lost=1_200),
    ]
    runs[0].run.summary["workers"] = [{"state": "done"}]
    runs[1].run.summary["workers"] = [{"state": "done"}, {"state": "lost"}, "?"]
    notes = sections(runs, [], tmp_path, num_planned=2)[3].blocks[1:]
    told = "worker restarts: 2; recoveries of a ps: 1; agent steps lost: 1,200; worker 1 was lost at the end"
    assert notes == [Text([f"async-3, seed 0: {told}"])]


@pytest.mark.parametrize(
    ("revisions", "lines"),
    [
        ("aaa", ["revision: a"]),
        ("aba", ["revision: a (standard, seed 0; standard, seed 2)", "revision: b (standard, seed 1)"]),
        ([None] * 3, ["revision: unknown"]),
    ],
)
def test_the_revision_that_made_each_run_is_told(tmp_path, revisions, lines):
    runs = []
    for seed, revision in enumerate(revisions):
        one = found(tmp_path, "standard", seed)
        described = {**one.run.described, "git_revision": revision}
        runs.append(one._replace(run=dataclasses.replace(one.run, described=described)))
    report = sections(runs, [], tmp_path, num_planned=3)
    (made,) = report[-1].blocks
    assert isinstance(made, Text)
    assert [line for line in made.lines if line.startswith("revision")] == lines
    assert (Text(["Made by 2 versions of this program."]) in report[0].blocks) == (len(lines) > 1)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"mean": "x"}', '{"mean": NaN}', '{"mean": 3, "checkpoint_env_steps": 5}']
)
def test_an_evaluation_may_be_missing_or_hold_anything(tmp_path, content):
    run = found(tmp_path, "standard", 0)
    assert math.isnan(run.greedy)
    (run.run.path / "evaluation.json").write_text(content)
    assert math.isnan(run.greedy)


def test_each_run_has_a_row(tmp_path):
    runs = [
        found(tmp_path, "standard", 0, minutes=1.5, greedy=20.25, exit_reason="solved"),
        found(tmp_path, "async-2", 0, workers=2, env_steps=None, wall_seconds=None, best_mean_return_100=None),
    ]
    assert run_table(runs).rows == [
        ["standard, seed 0", "solved", "6,000", "2:00", "1:30", "18.2", "20.2"],
        ["async-2, seed 0", "finished", "-", "-", "-", "-", "-"],
    ]


def test_each_worker_has_its_replay_ratio_and_its_wait(tmp_path):
    run = found(tmp_path, "async-2", 0, workers=2)
    fields = ("env_steps", "minibatches", "seconds_gradient", "seconds_waiting")
    writer = CsvWriter(run.run.path / "worker-1" / "metrics.csv", fields)
    for row in ((0, 0, 0.0, 0.0), (2_000, 500, 5.0, 0.0), (3_000, 750, 0.0, 0.0), (4_000, 1_000, 4.0, 1.0)):
        writer.write(dict(zip(fields, row, strict=True)))
    writer.close()
    assert worker_table([run]).rows == [["async-2, seed 0: worker 1", "4,000", "1,000", "0.25", "10.0 %"]]


def write_usage(path, process, *rows):
    writer = CsvWriter(path / process / "metrics.csv", ("wall_seconds", "cores_used", "resident_mb"))
    for row in rows:
        writer.write(dict(zip(("wall_seconds", "cores_used", "resident_mb"), row, strict=True)))
    writer.close()


def test_each_process_has_its_cpu_and_memory_and_each_kind_a_curve(tmp_path):
    runs = [found(tmp_path, "async-2", 0, workers=2), found(tmp_path, "standard", 0)]
    write_usage(runs[0].run.path, "ps-0", (10, 0.2, 700), (20, 0.1, 702))
    write_usage(runs[0].run.path, "worker-1", (10, 1.0, 800), (40, 0.6, 812.4))
    made = sections(runs, [], tmp_path, num_planned=2)
    picture, table = next(section for section in made if section.title == "CPU and memory").blocks
    assert (tmp_path / picture.file).read_bytes().startswith(b"\x89PNG")
    assert table.rows == [
        ["async-2, seed 0: worker 1", "0.7", "804 MB", "812 MB"],  # (10 * 1 + 30 * 0.6) / 40
        ["async-2, seed 0: ps 0", "0.15", "700 MB", "702 MB"],
    ]


def test_the_report_has_all_parts_and_draws_its_pictures(tmp_path):
    runs = [found(tmp_path, "standard", 0, minutes=30), found(tmp_path, "async-2", 0, minutes=20, workers=2)]
    write_stalenesses(runs[1].run.path, 0, "1:2 3:1")
    origin = {"command": "async-dqn compare", "date": "now", "cpu": "fast", "cores": 2, "versions": {"numpy": "9"}}
    later = {"command": "async-dqn compare --seeds=3", "date": "soon"}
    made = sections(runs, [origin, later], tmp_path, num_planned=4)
    assert [section.title for section in made] == [
        "Result", "Learning curves", "Staleness", "Runs", "Workers", "CPU and memory", "How it was made"
    ]  # fmt: skip
    assert made[0].blocks[0] == Text(["Not complete: 2 runs of 4 so far."])
    pictures = [block for section in made for block in section.blocks if isinstance(block, Picture)]
    assert [picture.file for picture in pictures] == [
        "figures/return-steps.png", "figures/return-time.png", "figures/staleness.png"
    ]  # fmt: skip
    assert made[2].blocks[0].caption.startswith("Staleness of updates")
    assert all((tmp_path / picture.file).read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert made[-2].blocks == [Text(["These runs have not recorded it."])]
    lines = made[-1].blocks[0].lines
    assert "command: async-dqn compare" in lines and "versions: numpy 9" in lines
    assert "gone on with: async-dqn compare --seeds=3, soon" in lines


def test_a_report_on_the_standard_agent_alone_needs_no_staleness(tmp_path):
    made = sections([found(tmp_path, "standard", 0)], [], tmp_path, num_planned=1)
    assert made[2].blocks == [Text(["In a single process nothing is stale."])]
    assert isinstance(made[0].blocks[0], findings.Table)


def test_runs_of_another_version_may_have_recorded_no_staleness(tmp_path):
    made = sections([found(tmp_path, "async-2", 0, workers=2)], [], tmp_path, num_planned=1)
    assert made[2].blocks == [Text(["These runs have not recorded it."])]
