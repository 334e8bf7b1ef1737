import os

import pytest
from report_helpers import write_csv, write_run

from async_dqn.cli import main as command_line
from async_dqn.tools.report.runs import read_run
from async_dqn.tools.report.status import describe, run_status

NOW = 2_000_000_000.0
WORKER = ("env_steps", "steps_per_second", "minibatches", "staleness_mean", "seconds_gradient", "seconds_waiting")
GLOBAL = {"steps_per_second": 25, "updates_per_second": 1, "episodes": 3, "mean_return_100": 9.0}


def write_worker(path, index, rows, age=0.0):
    """A worker's own metrics, last written `age` seconds ago."""
    file = path / f"worker-{index}" / "metrics.csv"
    write_csv(file, [dict(zip(WORKER, row, strict=True)) for row in rows], WORKER)
    os.utime(file, (NOW - age, NOW - age))


def lines(path, age=0.0, summary_age=None):
    ages = {"metrics.csv": age, "summary.json": age if summary_age is None else summary_age}
    for file in (path / name for name in ages):
        if file.exists():
            os.utime(file, (NOW - ages[file.name], NOW - ages[file.name]))
    return list(describe(read_run(path), NOW))


def test_a_run_that_goes_on_shows_its_progress_and_each_worker(tmp_path):
    path = write_run(
        tmp_path / "run", [9.0] * 5, exit_reason="running", total_steps=1_000, num_workers=3, metrics=GLOBAL
    )
    write_worker(path, 0, [(1_000, 50, 20, 1.0, 3.0, 0.0), (2_345, 51.4, 30, 2.04, 6.0, 1.0)])
    write_worker(path, 1, [(5, "", 0, "", 1.0, 0.0)], age=125)
    where, state, progress, header, *workers = lines(path)
    assert str(path) in where and "dqn" in where and "1 ps + 3 workers" in where
    assert state == "running"
    assert "250/1,000 steps" in progress and "0:30 left" in progress  # (1000 - 250) / 25
    assert header.split() == ["state", "steps", "steps/s", "minibatches", "staleness", "waiting"]
    assert workers[0].split()[2:] == ["running", "2,345", "51", "30", "2.0", "25.0", "%"]
    assert workers[1].split()[2:5] == ["silent", "for", "2:05"]
    assert len(workers) == 2


@pytest.mark.parametrize(
    ("own", "said"),
    [({"epsilon": 0.25}, "epsilon 0.25"), ({"entropy": 0.5, "clip_share": 0.1}, "entropy 0.50"), ({}, "")],
)
def test_progress_has_the_metrics_of_the_agent(tmp_path, own, said):
    path = write_run(tmp_path / "run", [9.0], exit_reason="running", metrics=GLOBAL | own)
    progress = lines(path)[2]
    assert said in progress and ("epsilon" in progress) == ("epsilon" in own)


@pytest.mark.parametrize(
    ("reason", "age", "state"),
    [
        ("running", 11, "running"),
        (None, 11, "running"),
        ("running", 90, "silent for 1:30"),
        ("solved", 90_000, "ended: solved"),
        ("failed: no memory", 3, "ended: failed: no memory"),
    ],
)
def test_the_state_of_a_run(tmp_path, reason, age, state):
    path = write_run(tmp_path / "run", [1.0], exit_reason=reason, log_period=2.0)
    assert lines(path, age)[1].startswith(state)


@pytest.mark.parametrize(
    ("age", "state", "worker"),
    [(3, "running", "running"), (90, "silent", "silent"), (597, "ended: interrupted", "?")],  # a copy's files differ
)
def test_a_resumed_run_goes_on_whatever_the_summary_of_its_first_part_says(tmp_path, age, state, worker):
    path = write_run(tmp_path / "run", [1.0], exit_reason="interrupted")
    write_worker(path, 0, [(5, "", 0, "", 1.0, 0.0)], age)
    found = lines(path, age, summary_age=600)
    assert found[1].startswith(state)
    assert found[-1].split()[2] == worker


def test_rows_that_hold_no_numbers_leave_gaps(tmp_path):
    path = write_run(tmp_path / "run", [1.0], exit_reason="running")
    (path / "metrics.csv").write_text("env_steps,wall_seconds,epsilon\n10,1,x\n")
    write_worker(path, 0, [("x", "y", "", "inf", "-", "?")])
    _, state, _, worker = lines(path)
    assert state == "running"
    assert worker.split() == ["worker", "0", "running"]


def test_an_ended_run_says_how_each_worker_ended_and_the_rates_of_all_of_its_time(tmp_path):
    rates = {"steps_per_second": 400.4, "updates_per_second": 25.0, "workers": [{"state": "done"}, 7]}
    rates["mean_return_100"] = 18.25
    path = write_run(tmp_path / "run", [9.0] * 3, exit_reason="solved", summary=rates, metrics=GLOBAL)
    for index in range(2):
        write_worker(path, index, [(1, 2, 3, 4, 5, 6)], age=9_999)
    _, state, progress, header, *workers = lines(path)
    assert state == "ended: solved"
    assert "400 steps/s" in progress and "25 updates/s" in progress and "left" not in progress
    assert "return 18.2" in progress
    assert "steps/s" not in header
    assert [worker.split()[2] for worker in workers] == ["done", "?"]


def test_several_runs_follow_each_other(capsys, tmp_path):
    paths = [str(write_run(tmp_path / name, [1.0])) for name in "ab"]
    assert run_status([*paths, paths[0]]) == 0
    first, second = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert first.startswith(f"{paths[0]}: ") and second.startswith(f"{paths[1]}: ")


@pytest.mark.parametrize("arguments", [[], ["nowhere"], ["--logdir=x"], ["a\0b"]])
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments):
    assert command_line.main(["status", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
