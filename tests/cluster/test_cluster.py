"""Tests of whole clusters: `local`, and `ps` and `worker` started one by one, with real processes."""

import contextlib
import csv
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from cluster_helpers import (
    START,
    assert_ports_free,
    commands,
    processes_naming,
    wait_until,
    write_spec,
)

from async_dqn.agents.table import config_from_dict
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.run import checkpoints
from async_dqn.run.directory import RunDirectory

pytestmark = pytest.mark.cluster

TOTAL = 2_003  # divides by neither environments nor workers
RUN = 120.0  # seconds for a whole small run on a busy machine
SMALL = ["--env=CartPole-v1", "--warmup_steps=200", "--ps_deadline=30", "--local_steps=4"]
# gRPC would send even what stays on this host through them.
NO_PROXY_THERE = dict.fromkeys(["http_proxy", "https_proxy"], "http://127.0.0.1:9")
ENDLESS = [*SMALL, "--total_steps=10_000_000"]

SUMMARY = {
    "env_steps",
    "frames",
    "updates",
    "minibatches",
    "episodes",
    "wall_seconds",
    "steps_per_second",
    "updates_per_second",
    "mean_return_100",
    "best_mean_return_100",
    "solved_at_seconds",
    "solved_at_steps",
    "staleness_mean",
    "staleness_max",
    "updates_dropped",
    "data_age_mean",
    "steps_received",
    "nonfinite",
    "bad_values",
    "num_ps",
    "num_workers",
    "worker_restarts",
    "ps_recoveries",
    "steps_lost",
    "workers",
    "exit_reason",
}
NO_FAULTS = {
    "updates_dropped": 0,
    "nonfinite": 0,
    "bad_values": 0,
    "worker_restarts": 0,
    "ps_recoveries": 0,
    "steps_lost": 0,
}


def _rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def _summary(run: RunDirectory) -> dict:
    return json.loads(run.summary.read_text())


def _cluster_of(run: RunDirectory) -> ClusterSpec:
    return ClusterSpec.load(run.path / "cluster.json")


def _assert_nothing_left(run: RunDirectory, deadline: float = 1.0) -> None:
    wait_until(lambda: not processes_naming(run.path), deadline, "every process of the run has ended")
    assert_ports_free(_cluster_of(run))


def _wait_until_training(run: RunDirectory, at_least: int = 1_000) -> None:
    """Until the run has trained, so that all processes are up."""

    def steps() -> bool:
        if not run.metrics.exists() or not run.worker(1).exists():
            return False
        rows = _rows(run.metrics)
        return bool(rows) and int(rows[-1]["env_steps"] or 0) >= at_least

    wait_until(steps, START + RUN, f"{at_least} agent steps and a second worker")


def _steps_of_worker(run: RunDirectory, index: int) -> int:
    file = run.worker(index) / "metrics.csv"
    rows = _rows(file) if file.exists() else []
    return int(rows[-1]["env_steps"] or 0) if rows else 0


def _children(pid: int) -> dict[str, psutil.Process]:
    """Processes of a `local` run by job and task index: {"ps 0": ..., "worker 1": ...}."""
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        line = process.cmdline()
        if "async_dqn" in line:
            job = line[line.index("async_dqn") + 1]
            index = next(part for part in line if part.startswith("--task_index="))
            found[f"{job} {index.removeprefix('--task_index=')}"] = process
    return found


@pytest.fixture(
    scope="module",
    params=[
        (1, 2, []),
        (2, 3, ["--overlap"]),
        (2, 2, ["--overlap", "--local_steps=0", "--optimizer=adam"]),
        (1, 2, ["--local_steps=0"]),
    ],
    ids=["1ps-2workers", "2ps-3workers-overlap", "adam-on-ps-overlap", "gradients"],
)
def finished(request, tmp_path_factory):
    """A run that came to its end: run directory, numbers of ps and workers, what the command printed."""
    num_ps, num_workers, flags = request.param
    folder = tmp_path_factory.mktemp("finished")
    run = RunDirectory(folder / "run")
    sizes = [f"--num_ps={num_ps}", f"--num_workers={num_workers}"]
    with commands(folder) as start:
        arguments = [*SMALL, f"--total_steps={TOTAL}", *sizes, *flags, f"--logdir={run.path}"]
        local = start("local", "local", *arguments, environ=NO_PROXY_THERE)
        assert local.wait(RUN) == 0, local.out + local.err
        for log in run.logs.iterdir():  # not only in the eyes of the launcher, which goes by the summary
            assert "async-dqn: " not in log.read_text(), log.read_text()
        _assert_nothing_left(run)
    return run, num_ps, num_workers, flags, local


