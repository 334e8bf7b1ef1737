import json
import os

import numpy as np
import pytest
from report_helpers import write_run

from async_dqn.base.errors import UserError
from async_dqn.run.csv_log import CsvWriter
from async_dqn.run.worker_table import read_worker
from async_dqn.tools.report.runs import read_run, read_stalenesses, read_usage, running_mean


def append(path, *lines):
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def test_games_are_read_with_their_steps_and_times(tmp_path):
    run = read_run(write_run(tmp_path / "a", [1.0, -2.5, 4.0]))
    np.testing.assert_array_equal(run.returns, [1.0, -2.5, 4.0])
    np.testing.assert_array_equal(run.steps, [50, 100, 150])
    np.testing.assert_allclose(run.seconds, [0.5, 1.0, 1.5])
    assert run.settings["env"] == "CartPole-v1"
    assert run.notes == []


def test_times_are_those_of_training_between_rows(tmp_path):
    path = write_run(tmp_path / "a", [])
    append(path / "metrics.csv", "10,100" + "," * 12, "20,300" + "," * 12)
    append(path / "episodes.csv", "1e9,0,50,1,9", "2e9,1,200,2,9", "3e9,0,300,3,9", "3e9,0,400,4,9")
    run = read_run(path)
    np.testing.assert_allclose(run.seconds, [5, 15, 20, 20])  # whatever the clock on the wall said


def test_steps_never_fall(tmp_path):
    path = write_run(tmp_path / "a", [])
    append(path / "episodes.csv", "1,0,50,1,9", "1,1,40,2,9", "1,0,60,3,9")
    np.testing.assert_array_equal(read_run(path).steps, [50, 50, 60])


@pytest.mark.parametrize(
    ("command", "settings", "kind"),
    [
        ("baseline", {"num_workers": 1}, "standard: one process"),
        ("worker", {"num_workers": 1}, "asynchronous: 1 ps + 1 worker"),
        ("worker", {"num_ps": 2, "num_workers": 3}, "asynchronous: 2 ps + 3 workers"),
    ],
)
def test_the_kind_of_a_run_is_known(tmp_path, command, settings, kind):
    assert read_run(write_run(tmp_path / "a", [], command=command, **settings)).kind == kind


@pytest.mark.parametrize(
    ("reason", "notes"),
    [
        (None, ["has not ended"]),
        ("running", ["has not ended"]),
        ("interrupted", ["interrupted"]),
        ("failed: 10 minibatches in a row", ["failed"]),
        ("solved", []),
    ],
)
def test_how_a_run_ended_is_noted(tmp_path, reason, notes):
    assert read_run(write_run(tmp_path / "a", [1.0], exit_reason=reason)).notes == notes


def test_a_run_without_games_is_one(tmp_path):
    run = read_run(write_run(tmp_path / "a", []))
    assert (len(run.returns), len(run.steps), len(run.seconds)) == (0, 0, 0)
    assert run.notes == ["no games yet"]


def test_without_metrics_the_times_are_unknown(tmp_path):
    path = write_run(tmp_path / "a", [1.0, 2.0])
    (path / "metrics.csv").unlink()
    run = read_run(path)
    assert np.isnan(run.seconds).all()
    np.testing.assert_array_equal(run.returns, [1, 2])


def test_damaged_rows_are_left_out_and_counted(tmp_path):
    path = write_run(tmp_path / "a", [1.0])
    append(path / "episodes.csv", "1,0,x,7,9", "too,short", "1,0,90,nan,9", "1,0,100,8,9")
    with (path / "episodes.csv").open("ab") as file:
        file.write(b"\xff\xfe,0,120,9,9\n1,0,150")  # a cell that is no text, and a line that is not whole
    run = read_run(path)
    np.testing.assert_array_equal(run.returns, [1, 8, 9])
    assert run.notes == ["episodes.csv: 2 rows cannot be read"]


