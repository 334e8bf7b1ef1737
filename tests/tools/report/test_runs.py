import json
import math
import os

import numpy as np
import pytest
from report_helpers import write_csv, write_run

from async_dqn.agents.table import make_config
from async_dqn.base.errors import UserError
from async_dqn.run.directory import RunDirectory
from async_dqn.run.worker_table import read_process, worker_table
from async_dqn.tools.report.runs import read_evaluation, read_megabytes, read_run, read_stalenesses, running_mean


def append(path, *lines):
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def test_games_are_read_with_their_steps_and_times(tmp_path):
    run = read_run(write_run(tmp_path / "a", [1.0, -2.5, 4.0]))
    np.testing.assert_array_equal(run.games["episode_return"], [1.0, -2.5, 4.0])
    np.testing.assert_array_equal(run.games["env_steps"], [50, 100, 150])
    np.testing.assert_allclose(run.games["seconds"], [0.5, 1.0, 1.5])
    assert (run.settings["env"], run.notes) == ("CartPole-v1", [])


def test_times_are_those_of_training_between_rows_and_steps_never_fall(tmp_path):
    path = write_run(tmp_path / "a", [])
    append(path / "metrics.csv", "10,100", "20,300")
    append(path / "episodes.csv", "50,1", "40,1", "200,2", "300,3", "400,4")
    run = read_run(path)
    np.testing.assert_array_equal(run.games["env_steps"], [50, 50, 200, 300, 400])
    np.testing.assert_allclose(run.games["seconds"], [5, 5, 15, 20, 20])


@pytest.mark.parametrize("agent", ["dqn", "ppo"])
def test_metrics_are_those_that_the_agent_writes(tmp_path, agent):
    own = {"dqn": {"epsilon": 0.5}, "ppo": {"entropy": 0.6, "clip_share": 0.1}}[agent]
    run = read_run(write_run(tmp_path / "a", [1.0], agent=agent, metrics=own))
    assert {name: values[0] for name, values in run.metrics.items()} == {"wall_seconds": 0.5, "env_steps": 50} | own


@pytest.mark.parametrize(
    ("command", "settings", "kind"),
    [
        ("baseline", {"num_workers": 1}, "baseline"),
        ("worker", {"num_workers": 1}, "1 ps + 1 worker"),
        ("worker", {"num_ps": 2, "num_workers": 3}, "2 ps + 3 workers"),
        ("worker", {"num_ps": 0, "store": "shared_memory"}, "shared memory, hogwild + 2 workers"),
        (
            "worker",
            {"num_ps": 0, "store": "shared_memory", "update_mode": "locked", "num_workers": 1},
            "shared memory, locked + 1 worker",
        ),
    ],
)
def test_the_kind_of_a_run_of_an_earlier_version_is_known(tmp_path, command, settings, kind):
    assert read_run(write_run(tmp_path / "a", [], command=command, **settings)).kind == kind


@pytest.mark.parametrize(
    ("agent", "settings", "in_one_process", "kind"),
    [
        ("dqn", {"num_workers": 1}, True, "baseline"),
        ("dqn", {"num_workers": 1}, False, "1 ps + 1 worker"),
        ("dqn", {"num_ps": 0, "store": "shared_memory"}, False, "shared memory, hogwild + 2 workers"),
        ("a3c", {"num_ps": 0, "store": "shared_memory"}, False, "shared memory, locked + 2 workers"),
        ("paac", {"num_ps": 0, "store": "shared_memory"}, False, "shared memory, sync + 2 workers"),
    ],
)
def test_the_kind_of_a_run_is_as_its_directory_says(tmp_path, agent, settings, in_one_process, kind):
    path = write_run(tmp_path / "a", [])
    RunDirectory(path).write_config(make_config(agent, "cartpole", settings), 1, in_one_process=in_one_process)
    assert read_run(path).kind == kind


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


def test_a_run_without_games_or_metrics_is_one(tmp_path):
    run = read_run(write_run(tmp_path / "a", []))
    assert {name: len(values) for name, values in run.games.items()} == dict.fromkeys(run.games, 0)
    assert run.notes == ["no games yet"]
    path = write_run(tmp_path / "b", [1.0, 2.0])
    (path / "metrics.csv").unlink()
    run = read_run(path)
    assert np.isnan(run.games["seconds"]).all() and run.notes == ["times are not known"]


def test_damaged_rows_are_left_out_and_counted(tmp_path):
    path = write_run(tmp_path / "a", [1.0])
    append(path / "episodes.csv", "x,7", "short", "90,nan", "100,8")
    with (path / "episodes.csv").open("ab") as file:
        file.write(b"\xff\xfe,9\n120,9\n150")  # a cell that is no text, and a line that is not whole
    run = read_run(path)
    np.testing.assert_array_equal(run.games["episode_return"], [1, 8, 9])
    assert run.notes == ["episodes.csv: 3 rows cannot be read"]


