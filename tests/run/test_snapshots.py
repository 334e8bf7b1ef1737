"""What a worker keeps of itself on disk; that it goes on from there is tested with real runs."""

from types import SimpleNamespace

from async_dqn.agents.table import make_config
from async_dqn.run import checkpoints
from async_dqn.run.directory import RunDirectory
from async_dqn.run.snapshots import Snapshots


def test_the_one_before_the_newest_is_kept_also_of_a_part_that_takes_no_steps(tmp_path):
    run, said = RunDirectory(tmp_path), []
    part = SimpleNamespace(
        experience=SimpleNamespace(ring=None), state=lambda: ({}, {}), reset=lambda observation: None
    )
    env = SimpleNamespace(reset=lambda: None, state=dict)
    config = make_config("ppo", "cartpole", {"env": "CartPole-v1"})
    snapshots = Snapshots(config, run, 1, run_id=7, part=part, say=said.append)
    snapshots.begin(env, 0, in_episode=False)
    for minibatches in (3, 6, 9):
        snapshots.finish({"env_steps": 0, "minibatches": minibatches, "episodes": 0}, 10.0)
    snapshots.close()
    assert len(checkpoints.numbers(run.worker(1) / "snapshots")) == 2 and not said
    newest, _ = checkpoints.load_newest(run.worker(1) / "snapshots")
    assert newest.values["totals"]["minibatches"] == 9
