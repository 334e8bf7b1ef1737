import os

import pytest
from report_helpers import write_run

from async_dqn import __main__ as command_line
from async_dqn.run.csv_log import CsvWriter
from async_dqn.run.worker_table import read_worker, worker_table
from async_dqn.tools.report.runs import read_run
from async_dqn.tools.report.status import describe, run_status

NOW = 2_000_000_000.0
FIELDS = ("env_steps", "steps_per_second", "minibatches", "staleness_mean", "seconds_gradient", "seconds_waiting")


def write_worker(path, index, rows, age=0.0):
    """A worker's own metrics, last written `age` seconds ago."""
    file = path / f"worker-{index}" / "metrics.csv"
    writer = CsvWriter(file, FIELDS)
    for row in rows:
        writer.write(dict(zip(FIELDS, row, strict=True)))
    writer.close()
    os.utime(file, (NOW - age, NOW - age))


def lines(path, age=0.0, summary_age=None):
    ages = {"metrics.csv": age, "summary.json": age if summary_age is None else summary_age}
    for file in (path / name for name in ages):
        if file.exists():
            os.utime(file, (NOW - ages[file.name], NOW - ages[file.name]))
    return list(describe(read_run(path), NOW))


def test_a_run_that_goes_on_shows_its_progress_and_each_worker(tmp_path):
    path = write_run(tmp_path / "run", [9.0] * 3, exit_reason="running", total_steps=1_000, num_workers=3)
    with (path / "metrics.csv").open("a") as file:
        file.write("10,250,250,40,10,3,9,0.5,0.001,0.1,25,4,1,2.25\n")
    write_worker(path, 0, [(1_000, 50, 20, 1.0, 3.0, 0.0), (2_345, 51.4, 30, 2.04, 6.0, 1.0)])
    write_worker(path, 1, [(5, "", 0, "", 1.0, 0.0)], age=125)
    assert lines(path) == [
        f"{path}: CartPole-v1, asynchronous: 1 ps + 3 workers",
        "running",
        "250/1,000 steps (25%) | 25 steps/s | 1 updates/s | return 9.0 (3 games) | epsilon 0.50 | staleness 2.2 | "
        "0:10 gone, 0:30 left",
        "          state            steps  steps/s  minibatches  staleness  waiting  memory",
        "worker 0  running          2,345       51           30        2.0   25.0 %       -",
        "worker 1  silent for 2:05      5        -            0          -        -       -",
    ]


@pytest.mark.parametrize(
    ("reason", "age", "state"),
    [
        ("running", 11, "running"),
        (None, 11, "running"),
        ("running", 90, "silent for 1:30: it has ended without a word, or stands still"),
        ("solved", 90_000, "ended: solved"),
        ("failed: no memory", 3, "ended: failed: no memory"),
    ],
)
def test_the_state_of_a_run(tmp_path, reason, age, state):
    path = write_run(tmp_path / "run", [1.0], exit_reason=reason, log_period=2.0)
    assert lines(path, age)[1] == state


@pytest.mark.parametrize(
    ("age", "state"),
    [
        (3, "running"),
        (90, "silent for 1:30: it has ended without a word, or stands still"),
        (597, "ended: interrupted"),  # as far apart as a copy's files are
    ],
)
def test_a_resumed_run_goes_on_whatever_the_summary_of_its_first_part_says(tmp_path, age, state):
    path = write_run(tmp_path / "run", [1.0], exit_reason="interrupted")
    write_worker(path, 0, [(5, "", 0, "", 1.0, 0.0)], age)
    found = lines(path, age, summary_age=600)
    assert found[1] == state
    assert found[-1].split()[2] == {3: "running", 90: "silent", 597: "?"}[age]


def test_a_run_that_has_just_begun(tmp_path):
    path = write_run(tmp_path / "run", [], exit_reason=None)
    (path / "metrics.csv").unlink()
    assert lines(path) == [f"{path}: CartPole-v1, asynchronous: 1 ps + 2 workers", "starting: nothing is written yet"]


def test_rows_that_hold_no_numbers_leave_gaps(tmp_path):
    path = write_run(tmp_path / "run", [1.0], exit_reason="running")
    (path / "metrics.csv").write_text("env_steps,wall_seconds,epsilon\n10,1,x\n")
    write_worker(path, 0, [("x", "y", "", "inf", "-", "?")])
    first, state, _, worker = lines(path)
    assert state == "running"
    assert worker.split() == ["worker", "0", "running", "-", "-", "-", "-", "-", "-"]


def test_an_ended_run_says_how_each_worker_ended(tmp_path):
    path = write_run(tmp_path / "run", [1.0])
    (path / "summary.json").write_text('{"exit_reason": "finished", "workers": [{"state": "done"}, 7]}')
    for index in range(2):
        write_worker(path, index, [(1, 2, 3, 4, 5, 6)], age=9_999)
    table = [line.split()[:3] for line in lines(path)[-2:]]
    assert table == [["worker", "0", "done"], ["worker", "1", "?"]]


def test_an_ended_run_has_the_rates_of_all_of_its_time_and_none_left(tmp_path):
    rates = {"steps_per_second": 400.4, "updates_per_second": 25.0}
    path = write_run(tmp_path / "run", [9.0] * 3, exit_reason="solved", summary=rates, total_steps=1_000)
    with (path / "metrics.csv").open("a") as file:
        file.write("10,250,250,40,10,3,9,0.5,0.001,0.1,1,1,1,2.25\n")
    write_worker(path, 0, [(1, 2, 3, 4, 5, 6)])
    _, state, line, _, worker = lines(path)
    assert state == "ended: solved"
    assert " | 400 steps/s | 25 updates/s | " in line and line.endswith(" | 0:10 gone")
    assert worker.split()[2:6] == ["?", "1", "-", "3"]


def test_several_runs_follow_each_other(capsys, tmp_path):
    paths = [str(write_run(tmp_path / name, [1.0])) for name in "ab"]
    assert run_status([*paths, paths[0]]) == 0
    first, second = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert first.startswith(f"{paths[0]}: ") and second.startswith(f"{paths[1]}: ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "status needs run directories: async-dqn status RUN [RUN ...]"),
        (["nowhere"], "nowhere holds no run (no config.json); give run directories"),
        (["--logdir=x"], "'logdir'"),
        (["a\0b"], "holds no run"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, line):
    assert command_line.main(["status", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert line in err


def test_a_table_of_workers_shows_those_that_have_not_written_yet(tmp_path):
    write_worker(tmp_path, 1, [(1_234, 50, 20, 1.0, 3.0, 1.0)])
    rows = [(f"worker {index}", state, read_worker(tmp_path, index)) for index, state in enumerate(["starts", "runs"])]
    assert worker_table(rows) == [
        "          state   steps  steps/s  minibatches  staleness  waiting  memory",
        "worker 0  starts      -        -            -          -        -       -",
        "worker 1  runs    1,234       50           20        1.0        -       -",
    ]
