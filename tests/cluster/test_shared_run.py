"""Runs of `local --store=shared_memory` with real processes."""

import contextlib
import csv
import io
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from cluster_helpers import START, commands, processes_naming, wait_until

from async_dqn.run import checkpoints
from async_dqn.run.directory import RunDirectory
from async_dqn.tools.report.status import run_status

pytestmark = pytest.mark.cluster

TOTAL = 2_003
RUN = 120.0  # seconds for a whole small run on a busy machine
SMALL = ["--env=CartPole-v1", "--warmup_steps=200", "--store=shared_memory"]
ENDLESS = [*SMALL, "--total_steps=10_000_000"]


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def summary_of(run):
    return json.loads(run.summary.read_text())


def workers_of(local):
    """The processes of workers by index, the program itself and not what it has started."""
    found = {}
    for process in psutil.Process(local.process.pid).children():
        with contextlib.suppress(psutil.Error):
            for part in process.cmdline():
                if part.startswith("--task_index="):
                    found[int(part.removeprefix("--task_index="))] = process
    return found


def wait_until_training(run, num_workers=2, at_least=1_000):
    """Until all workers have joined and so many steps are taken; one that is fast may take these alone."""

    def steps():
        written = rows(run.metrics) if run.metrics.exists() else []
        are_there = all(run.worker(index).exists() for index in range(num_workers))
        return are_there and written and int(written[-1]["env_steps"] or 0) >= at_least

    wait_until(steps, START + RUN, f"{at_least} agent steps and {num_workers} workers")


def suspend(process):
    """Stops a process while it holds no lock, which those that are to go on may wait for."""

    def stops():
        process.suspend()
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        if not any(line[1] == "FLOCK" and line[4] == str(process.pid) for line in held):
            return True
        process.resume()
        return False

    wait_until(stops, START, "it stands still without a lock")


def assert_nothing_left(run, named_before, deadline=2.0):
    wait_until(lambda: not processes_naming(run.path), deadline, "every process of the run has ended")
    assert names() <= named_before


