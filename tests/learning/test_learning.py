"""Learning tests: whole runs on CartPole have to reach a threshold, and the same seed the same network."""

import json

import numpy as np
import pytest
from cluster_helpers import Commands, commands, processes_naming

from async_dqn.run import checkpoints
from async_dqn.run.directory import RunDirectory

pytestmark = [pytest.mark.learning, pytest.mark.timeout(600)]

RUN = 400.0  # seconds for one run on a busy machine
CARTPOLE = ["--env=CartPole-v1", "--preset=cartpole", "--total_steps=30000"]
GOAL = 150.0  # mean return of the last 100 games; random play scores about 22, the most is 500


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    with commands(tmp_path_factory.mktemp("learning")) as start:
        yield start


def _trained(start: Commands, name: str, *arguments: str) -> RunDirectory:
    run = RunDirectory(start.folder / name)
    command = start(name, *arguments, f"--logdir={run.path}")
    assert command.wait(RUN) == 0, command.out + command.err
    assert processes_naming(run.path) == []
    return run


@pytest.fixture(scope="module")
def baseline(start):
    """A finished baseline run."""
    return _trained(start, "baseline", "baseline", *CARTPOLE)


def _assert_learned(run: RunDirectory, total_steps: int = 30_000) -> None:
    summary = json.loads(run.summary.read_text())
    assert summary["env_steps"] == total_steps
    assert summary["mean_return_100"] > GOAL


def test_the_baseline_learns(baseline):
    _assert_learned(baseline)


@pytest.mark.cluster
@pytest.mark.parametrize(("num_ps", "num_workers"), [(1, 2), (2, 3)])
def test_a_cluster_learns(start, num_ps, num_workers):
    """As far as the goal: no two runs have one order of updates, and a rare one is slow to begin."""
    flags = [f"--num_ps={num_ps}", f"--num_workers={num_workers}", "--total_steps=60000", f"--stop_at_return={GOAL}"]
    run = _trained(start, f"local-{num_ps}-{num_workers}", "local", *CARTPOLE, *flags)
    summary = json.loads(run.summary.read_text())
    assert (summary["num_ps"], summary["num_workers"]) == (num_ps, num_workers)
    assert summary["exit_reason"] == "solved"
    assert summary["best_mean_return_100"] >= GOAL
    assert summary["env_steps"] < 60_000


def test_a_trained_agent_plays_well_by_itself(start, baseline):
    command = start("evaluate", "evaluate", f"--logdir={baseline.path}", "--games=20", "--seed=1")
    assert command.wait(RUN) == 0, command.out + command.err
    result = json.loads((baseline.path / "evaluation.json").read_text())
    assert len(result["returns"]) == result["games"] == 20
    assert result["mean"] == np.mean(result["returns"]) > GOAL
    assert result["checkpoint_env_steps"] == 30_000
    assert command.err == ""


def _final_arrays(run: RunDirectory) -> dict[str, np.ndarray]:
    checkpoint, faults = checkpoints.load_newest(run.checkpoints)
    assert checkpoint is not None and not faults
    return checkpoint.arrays


def test_the_same_seed_gives_the_same_network_bit_for_bit(start):
    flags = ["baseline", "--env=CartPole-v1", "--total_steps=3000"]
    first, same, other = (
        _final_arrays(_trained(start, f"seed-{name}", *flags, f"--seed={seed}"))
        for name, seed in (("first", 7), ("same", 7), ("other", 8))
    )
    assert sorted(first) == sorted(same)
    for name, array in first.items():
        assert array.tobytes() == same[name].tobytes(), name
    assert not np.array_equal(first["store/online"], other["store/online"])