def test_the_budget_is_met_exactly(finished):
    run, num_ps, num_workers, _, _ = finished
    summary = _summary(run)
    assert set(summary) == SUMMARY
    assert summary["env_steps"] == summary["frames"] == TOTAL
    assert (summary["num_ps"], summary["num_workers"]) == (num_ps, num_workers)
    assert summary["exit_reason"] == "finished"
    assert {name: summary[name] for name in NO_FAULTS} == NO_FAULTS


def test_what_the_workers_did_adds_up(finished):
    run, _, num_workers, flags, _ = finished
    summary = _summary(run)
    last = [_rows(run.worker(index) / "metrics.csv")[-1] for index in range(num_workers)]
    for field, total in (
        ("env_steps", "env_steps"),
        ("minibatches", "minibatches"),
        ("episodes", "episodes"),
    ):
        assert sum(int(row[field]) for row in last) == summary[total], field
    for field in ("env_steps", "minibatches"):
        assert [worker[field] for worker in summary["workers"]] == [int(row[field]) for row in last], field
    assert [worker["state"] for worker in summary["workers"]] == ["done"] * num_workers
    assert summary["minibatches"] > 0
    pushed_at_once = 1 if "--local_steps=0" in flags else 4
    per_worker = [-(-int(row["minibatches"]) // pushed_at_once) for row in last]
    assert summary["updates"] == sum(per_worker)


def test_games_of_all_workers_are_in_one_table(finished):
    run, _, num_workers, _, _ = finished
    rows = _rows(run.episodes)
    assert len(rows) == _summary(run)["episodes"] > 0
    own = [_rows(run.worker(index) / "episodes.csv") for index in range(num_workers)]
    assert sorted(map(str, rows)) == sorted(str(row) for part in own for row in part)
    for index, part in enumerate(own):
        assert {row["worker"] for row in part} <= {str(index)}
    assert all(float(row["episode_return"]) == int(row["length"]) for row in rows)  # as CartPole scores


def test_the_run_directory_is_complete(finished):
    run, num_ps, num_workers, flags, local = finished
    last = _rows(run.metrics)[-1]
    assert {"wall_seconds", "env_steps", "updates", "mean_return_100", "epsilon", "loss"} <= set(last)
    assert int(last["env_steps"]) == TOTAL
    assert list(run.tensorboard.glob("events.out.tfevents.*"))
    newest, faults = checkpoints.load_newest(run.checkpoints)
    assert newest is not None and newest.number == TOTAL and faults == []
    assert all(np.isfinite(array).all() for array in newest.arrays.values())
    for index, row in enumerate(_rows(run.worker(index) / "metrics.csv")[-1] for index in range(num_workers)):
        snapshot, faults = checkpoints.load_newest(run.worker(index) / "snapshots")
        assert snapshot is not None and faults == []
        assert snapshot.number == int(row["env_steps"]) + int(row["minibatches"])
        has_replay = bool(list((run.worker(index) / "replay").glob("*.segment")))
        assert has_replay == (int(row["env_steps"]) > 0)  # a worker that comes late may find no steps left
    for row in (_rows(run.ps(index) / "metrics.csv")[-1] for index in range(num_ps)):
        assert float(row["cores_used"]) >= 0 and float(row["resident_mb"]) > 100
    assert str(run.path) in local.out and local.err == ""
    config = run.read_config()
    assert config_from_dict(config.to_dict()) == config
    assert (config.num_ps, config.num_workers, config.total_steps) == (num_ps, num_workers, TOTAL)
    assert (config.env, config.local_steps) == ("CartPole-v1", 0 if "--local_steps=0" in flags else 4)
    written = json.loads(run.config.read_text())
    assert written["config"] == config.to_dict()
    assert written["versions"]["tensorflow"] and written["host"]["cores"]


def test_one_worker_learns_the_same_bits_through_memory_as_through_sockets(tmp_path):
    states = []
    for way in ("--shared_memory", "--noshared_memory"):
        run = RunDirectory(tmp_path / way.strip("-"))
        sizes = ["--num_ps=2", "--num_workers=1", "--threads=1", f"--total_steps={TOTAL}"]
        with commands(tmp_path) as start:
            local = start(way.strip("-"), "local", *SMALL, *sizes, way, f"--logdir={run.path}")
            assert local.wait(RUN) == 0, local.out + local.err
        assert "no memory is shared" not in (run.logs / "worker-0.log").read_text()
        newest, _ = checkpoints.load_newest(run.checkpoints)
        states.append(newest.arrays)
    memory, sockets = states
    np.testing.assert_equal(memory, sockets)
    assert not np.array_equal(memory["store/q/online"], memory["store/q/target"])


def test_an_interrupted_run_saves_and_goes_on_with_other_numbers_of_ps_and_workers(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        local = start("local", "local", *ENDLESS, "--num_ps=2", "--num_workers=3", f"--logdir={run.path}")
        _wait_until_training(run)
        for index in range(3):
            wait_until(lambda index=index: _steps_of_worker(run, index), START, f"worker {index} has taken steps")
        local.process.send_signal(signal.SIGINT)
        assert local.wait(15) == 130, local.out + local.err
        _assert_nothing_left(run)
        summary = _summary(run)
        assert summary["exit_reason"] == "interrupted"
        assert set(summary) == SUMMARY
        newest, faults = checkpoints.load_newest(run.checkpoints)
        assert newest is not None and faults == []
        assert newest.number == summary["env_steps"] >= 1_000

        budget = newest.number + 1_001
        sizes = ["--num_ps=1", "--num_workers=2"]
        resumed = start("resumed", "local", "--resume", f"--logdir={run.path}", *sizes, f"--total_steps={budget}")
        assert resumed.wait(RUN) == 0, resumed.out + resumed.err
        _assert_nothing_left(run)
    after = _summary(run)
    assert after["env_steps"] == budget
    assert (after["exit_reason"], after["num_ps"], after["num_workers"]) == ("finished", 1, 2)
    assert (after["worker_restarts"], after["ps_recoveries"], after["steps_lost"]) == (0, 0, 0)
    assert sum(worker["env_steps"] for worker in after["workers"]) == budget - newest.number
    for index in range(2):
        assert f"worker {index}: replay is there again" in (run.logs / f"worker-{index}.log").read_text()
    assert not (run.worker(2) / "replay").exists()  # worker 0 has taken it over
    assert after["updates"] > summary["updates"]
    assert after["episodes"] > summary["episodes"]
    assert after["wall_seconds"] > summary["wall_seconds"]
    assert len(_rows(run.episodes)) == after["episodes"]


@pytest.mark.parametrize("by_environment", [False, True], ids=["spec-file", "TF_CONFIG"])
def test_separate_commands_may_start_in_any_order(tmp_path, by_environment):
    spec = ClusterSpec.local(1, 2)
    path = write_spec(tmp_path, spec)
    logdir = tmp_path / "run"
    with commands(tmp_path) as start:

        def begin(job: str, index: int):
            flags = [*SMALL, "--ps_deadline=150", f"--total_steps={TOTAL}", f"--logdir={logdir}"]
            environ = {}
            if by_environment:
                task = {"type": job, "index": index}
                environ["TF_CONFIG"] = json.dumps({"cluster": spec.to_dict(), "task": task})
            else:
                flags += [f"--cluster_spec={path}", f"--task_index={index}"]
            return start(f"{job}-{index}", job, *flags, environ=environ)

        workers = [begin("worker", 1)]
        workers[0].wait_for_output("run directory")  # the others are not up yet
        workers.append(begin("worker", 0))
        workers[1].wait_for_output("run directory")
        ps = begin("ps", 0)
        for worker in workers:
            assert worker.wait(RUN) == 0, worker.out + worker.err
        assert ps.wait(START) == 0, ps.out + ps.err
        assert ps.out.splitlines()[-1] == "ps 0: all workers are done"
        assert [task.err for task in (*workers, ps)] == ["", "", ""]
    assert_ports_free(spec)
    summary = _summary(RunDirectory(logdir))
    assert (summary["env_steps"], summary["exit_reason"]) == (TOTAL, "finished")


def test_a_worker_with_other_settings_is_refused_and_the_others_go_on(tmp_path):
    spec = ClusterSpec.local(1, 2)
    flags = [*SMALL, f"--cluster_spec={write_spec(tmp_path, spec)}", "--total_steps=1000000"]
    with commands(tmp_path) as start:
        start("ps", "ps", *flags, "--task_index=0")
        chief = start("worker-0", "worker", *flags, "--task_index=0", f"--logdir={tmp_path / 'run'}")
        # Where the optimizer runs is no small thing: this one would wait for variables that nobody ever sets.
        other = start("worker-1", "worker", *flags, "--task_index=1", "--logdir=other", "--local_steps=0")
        assert other.wait(RUN) == 2
        assert "worker 1: its settings are not those that worker 0 has set the network up with" in other.err
        same = start("again", "worker", *flags, "--task_index=1", "--logdir=other", "--threads=1", "--log_period=0.1")
        metrics = RunDirectory(tmp_path / "other").worker(1) / "metrics.csv"
        wait_until(lambda: metrics.exists() and len(_rows(metrics)) > 2, START, "worker 1 works")
        assert same.is_running() and chief.is_running()
        second = start("second", "baseline", f"--logdir={tmp_path / 'run'}", "--resume")
        assert second.wait(RUN) == 2 and "is in use" in second.err


def test_a_worker_that_knows_of_another_number_of_workers_is_refused_and_the_others_go_on(tmp_path):
    spec = ClusterSpec.local(1, 2)
    wrong = ClusterSpec(ps=spec.ps, worker=(*spec.worker, ClusterSpec.local(1, 1).worker[0]))
    flags = [*SMALL, "--total_steps=1000000"]
    with commands(tmp_path) as start:
        right = [*flags, f"--cluster_spec={write_spec(tmp_path, spec)}"]
        start("ps", "ps", *right, "--task_index=0")
        chief = start("worker-0", "worker", *right, "--task_index=0", f"--logdir={tmp_path / 'run'}")
        metrics = tmp_path / "run" / "metrics.csv"
        wait_until(lambda: metrics.exists() and len(_rows(metrics)) > 1, START, "worker 0 works")
        (tmp_path / "wrong").mkdir()
        outdated = f"--cluster_spec={write_spec(tmp_path / 'wrong', wrong)}"
        other = start("worker-1", "worker", *flags, outdated, "--task_index=1", "--logdir=other")
        assert other.wait(RUN) == 2, other.out + other.err
        assert other.err.count("\n") == 1 and "give all workers the same cluster" in other.err
        assert chief.is_running()


def test_an_interrupted_worker_does_not_wait_for_a_ps_that_stands_still(tmp_path):
    spec = ClusterSpec.local(1, 1)
    flags = [*SMALL, f"--cluster_spec={write_spec(tmp_path, spec)}", "--total_steps=1000000", "--task_index=0"]
    metrics = tmp_path / "run" / "metrics.csv"
    with commands(tmp_path) as start:
        ps = start("ps", "ps", *flags)
        worker = start("worker", "worker", *flags, f"--logdir={tmp_path / 'run'}")
        wait_until(lambda: metrics.exists() and len(_rows(metrics)) > 1, START, "it works")
        ps.process.send_signal(signal.SIGSTOP)
        try:
            worker.process.send_signal(signal.SIGINT)
            assert worker.wait(25) == 130, worker.out + worker.err
        finally:
            ps.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("victim", ["worker 0", "ps 0"])
def test_a_process_that_is_not_started_again_ends_the_whole_run(tmp_path, victim):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        local = start("local", "local", *ENDLESS, "--max_restarts=0", f"--logdir={run.path}")
        _wait_until_training(run)
        children = _children(local.process.pid)
        assert sorted(children) == ["ps 0", "worker 0", "worker 1"]
        children[victim].kill()
        begin = time.monotonic()
        assert local.wait(40) == 1, local.out + local.err
        assert f"{victim}: killed by SIGKILL" in local.out
        assert "given up after 0 restarts" in local.out
        assert f"{victim}: exit code -9" in local.out
        assert f"{victim} failed" in local.out
        assert time.monotonic() - begin < 30
        _assert_nothing_left(run)


def test_a_run_does_without_a_worker_that_is_not_started_again(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        flags = [*SMALL, "--total_steps=10_003", "--lease=10", "--max_restarts=0"]
        local = start("local", "local", *flags, f"--logdir={run.path}")
        _wait_until_training(run)
        _children(local.process.pid)["worker 1"].kill()
        assert local.wait(RUN) == 0, local.out + local.err
        assert "worker 1 failed" in local.out
        _assert_nothing_left(run)
    summary = _summary(run)
    assert (summary["env_steps"], summary["exit_reason"]) == (10_003, "finished")
    assert [worker["state"] for worker in summary["workers"]] == ["done", "lost"]
    for field in ("env_steps", "minibatches"):
        assert sum(worker[field] for worker in summary["workers"]) == summary[field], field
    assert (summary["worker_restarts"], summary["ps_recoveries"], summary["steps_lost"]) == (0, 0, 0)


def _cores_of_all_threads(process: psutil.Process) -> set[tuple[int, ...]]:
    found = set()
    for thread in process.threads():
        with contextlib.suppress(ProcessLookupError):
            found.add(tuple(sorted(os.sched_getaffinity(thread.id))))
    return found


@pytest.mark.skipif(len(os.sched_getaffinity(0)) % 2 == 1, reason="two workers cannot share these cores evenly")
@pytest.mark.parametrize("pin", [True, False])
def test_workers_keep_to_cores_of_their_own_unless_told_otherwise(tmp_path, pin):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        local = start("local", "local", *ENDLESS, *([] if pin else ["--nopin"]), f"--logdir={run.path}")
        _wait_until_training(run)
        found = {name: _cores_of_all_threads(process) for name, process in _children(local.process.pid).items()}
        local.process.send_signal(signal.SIGINT)
        assert local.wait(15) == 130, local.out + local.err
    cores = tuple(sorted(os.sched_getaffinity(0)))
    half = len(cores) // 2
    shares = [{cores[:half]}, {cores[half:]}] if pin else [{cores}, {cores}]
    assert found == {"ps 0": {cores}, "worker 0": shares[0], "worker 1": shares[1]}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_killed_launcher_leaves_no_orphans(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        local = start("local", "local", *ENDLESS, f"--logdir={run.path}")
        _wait_until_training(run)
        pids = [process.pid for process in _children(local.process.pid).values()]
        assert len(pids) == 3
        os.kill(local.process.pid, signal.SIGKILL)
        assert local.wait(5) == -signal.SIGKILL
        _assert_nothing_left(run, deadline=30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_tree_of_processes_loses_nothing(tmp_path, number):
    """As systemd and batch systems send it: the launcher then asks those again who have heard it already."""
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        local = start("local", "local", *ENDLESS, "--checkpoint_period=600", f"--logdir={run.path}")
        _wait_until_training(run)
        steps = int(_rows(run.metrics)[-1]["env_steps"])
        for process in (local.process.pid, *(child.pid for child in _children(local.process.pid).values())):
            os.kill(process, number)
        assert local.wait(15) == 130, local.out + local.err
        _assert_nothing_left(run, deadline=5)
    summary = json.loads(run.summary.read_text())
    assert summary["exit_reason"] == "interrupted" and summary["env_steps"] >= steps
    newest, faults = checkpoints.load_newest(run.checkpoints)
    assert newest.number == summary["env_steps"] and not faults
    assert {worker["state"] for worker in summary["workers"]} == {"done"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_run_may_be_resumed_the_moment_its_launcher_was_killed(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        local = start("local", "local", *ENDLESS, "--checkpoint_period=600", f"--logdir={run.path}")
        _wait_until_training(run)
        steps = int(_rows(run.metrics)[-1]["env_steps"])
        os.kill(local.process.pid, signal.SIGKILL)
        again = start("again", "local", "--resume", f"--logdir={run.path}")
        again.wait_for_output("resumed at ", START + RUN)
        resumed_at = checkpoints.load_newest(run.checkpoints)[0].number
        assert resumed_at >= steps  # what the others saved after the launcher was gone
        again.process.send_signal(signal.SIGINT)
        assert again.wait(20) == 130, again.out + again.err
        _assert_nothing_left(run, deadline=5)
    summary = json.loads(run.summary.read_text())
    assert (summary["exit_reason"], summary["steps_lost"]) == ("interrupted", 0)