@pytest.mark.timeout(20)
def test_what_would_never_end_is_not_read(tmp_path):
    path = write_run(tmp_path / "a", [1.0])
    for name in ("episodes.csv", "metrics.csv", "worker-0/metrics.csv"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)
    run = read_run(path)
    assert run.notes == ["metrics.csv is no file", "episodes.csv is no file", "no games yet"]
    assert read_worker(path, 0) is None
    assert read_stalenesses(path, 1) == {}


def test_what_processes_took_goes_on_over_a_restart(tmp_path):
    path = write_run(tmp_path / "a", [])
    (path / "worker-1").mkdir()
    (path / "worker-1" / "metrics.csv").write_text(
        "wall_seconds,cores_used,resident_mb\n2,1,700\n4,1,710\n3,0.5,700\n5,x,700\n6,0.5,690\n"
    )
    (path / "ps-0").mkdir()
    (path / "ps-0" / "metrics.csv").write_text("wall_seconds,cores_used,resident_mb\n")
    usages = read_usage(path, num_ps=2, num_workers=2)
    assert list(usages) == ["worker 1"]
    np.testing.assert_allclose(usages["worker 1"].seconds, [2, 4, 7, 10])
    assert usages["worker 1"].mean_cores == pytest.approx((2 * 1 + 2 * 1 + 3 * 0.5 + 3 * 0.5) / 10)
    assert usages["worker 1"].half_way_mb == pytest.approx(710 - 10 / 3)
    assert usages["worker 1"].resident_mb[-1] == 690


def test_columns_of_another_version_are_no_obstacle(tmp_path):
    path = write_run(tmp_path / "a", [])
    (path / "episodes.csv").write_text("env_steps,mood,episode_return\n10,good,3\n20,,5\n")
    (path / "metrics.csv").write_text("env_steps,wall_seconds\n20,4\n")
    run = read_run(path)
    np.testing.assert_array_equal(run.returns, [3, 5])
    np.testing.assert_allclose(run.seconds, [2, 4])


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xff", b'{"config": 7}', b"{" * 100_000])
def test_settings_and_summary_may_hold_anything(tmp_path, content):
    path = write_run(tmp_path / "a", [1.0], exit_reason="solved")
    (path / "config.json").write_bytes(content)
    (path / "summary.json").write_bytes(content)
    run = read_run(path)
    assert run.settings == {}
    assert run.kind == "asynchronous: ? ps + ? workers"
    assert "has not ended" in run.notes
    np.testing.assert_array_equal(run.returns, [1])


@pytest.mark.parametrize("command", [None, 7, "baseline", ["async-dqn"], [["x"], ["y"]]])
def test_a_command_may_be_anything(tmp_path, command):
    path = write_run(tmp_path / "a", [1.0])
    described = json.loads((path / "config.json").read_text()) | {"command": command}
    (path / "config.json").write_text(json.dumps(described))
    assert not read_run(path).is_baseline


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_a_folder_without_a_run_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"{name} holds no run"):
        read_run(tmp_path / name)


def test_stalenesses_of_all_workers_add_up(tmp_path):
    for worker, cells in enumerate((("0:2 3:10", "", "3:1"), ("12:7", "x 1:y :3 4: 1:1"))):
        writer = CsvWriter(tmp_path / f"worker-{worker}" / "metrics.csv", ("stalenesses", "other"))
        for cell in cells:
            writer.write({"stalenesses": cell, "other": "5:5"})
        writer.close()
    assert read_stalenesses(tmp_path, 3) == {0: 2, 1: 1, 3: 11, 12: 7}
    assert read_stalenesses(tmp_path / "none", 2) == {}


def test_a_running_mean_is_over_the_last_values():
    np.testing.assert_allclose(running_mean(np.array([2.0, 4.0, 9.0, 1.0]), 2), [2, 3, 6.5, 5])
    np.testing.assert_allclose(running_mean(np.array([2.0, 4.0, 9.0]), 10), [2, 3, 5])
    assert running_mean(np.empty(0), 3).shape == (0,)
