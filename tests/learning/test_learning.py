"""Whole runs on CartPole have to reach a threshold."""

import json

import numpy as np
import pytest
from cluster_helpers import commands, processes_naming

from async_dqn.agents import table
from async_dqn.run import checkpoints
from async_dqn.run.csv_log import rows
from async_dqn.run.directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUN = 600.0  # seconds for one run on a busy machine
GOAL = 150.0  # mean return of the last 100 games; random play scores about 22, the most is 500


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    with commands(tmp_path_factory.mktemp("learning")) as start:
        yield start


def begin(start, name: str, *arguments: str):
    """A run on CartPole that has been started, and its run directory."""
    run = RunDirectory(start.folder / name)
    return start(name, *arguments, "--env=CartPole-v1", f"--logdir={run.path}"), run


def finish(command, run: RunDirectory) -> dict:
    """The summary of the run, once it has ended well."""
    assert command.wait(RUN) == 0, command.out + command.err
    assert processes_naming(run.path) == []
    return json.loads(run.summary.read_text())


@pytest.mark.parametrize(
    "agent",
    ["dqn", "dqn --prioritized", "dqn --noisy", "c51", "rainbow", "fast_dqn", "ppo", "a3c", "paac", "nstep_q", "pqn"],
)
def test_a_baseline_learns_and_plays_well_by_itself(start, agent):
    """Beyond the goal with replay; else for all its steps, as the network of a single moment may play badly."""
    flags = [f"--agent={agent.split()[0]}", *agent.split()[1:], "--threads=1"]
    has_replay = agent.split()[0] in table.owners("warmup_steps")
    goal = [f"--stop_at_return={1.3 * GOAL}"] if has_replay else []
    agent = agent.replace(" ", "")
    command, run = begin(start, agent, "baseline", *flags, *goal)
    summary = finish(command, run)
    assert summary["exit_reason"] == ("solved" if has_replay else "finished")
    assert summary["best_mean_return_100"] >= GOAL
    assert (summary["env_steps"] < run.read_config().total_steps) == has_replay
    played = start(f"evaluate-{agent}", "evaluate", f"--logdir={run.path}", "--games=20", "--seed=1")
    assert played.wait(RUN) == 0 and played.err == "", played.out + played.err
    result = json.loads((run.path / "evaluation.json").read_text())
    assert len(result["returns"]) == result["games"] == 20
    assert result["mean"] == np.mean(result["returns"]) > GOAL
    best, faults = checkpoints.load_newest(run.best)  # it is of the row that reached the goal, some steps may follow
    assert best is not None and faults == []
    assert result["checkpoint_env_steps"] == best.number <= summary["env_steps"]
    assert set(table.find(run.read_config().agent).metrics) <= rows(run.metrics)[-1].keys()


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("agent", "local_steps"), [("dqn", 0), ("dqn", 1), ("ppo", 0), ("ppo", 1), ("nstep_q", 0), ("pqn", 1)]
)
def test_a_cluster_learns(start, agent, local_steps):
    """As far as the goal: no two runs have one order of updates, and a rare one is slow to begin."""
    flags = [f"--agent={agent}", f"--local_steps={local_steps}", "--total_steps=100_000", f"--stop_at_return={GOAL}"]
    command, run = begin(start, f"local-{agent}-{local_steps}", "local", "--num_ps=1", "--num_workers=2", *flags)
    summary = finish(command, run)
    assert (summary["num_ps"], summary["num_workers"], summary["exit_reason"]) == (1, 2, "solved")
    assert summary["best_mean_return_100"] >= GOAL
    assert summary["env_steps"] < run.read_config().total_steps
    assert {row["worker"] for row in rows(run.episodes)} == {"0", "1"}


@pytest.mark.cluster
@pytest.mark.parametrize(
    "flags",
    [
        ["--agent=dqn", "--replay=global"],
        ["--agent=ppo", "--parallelism=data"],
        ["--agent=a3c", "--parallelism=data"],
    ],
    ids=["dqn", "ppo", "a3c"],
)
def test_one_learner_learns_from_what_others_send(start, request, flags):
    goal = ["--total_steps=200_000", f"--stop_at_return={GOAL}"]
    command, run = begin(start, request.node.name, "local", "--num_ps=1", "--num_workers=3", *flags, *goal)
    summary = finish(command, run)
    assert summary["exit_reason"] == "solved" and summary["best_mean_return_100"] >= GOAL
    assert {row["worker"] for row in rows(run.episodes)} == {"1", "2"}
    assert summary["data_age_mean"] > 0 and summary["staleness_max"] == 0
