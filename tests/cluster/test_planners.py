"""Whole runs of Dyna-Q whose planners are processes of their own, which are killed meanwhile."""

import os
import signal

import pytest
from cluster_helpers import commands, wait_until
from local_run_helpers import RUN, find, kill, steps_of, summary_of, wait_until_at

from async_dqn.run.csv_log import rows
from async_dqn.run.directory import RunDirectory

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

RATIO = 2.0
FLAGS = ["local", "--agent=dyna_q", "--env=CartPole-v1", "--num_workers=2", "--ps_deadline=120", "--lease=20"]
FLAGS += [f"--max_simulated_ratio={RATIO}", "--checkpoint_period=2"]


def plans(run, share=0.0):
    """Whether by the newest row of metrics more than a share of what worker 0 learned from was simulated."""
    found = rows(run.metrics) if run.metrics.exists() else []
    return bool(found) and float(found[-1]["simulated_share"] or 0) > share


def check_ratio(run):
    """No row has more simulated minibatches than the real ones of its time and just before call for."""
    shares = [float(row["simulated_share"]) for row in rows(run.metrics) if row["simulated_share"] not in ("", "nan")]
    assert max(shares) > 0.2
    # Few real minibatches may be in a row's time, and as many as 16 before it may be made up for.
    assert sum(shares) / len(shares) <= RATIO / (1 + RATIO) + 0.02


def test_it_learns_with_a_planner_though_that_is_killed(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        flags = ["--total_steps=100_000", "--stop_at_return=80", "--log_period=0.5"]
        local = start("local", *FLAGS, *flags, f"--logdir={run.path}")
        wait_until(lambda: plans(run, 0.2), RUN, "simulated transitions are learned from")
        kill(local, 1)
        steps = steps_of(run)
        wait_until_at(run, steps + 500)  # worker 0 goes on without
        assert local.wait(2 * RUN) == 0, local.out + local.err
        summary = summary_of(run)
    assert summary["exit_reason"] == "solved"
    actor, planner = summary["workers"]
    assert actor["env_steps"] == summary["env_steps"] and planner["env_steps"] == 0
    assert actor["minibatches"] > 0 and planner["minibatches"] > 0
    assert 0 < summary["steps_received"] <= summary["env_steps"]
    check_ratio(run)
    ages = [float(row["simulated_age"]) for row in rows(run.metrics) if row["simulated_age"] not in ("", "nan")]
    assert ages and min(ages) >= 0 and max(ages) > 0
    is_said = "agent steps has not reached the planners" in (run.logs / "worker-0.log").read_text()
    assert is_said == (summary["steps_received"] < summary["env_steps"])


def test_worker_0_comes_back_and_an_interrupted_run_goes_on_with_its_model(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        local = start("local", *FLAGS, "--total_steps=10_000_000", f"--logdir={run.path}")
        wait_until(lambda: plans(run), RUN, "simulated transitions are learned from")
        killed = find(local, 0)
        kill(local, 0)
        steps = steps_of(run)
        wait_until(lambda: steps_of(run) > steps + 500 and plans(run), RUN, "worker 0 goes on with its planner")
        assert find(local, 0).pid != killed.pid
        os.kill(local.process.pid, signal.SIGINT)
        assert local.wait(40) == 130, local.out + local.err
        before = summary_of(run)
        assert (before["exit_reason"], before["worker_restarts"]) == ("interrupted", 1)
        total = before["env_steps"] + 1_001
        again = start("again", "local", "--resume", f"--total_steps={total}", f"--logdir={run.path}")
        assert again.wait(RUN) == 0, again.out + again.err
        after = summary_of(run)
        assert after["env_steps"] == total
        alone = start(
            "alone", "local", "--resume", "--num_workers=1", f"--total_steps={total + 9}", f"--logdir={run.path}"
        )
        assert alone.wait(RUN) == 0, alone.out + alone.err
    assert list((run.worker(1) / "replay").glob("*.segment"))  # of the same steps as worker 0's, which did not take it
    assert after["exit_reason"] == "finished"
    assert all("replay is there again" in (run.logs / f"worker-{worker}.log").read_text() for worker in (0, 1))
    first = next(row for row in rows(run.metrics) if int(row["env_steps"] or 0) > before["env_steps"] + 200)
    assert float(first["model_error"]) < 0.5  # a new one explains nothing
    check_ratio(run)
