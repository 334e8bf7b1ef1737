"""Tests of what it costs when parameter servers are killed while worker 0 lives, with real processes."""

import csv
import json
import re
import signal

import psutil
import pytest
from cluster_helpers import START, commands, processes_naming, wait_until, write_spec

from async_dqn.cluster.spec import ClusterSpec
from async_dqn.run.directory import RunDirectory

pytestmark = pytest.mark.cluster

RUN = 240.0  # seconds for a whole small run on a busy machine
# No checkpoint but the first: from that, all would have to be done again.
FLAGS = ["--env=CartPole-v1", "--warmup_steps=200", "--log_period=0.1", "--checkpoint_period=600", "--ps_deadline=60"]
RESTORED = re.compile(
    r"restored worker 0's copy \(([0-9.]+) s old, optimizer and targets ([0-9.]+) s\) "
    r"at ([0-9,]+) agent steps: ([0-9,]+) agent steps of work are lost"
)


def _rows(path):
    with open(path, newline="") as file:
        return [(float(row["wall_seconds"]), int(row["env_steps"])) for row in csv.DictReader(file)]


def _kill(run, *servers):
    """All at once; gives the rows of metrics.csv of just before."""
    victims = []
    for process in processes_naming(run.path):
        line = process.cmdline()
        if "ps" in line and any(f"--task_index={index}" in line for index in servers):
            victims.append(process)
    assert len(victims) == len(servers)
    rows = _rows(run.metrics)
    for victim in victims:
        victim.kill()
    psutil.wait_procs(victims, 10)
    return rows


@pytest.mark.parametrize(
    ("servers", "num_workers", "total", "flags"),
    [
        ((0,), 2, 7_501, []),
        ((1,), 3, 2_501, ["--update_mode=sync"]),
        ((0, 1), 2, 4_501, ["--update_mode=accumulate", "--accumulate=3", "--optimizer=adam"]),
    ],
    ids=["ps0-async", "ps1-sync", "all-accumulate"],
)
def test_dead_servers_cost_what_was_done_since_the_last_copy(tmp_path, servers, num_workers, total, flags):
    run = RunDirectory(tmp_path / "run")
    sizes = ["--num_ps=2", f"--num_workers={num_workers}", f"--total_steps={total}"]
    with commands(tmp_path) as start:
        local = start("local", "local", *FLAGS, *sizes, *flags, f"--logdir={run.path}")
        wait_until(
            lambda: run.metrics.exists() and any(steps > min(1_500, total // 3) for _, steps in _rows(run.metrics)),
            3 * START,
            "a part of the budget",
        )
        before = _kill(run, *servers)
        assert local.wait(RUN) == 0, local.out + local.err
    log = (run.logs / "worker-0.log").read_text()
    found = RESTORED.findall(log)
    assert len(found) == 1, log
    age, whole_age = map(float, found[0][:2])
    at, lost = (int(number.replace(",", "")) for number in found[0][2:])
    # Whatever was counted when the copy was begun is in it.
    killed_at = before[-1][0]
    assert at >= max((steps for seconds, steps in before if seconds < killed_at - age - 0.1), default=0)
    assert 0 <= age <= whole_age

    summary = json.loads(run.summary.read_text())
    assert (summary["env_steps"], summary["exit_reason"]) == (total, "finished")
    assert (summary["ps_recoveries"], summary["steps_lost"]) == (1, lost)
    assert at + sum(worker["env_steps"] for worker in summary["workers"]) == total
    with open(run.episodes, newline="") as file:
        assert len(list(csv.DictReader(file))) == summary["episodes"]
    if flags[:1] == ["--update_mode=accumulate"]:
        gradients = summary["minibatches"] - summary["nonfinite"] - summary["updates_dropped"]
        assert gradients == 3 * summary["updates"] > 0
    if flags == ["--update_mode=sync"]:
        assert summary["staleness_max"] == 0


def test_an_interrupt_while_a_server_is_away_saves_the_copy_and_the_run_goes_on_from_it(tmp_path):
    spec, run = ClusterSpec.local(1, 1), RunDirectory(tmp_path / "run")
    shared = [*FLAGS, "--total_steps=1000000", f"--cluster_spec={write_spec(tmp_path, spec)}", "--task_index=0"]
    with commands(tmp_path) as start:
        server = start("ps", "ps", *shared)
        worker = start("worker", "worker", *shared, f"--logdir={run.path}")
        wait_until(
            lambda: run.metrics.exists() and any(steps > 1_000 for _, steps in _rows(run.metrics)),
            3 * START,
            "a thousand steps",
        )
        server.process.kill()
        worker.wait_for_output("paused for up to 60 s")
        steps = _rows(run.metrics)[-1][1]
        worker.process.send_signal(signal.SIGINT)
        assert worker.wait(20) == 130, worker.out + worker.err
        assert "saved worker 0's copy" in worker.out
        summary = json.loads(run.summary.read_text())
        assert summary["exit_reason"] == "interrupted"
        assert steps - 3_000 < summary["env_steps"] <= steps + 1_000
        shared[shared.index("--total_steps=1000000")] = f"--total_steps={summary['env_steps'] + 500}"
        again = [
            start("ps-again", "ps", *shared),
            start("again", "worker", *shared, "--resume", f"--logdir={run.path}"),
        ]
        assert [task.wait(RUN) for task in again] == [0, 0], again[1].out + again[1].err
    assert json.loads(run.summary.read_text())["env_steps"] == summary["env_steps"] + 500


def test_worker_0_saves_its_copy_where_a_server_listens_and_does_not_answer(tmp_path):
    spec, run = ClusterSpec.local(1, 1), RunDirectory(tmp_path / "run")
    flags = [flag.replace("--ps_deadline=60", "--ps_deadline=5") for flag in FLAGS]
    shared = [*flags, "--total_steps=1000000", f"--cluster_spec={write_spec(tmp_path, spec)}", "--task_index=0"]
    with commands(tmp_path) as start:
        server = start("ps", "ps", *shared)
        server.wait_for_output("serving")  # a worker waits no longer than --ps_deadline for it
        worker = start("worker", "worker", *shared, f"--logdir={run.path}")
        wait_until(
            lambda: run.metrics.exists() and any(steps > 1_000 for _, steps in _rows(run.metrics)),
            3 * START,
            "a thousand steps",
        )
        server.process.send_signal(signal.SIGSTOP)
        assert worker.wait(90) == 1, worker.out + worker.err
        steps = _rows(run.metrics)[-1][1]
        assert "saved worker 0's copy" in worker.out and "no answer from parameter servers" in worker.err
        assert steps - 3_000 < json.loads(run.summary.read_text())["env_steps"] <= steps + 1_000