def names():
    """Of what lies in shared memory, but for the semaphores that any Python program may have there for a moment."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}


@pytest.fixture
def named_before():
    return names()


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        ("hogwild", ["--num_workers=3"]),
        ("locked", ["--num_workers=2", "--update_mode=locked", "--agent=ppo"]),
        ("sync", ["--num_workers=3", "--update_mode=sync", "--backup_workers=1"]),
        ("sync", ["--num_workers=2", "--agent=paac"]),
    ],
    ids=["hogwild", "locked-ppo", "sync", "paac"],
)
def test_a_run_meets_its_budget_exactly_and_leaves_nothing(tmp_path, named_before, mode, flags):
    run = RunDirectory(tmp_path / "run")
    has_replay = not any(flag.startswith("--agent=") for flag in flags)
    flags = [flag for flag in SMALL if "warmup" not in flag or has_replay] + flags
    with commands(tmp_path) as start:
        local = start("local", "local", *flags, f"--total_steps={TOTAL}", f"--logdir={run.path}")
        assert local.wait(RUN) == 0, local.out + local.err
        assert_nothing_left(run, named_before)
    summary = summary_of(run)
    number = len(summary["workers"])
    assert (summary["env_steps"], summary["num_ps"], summary["num_workers"]) == (TOTAL, 0, number)
    assert (summary["exit_reason"], summary["worker_restarts"], summary["steps_lost"]) == ("finished", 0, 0)
    assert {worker["state"] for worker in summary["workers"]} == {"done"}
    for field in ("env_steps", "minibatches"):
        assert sum(worker[field] for worker in summary["workers"]) == summary[field], field
    if mode == "sync":  # of two gradients, or of one where others had come or gone
        assert summary["updates"] > 0 and summary["staleness_max"] == 0
        assert summary["updates"] + summary["updates_dropped"] <= summary["minibatches"] <= 3 * summary["updates"]
    else:
        assert summary["minibatches"] == summary["updates"] > 0
    assert (
        summary["episodes"]
        == len(rows(run.episodes))
        == sum(len(rows(run.worker(index) / "episodes.csv")) for index in range(number))
    )
    assert not list(run.path.glob("ps-*")) and not (run.path / "cluster.json").exists()
    assert f"starting {number} workers on shared memory, {mode} (" in local.out
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert run_status([str(run.path)]) == 0
    assert f"shared memory, {mode} + {number} workers" in shown.getvalue()
    assert "ps 0" not in shown.getvalue()


def test_one_worker_learns_the_same_bits_as_the_baseline(tmp_path):
    flags = ["--env=CartPole-v1", "--total_steps=1_003", "--warmup_steps=200", "--threads=1", "--local_steps=0"]
    with commands(tmp_path) as start:
        runs = [
            start(name, *arguments, *flags, f"--logdir={tmp_path / name}")
            for name, *arguments in (
                ("alone", "baseline"),
                ("shared", "local", "--store=shared_memory", "--num_workers=1"),
            )
        ]
        for command in runs:
            assert command.wait(RUN) == 0, command.out + command.err
    alone, shared = (checkpoints.load_newest(tmp_path / name / "checkpoints")[0] for name in ("alone", "shared"))
    assert alone.arrays.keys() == shared.arrays.keys()
    for name, array in alone.arrays.items():
        if name != "store/counter/claimed_steps":
            np.testing.assert_array_equal(shared.arrays[name], array, err_msg=name)


@pytest.mark.parametrize("mode", ["hogwild", "sync"])
def test_killed_workers_come_back_the_chief_too_and_every_step_counts_once(tmp_path, named_before, mode):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        flags = [*SMALL, "--total_steps=40_003", "--num_workers=2", "--checkpoint_period=600", f"--update_mode={mode}"]
        local = start("local", "local", *flags, f"--logdir={run.path}")
        wait_until_training(run)
        workers_of(local)[1].kill()
        local.wait_for_output("worker 1: killed by SIGKILL")
        before = int(rows(run.metrics)[-1]["env_steps"])
        workers_of(local)[0].kill()
        local.wait_for_output("worker 0: the network is live; going on with it")
        assert local.wait(RUN) == 0, local.out + local.err
        assert_nothing_left(run, named_before)
    summary = summary_of(run)
    assert (summary["env_steps"], summary["exit_reason"], summary["worker_restarts"]) == (40_003, "finished", 2)
    for field in ("env_steps", "minibatches"):
        assert sum(worker[field] for worker in summary["workers"]) == summary[field], field
    steps = [int(row["env_steps"]) for row in rows(run.metrics)]
    assert steps == sorted(steps) and before in steps and summary["steps_lost"] == 0  # no row was cut off


@pytest.mark.parametrize("mode", ["locked", "sync"])
def test_a_run_does_without_a_worker_that_is_not_started_again(tmp_path, named_before, mode):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        flags = [*SMALL, "--total_steps=20_003", "--max_restarts=0", f"--update_mode={mode}"]
        local = start("local", "local", *flags, f"--logdir={run.path}")
        wait_until(lambda: run.worker(1).exists() and run.metrics.exists(), START + RUN, "both are at work")
        workers_of(local)[1].kill()
        assert local.wait(RUN) == 0, local.out + local.err
        assert "worker 1 failed" in local.out
        assert_nothing_left(run, named_before)
    summary = summary_of(run)
    assert (summary["env_steps"], summary["exit_reason"]) == (20_003, "finished")
    assert [worker["state"] for worker in summary["workers"]] == ["done", "lost"]


@pytest.mark.parametrize("mode", ["hogwild", "locked", "sync"])
def test_an_interrupted_run_saves_and_goes_on_in_memory_or_on_a_ps(tmp_path, named_before, mode):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        flags = [*ENDLESS, "--checkpoint_period=600", f"--update_mode={mode}", f"--logdir={run.path}"]
        local = start("local", "local", *flags)
        wait_until_training(run)
        local.process.send_signal(signal.SIGTERM)
        assert local.wait(20) == 130, local.out + local.err
        assert_nothing_left(run, named_before)
        first = summary_of(run)
        assert first["exit_reason"] == "interrupted" and first["env_steps"] >= 1_000
        assert checkpoints.load_newest(run.checkpoints)[0].number == first["env_steps"]
        total = first["env_steps"] + 1_000
        others = ["--num_workers=3"] if mode == "hogwild" else ["--store=ps"]
        again = start("again", "local", "--resume", f"--total_steps={total}", *others, f"--logdir={run.path}")
        assert again.wait(RUN) == 0, again.out + again.err
        assert_nothing_left(run, named_before)
    summary = summary_of(run)
    assert (summary["env_steps"], summary["exit_reason"]) == (total, "finished")
    assert (summary["num_ps"], len(summary["workers"])) == ((0, 3) if mode == "hogwild" else (1, 2))
    assert (summary["steps_lost"], summary["worker_restarts"]) == (0, 0)


def test_a_killed_launcher_leaves_nothing(tmp_path, named_before):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        local = start("local", "local", *ENDLESS, f"--logdir={run.path}")
        wait_until_training(run)
        local.process.kill()
        local.wait(5)
        assert_nothing_left(run, named_before, deadline=30)
    assert summary_of(run)["exit_reason"] == "interrupted"


def test_workers_that_wait_for_a_frozen_one_save_and_end_where_the_launcher_is_killed(tmp_path, named_before):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        local = start("local", "local", *ENDLESS, "--update_mode=sync", "--num_workers=3", f"--logdir={run.path}")
        wait_until_training(run, 3)
        victim = workers_of(local)[1]
        suspend(victim)
        try:
            wait_until(lambda: time.time() - run.metrics.stat().st_mtime > 3, START, "the chief waits for its gradient")
            local.process.kill()
            wait_until(lambda: processes_naming(run.path) == [victim], 30, "all others have ended")
        finally:
            victim.kill()
        assert_nothing_left(run, named_before)
    assert summary_of(run)["exit_reason"] == "interrupted"


def test_a_worker_that_stands_still_is_killed_and_comes_back(tmp_path, named_before):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        flags = [*ENDLESS, "--lease=2", "--update_mode=locked", f"--logdir={run.path}"]
        local = start("local", "local", *flags)
        wait_until_training(run)
        victim = workers_of(local)[1]
        victim.suspend()
        local.wait_for_output("worker 1: frozen for 2 s, so killed")
        begin = int(rows(run.metrics)[-1]["env_steps"])
        wait_until(lambda: workers_of(local).get(1, victim).pid != victim.pid, START, "it was started again")
        wait_until(lambda: int(rows(run.metrics)[-1]["env_steps"]) > begin, START, "the run goes on")
        local.process.send_signal(signal.SIGINT)
        assert local.wait(20) == 130, local.out + local.err
        assert_nothing_left(run, named_before)
