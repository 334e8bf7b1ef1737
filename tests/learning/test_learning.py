"""Whole runs on CartPole have to reach a threshold, and the same seed has to give the same network."""

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


@pytest.mark.cluster
@pytest.mark.parametrize("local_steps", [0, 1], ids=["gradients", "deltas"])
@pytest.mark.parametrize("agent", ["dqn", "nstep_q", "pqn", "ppo"])
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


@pytest.mark.parametrize("agent", ["dqn", "ppo"])  # of all agents tests/run/test_resume.py compares two
def test_the_same_seed_gives_the_same_network_bit_for_bit(start, agent):
    flags = ["baseline", f"--agent={agent}", "--total_steps=3000", "--threads=1"]
    begun = [begin(start, f"{agent}-{i}", *flags, f"--seed={seed}") for i, seed in enumerate((7, 7, 8))]
    for command, run in begun:
        assert finish(command, run)["env_steps"] == 3_000
    first, same, other = (checkpoints.load_newest(run.checkpoints)[0] for _, run in begun)
    assert sorted(first.arrays) == sorted(same.arrays)
    for name, array in first.arrays.items():
        assert array.tobytes() == same.arrays[name].tobytes(), name
    online = [name for name in first.arrays if name.endswith("/online")]
    assert online and not any(np.array_equal(first.arrays[name], other.arrays[name]) for name in online)
    metrics = rows(RunDirectory(start.folder / f"{agent}-0").metrics)
    assert set(table.find(agent).metrics) <= metrics[-1].keys()
