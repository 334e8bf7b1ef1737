"""Tests of whole clusters under `--update_mode=sync` and `accumulate`, with real processes."""

import contextlib
import csv
import json
import signal

import numpy as np
import psutil
import pytest
from cluster_helpers import START, commands, processes_naming, wait_until

from async_dqn.run import checkpoints
from async_dqn.run.directory import RunDirectory

pytestmark = pytest.mark.cluster

TOTAL = 2_003  # divides by neither environments nor workers
RUN = 300.0  # seconds for a whole small run on a busy machine
COMMON = ["--env=CartPole-v1", "--ps_deadline=120"]
DQN = [*COMMON, "--warmup_steps=200"]
PPO = [*COMMON, "--agent=ppo", "--preset=cartpole"]
PAAC = [*COMMON, "--agent=paac", "--t_max=5"]


def _summary(run):
    return json.loads(run.summary.read_text())


def _rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def _local(start, run, *flags, name="local"):
    return start(name, "local", *flags, f"--logdir={run.path}")


def _gradients(summary):
    """How many were applied: every minibatch that was finite pushed one."""
    return summary["minibatches"] - summary["nonfinite"] - summary["updates_dropped"]


@pytest.mark.parametrize(
    ("num_ps", "num_workers", "flags"),
    [(2, 3, DQN), (1, 2, PPO), (2, 2, PAAC), (1, 3, [*DQN, "--backup_workers=1"])],
    ids=["dqn", "ppo", "paac", "backup"],
)
def test_a_synchronous_run_meets_its_budget_and_is_never_stale(tmp_path, num_ps, num_workers, flags):
    run = RunDirectory(tmp_path / "run")
    sizes = [f"--num_ps={num_ps}", f"--num_workers={num_workers}", f"--total_steps={TOTAL}"]
    with commands(tmp_path) as start:
        mode = [] if "--agent=paac" in flags else ["--update_mode=sync"]
        local = _local(start, run, *flags, *sizes, *mode)
        assert local.wait(RUN) == 0, local.out + local.err
    summary = _summary(run)
    assert (summary["env_steps"], summary["exit_reason"]) == (TOTAL, "finished")
    assert (summary["staleness_mean"], summary["staleness_max"]) == (0, 0)
    assert 0 < summary["updates"] <= _gradients(summary) <= num_workers * summary["updates"]
    if "--backup_workers=1" not in flags:
        assert summary["updates_dropped"] <= num_workers
    assert run.read_config().local_steps == 0  # whatever the preset says
    stalenesses = [row["staleness_max"] for i in range(num_workers) for row in _rows(run.worker(i) / "metrics.csv")]
    assert {float(one) for one in stalenesses} == {0.0}


@pytest.mark.parametrize("flags", [[], ["--overlap"]], ids=["", "overlap"])
def test_every_gradient_of_an_accumulating_run_is_applied_or_counted(tmp_path, flags):
    run = RunDirectory(tmp_path / "run")
    sizes = ["--num_ps=2", "--num_workers=2", f"--total_steps={TOTAL}"]
    with commands(tmp_path) as start:
        local = _local(start, run, *DQN, *sizes, "--update_mode=accumulate", "--accumulate=3", *flags)
        assert local.wait(RUN) == 0, local.out + local.err
    summary = _summary(run)
    assert (summary["env_steps"], summary["exit_reason"]) == (TOTAL, "finished")
    assert _gradients(summary) == 3 * summary["updates"] > 0
    assert summary["updates_dropped"] < 3  # those of the version that was open in the end


def test_one_synchronous_worker_learns_the_same_bits_as_an_asynchronous_one(tmp_path):
    states = []
    for mode in ("async", "sync"):
        run = RunDirectory(tmp_path / mode)
        sizes = ["--num_ps=2", "--num_workers=1", "--threads=1", f"--total_steps={TOTAL}"]
        with commands(tmp_path) as start:
            local = _local(start, run, *DQN, *sizes, f"--update_mode={mode}", "--local_steps=0", name=mode)
            assert local.wait(RUN) == 0, local.out + local.err
        newest, _ = checkpoints.load_newest(run.checkpoints)
        states.append(newest.arrays)
    np.testing.assert_equal(*states)


