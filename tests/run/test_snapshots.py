"""What a worker keeps of itself on disk; that it goes on from there is tested with real runs."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from cluster_helpers import wait_until

from async_dqn.agents.table import make_config
from async_dqn.run import checkpoints
from async_dqn.run.directory import RunDirectory
from async_dqn.run.separate import SendingActor
from async_dqn.run.snapshots import Snapshots

CONFIG = make_config("ppo", "cartpole", {"env": "CartPole-v1"})
TOTALS = {"env_steps": 40, "minibatches": 2, "episodes": 3}


class Part:
    """Of an agent without a replay; `fault` is what putting its state back meets."""

    experience = SimpleNamespace(ring=None)

    def __init__(self, fault=None):
        self.restored, self.begins_anew, self._fault = None, False, fault

    def state(self):
        return {"weights": np.float32([1, 2])}, {"marker": 7}

    def restore(self, arrays, values, *, in_episode):
        if self._fault:
            raise self._fault
        self.restored = [*arrays], values, in_episode

    def reset(self, observation):
        self.begins_anew = True


class Sending(Part, SendingActor):
    """One whose steps cross to a learner."""


class Env:
    def __init__(self, fault=None):
        self.restored, self._fault = None, fault

    def reset(self):
        """Its observation is not looked at."""

    def state(self):
        return {"where": np.array(3)}

    def restore(self, arrays):
        if self._fault:
            raise self._fault
        self.restored = {name: int(one) for name, one in arrays.items()}


def make(run, part, said, run_id=7):
    return Snapshots(CONFIG, run, 1, run_id=run_id, part=part, say=said.append)


@pytest.mark.parametrize(
    ("run_id", "of_part", "of_env", "line"),
    [
        (7, None, None, ""),
        (8, None, None, ""),
        (7, ValueError("another agent"), None, "warning: the snapshot of this worker is not used: another agent"),
        (7, None, ValueError("not deterministic"), "the environments begin new games: not deterministic"),
    ],
    ids=["its own", "of another run", "of another agent", "games that cannot be played again"],
)
def test_a_worker_goes_on_in_its_games_or_begins_new_ones(tmp_path, run_id, of_part, of_env, line):
    run, said = RunDirectory(tmp_path), []
    first = make(run, Part(), said)
    first.begin(Env(), 5, in_episode=False)
    first.finish(TOTALS, 10.0)
    first.close()
    part, env = Part(of_part), Env(of_env)
    snapshots = make(run, part, said, run_id)
    seed, totals = snapshots.load()
    snapshots.begin(env, 9 if seed is None else seed, in_episode=seed is not None)
    snapshots.close()
    is_read = run_id == 7 and not of_part
    assert (seed, totals) == ((5, TOTALS) if is_read else (None, {}))
    assert part.restored == ((["weights"], {"marker": 7}, True) if is_read else None)
    goes_on = is_read and not of_env
    assert (env.restored, part.begins_anew) == (({"where": 3}, False) if goes_on else (None, True))
    assert [one for one in said if not one.startswith("bringing")] == ([line] if line else [])


@pytest.mark.parametrize("was_stopped", [True, False], ids=["stopped", "killed"])
def test_an_actor_whose_steps_cross_goes_on_in_its_games_only_where_it_was_stopped(tmp_path, was_stopped):
    run, said = RunDirectory(tmp_path), []
    first = make(run, Sending(), said)
    first.begin(Env(), 5, in_episode=False)
    first.tick(TOTALS)
    first._writing.result(10)
    if was_stopped:
        first.finish(TOTALS | {"env_steps": 50}, 10.0)
    first.close()
    part = Sending()
    snapshots = make(run, part, said)
    assert snapshots.load()[0] == (5 if was_stopped else None)
    assert part.restored[2] == was_stopped
    snapshots.close()


def test_an_end_that_is_not_saved_is_said(tmp_path, monkeypatch):
    go_on, said = threading.Event(), []

    def slow(*arguments, **options):
        go_on.wait(30)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save", slow)
    snapshots = make(RunDirectory(tmp_path), Part(), said)
    snapshots.begin(Env(), 5, in_episode=False)
    snapshots.finish(TOTALS, 0.0)
    assert said == ["warning: the disk is too slow for the last snapshot of this worker"]
    go_on.set()
    wait_until(lambda: len(said) == 2, 30, "what went wrong is said")
    assert said[1].startswith("could not save the snapshot of this worker: ") and "No space left" in said[1]
    snapshots.close()


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