@pytest.mark.timeout(20)
def test_what_would_never_end_is_not_read(tmp_path):
    path = write_run(tmp_path / "a", [1.0])
    for name in ("episodes.csv", "metrics.csv", "worker-0/metrics.csv", "config.json", "summary.json"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)
    run = read_run(path)
    assert len(run.notes) == 6 and run.settings == {}
    assert read_process(path / "worker-0" / "metrics.csv") is None
    assert read_stalenesses(run) == {}


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xff", b'{"config": 7}', b"[" * 100_000])
def test_settings_and_summary_may_hold_anything(tmp_path, content):
    path = write_run(tmp_path / "a", [1.0], exit_reason="solved")
    for name in ("config.json", "summary.json", "evaluation.json"):
        (path / name).write_bytes(content)
    run = read_run(path)
    assert (run.settings, run.kind) == ({}, "? ps + ? workers")
    assert "has not ended" in run.notes
    np.testing.assert_array_equal(run.games["episode_return"], [1])


@pytest.mark.parametrize("name", ["missing", "empty", "file", "nul\0"])
def test_a_folder_without_a_run_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"{name} holds no run"):
        read_run(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "is_known"),
    [
        ({"mean": 3, "checkpoint_env_steps": 70, "actions": "greedy", "epsilon": 0.0}, True),
        ({"mean": 3, "checkpoint_env_steps": 60, "actions": "greedy", "epsilon": 0.0}, False),
        ({"mean": 3, "checkpoint_env_steps": 70, "actions": "sampled", "epsilon": 0.0}, False),
        ({"mean": 3, "checkpoint_env_steps": 70, "actions": "greedy", "epsilon": 0.05}, False),
        ({"mean": 3, "checkpoint_env_steps": 70, "actions": "greedy", "epsilon": 0.0, "max_steps": None}, True),
        ({"mean": 3, "checkpoint_env_steps": 70, "actions": "greedy", "epsilon": 0.0, "max_steps": 100}, False),
        ([], False),
    ],
)
def test_an_evaluation_counts_if_it_is_greedy_and_whole_and_of_the_newest_state(tmp_path, content, is_known):
    path = write_run(tmp_path / "a", [1.0], summary={"env_steps": 70})
    assert read_evaluation(path) == {}
    (path / "evaluation.json").write_text(json.dumps(content))
    assert bool(read_evaluation(path)) == is_known


def test_stalenesses_of_all_workers_add_up(tmp_path):
    path = write_run(tmp_path / "a", [])
    for worker, cells in enumerate((("0:2 3:10", "", "3:1"), ("12:7", "x 1:y :3 4: 1:1"))):
        rows = [{"stalenesses": cell, "other": "5:5"} for cell in cells]
        write_csv(path / f"worker-{worker}" / "metrics.csv", rows, ("stalenesses", "other"))
    assert read_stalenesses(read_run(path)) == {0: 2, 1: 1, 3: 11, 12: 7}


def test_what_the_workers_exchanged_adds_up(tmp_path):
    path = write_run(tmp_path / "a", [])
    assert math.isnan(read_megabytes(read_run(path)))
    for worker, values in enumerate(((1.0, 2.5, 0.5, 0.75), (4.0,))):  # worker 0 was started again
        rows = [{"megabytes_exchanged": value} for value in values]
        write_csv(path / f"worker-{worker}" / "metrics.csv", rows, ("megabytes_exchanged",))
    assert read_megabytes(read_run(path)) == 2.5 + 0.75 + 4
    append(path / "worker-1" / "metrics.csv", "damaged", "4.5")
    assert read_megabytes(read_run(path)) == 2.5 + 0.75 + 4.5
    (path / "worker-2" / "metrics.csv").mkdir(parents=True)
    assert math.isnan(read_megabytes(read_run(path)))


def test_where_no_worker_has_counted_what_it_exchanged_it_is_not_known(tmp_path):
    path = write_run(tmp_path / "a", [])
    write_csv(path / "worker-0" / "metrics.csv", [{"env_steps": 3}], ("env_steps",))
    assert math.isnan(read_megabytes(read_run(path)))


def test_a_running_mean_is_over_the_last_values():
    np.testing.assert_allclose(running_mean(np.array([2.0, 4.0, 9.0, 1.0]), 2), [2, 3, 6.5, 5])
    np.testing.assert_allclose(running_mean(np.array([2.0, 4.0, 9.0]), 10), [2, 3, 5])
    assert running_mean(np.empty(0), 3).shape == (0,)


FIELDS = ("env_steps", "minibatches", "seconds_gradient", "seconds_waiting", "cores_used")


def test_a_process_has_its_wait_and_its_cores_over_restarts(tmp_path):
    rows = [(0, 0, 0, 0, 1), (2_000, 500, 5, 0, 1), (3_000, 750, 0, 0, 0.5), (4_000, 1_000, 4, 1, 0.5)]
    write_csv(tmp_path / "metrics.csv", [dict(zip(FIELDS, row, strict=True)) for row in rows], FIELDS)
    found = read_process(tmp_path / "metrics.csv", None)
    assert (found["env_steps"], found["waiting_percent"], found["cores_mean"]) == (4_000, 100 * 1 / (5 + 4 + 1), 0.75)
    assert read_process(tmp_path / "metrics.csv", 2)["waiting_percent"] == 100 * 1 / (4 + 1)


def test_the_table_of_workers_has_the_columns_that_some_worker_has(tmp_path):
    workers = [("worker 0", "starts", None), ("worker 1", "runs", {"env_steps": 1_234.0, "minibatches": float("nan")})]
    header, first, second = (line.split() for line in worker_table(workers))
    assert header == ["state", "steps"]
    assert (first[-1], second[-1]) == ("-", "1,234")