def _worker(run, index):
    """The process of one worker, once it trains."""
    metrics = run.worker(index) / "metrics.csv"
    wait_until(
        lambda: metrics.exists() and any(int(row["minibatches"] or 0) > 20 for row in _rows(metrics)),
        2 * START,
        f"worker {index} trains",
    )
    for process in processes_naming(run.path):
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if "worker" in line and f"--task_index={index}" in line:
                return process
    raise AssertionError(f"no worker {index}")


def test_a_worker_that_is_killed_does_not_block_the_others(tmp_path):
    run = RunDirectory(tmp_path / "run")
    flags = [*DQN, "--num_ps=2", "--num_workers=3", "--total_steps=8_001", "--log_period=0.2", "--lease=15"]
    with commands(tmp_path) as start:
        local = _local(start, run, *flags, "--update_mode=sync", "--max_restarts=0")
        victim = _worker(run, 1)
        victim.kill()
        psutil.wait_procs([victim], 10)
        assert local.wait(RUN) == 0, local.out + local.err
    summary = _summary(run)
    assert (summary["env_steps"], summary["exit_reason"]) == (8_001, "finished"), local.out
    assert [worker["state"] for worker in summary["workers"]] == ["done", "lost", "done"]
    assert (summary["worker_restarts"], summary["staleness_max"]) == (0, 0)


def test_a_worker_that_was_killed_comes_back_and_trains(tmp_path):
    run = RunDirectory(tmp_path / "run")
    flags = [*DQN, "--num_ps=2", "--num_workers=3", "--total_steps=10_000_000", "--log_period=0.2"]
    with commands(tmp_path) as start:
        local = _local(start, run, *flags, "--update_mode=sync")
        victim, metrics = _worker(run, 1), run.worker(1) / "metrics.csv"
        victim.kill()
        psutil.wait_procs([victim], 10)
        before = len(_rows(metrics))

        def trains_again():
            counts = [int(row["minibatches"] or 0) for row in _rows(metrics)[before:]]
            return len(counts) > 1 and counts[-1] > counts[0]

        wait_until(trains_again, RUN, "it trains again")
        local.process.send_signal(signal.SIGINT)
        assert local.wait(20) == 130, local.out + local.err
    summary = _summary(run)
    found = (summary["exit_reason"], summary["worker_restarts"], summary["staleness_max"])
    assert found == ("interrupted", 1, 0)


def test_an_interrupted_synchronous_run_saves_and_goes_on_with_other_numbers(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        flags = [*DQN, "--num_ps=2", "--num_workers=3", "--log_period=0.2", "--update_mode=sync"]
        local = _local(start, run, *flags, "--total_steps=10_000_000")
        _worker(run, 2)
        local.process.send_signal(signal.SIGINT)
        assert local.wait(20) == 130, local.out + local.err
        summary = _summary(run)
        assert summary["exit_reason"] == "interrupted"
        newest, faults = checkpoints.load_newest(run.checkpoints)
        assert newest is not None and faults == []
        updates, steps = int(newest.arrays["store/counter/updates"]), summary["env_steps"]
        assert updates == summary["updates"]

        sizes = ["--num_ps=1", "--num_workers=2", f"--total_steps={steps + 500}"]
        again = _local(start, run, "--resume", *sizes, name="again")
        assert again.wait(RUN) == 0, again.out + again.err
    summary = _summary(run)
    assert (summary["env_steps"], summary["exit_reason"]) == (steps + 500, "finished")
    assert summary["updates"] > updates and summary["staleness_max"] == 0
