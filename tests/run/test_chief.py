"""Tests of async_dqn.run.chief on a store in this process: what it writes when something went wrong."""

import io
import json
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import local_client, make_store

from async_dqn.base.errors import Outage
from async_dqn.run import checkpoints
from async_dqn.run.chief import Chief
from async_dqn.run.csv_log import rows
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.settings.config import make_config
from async_dqn.store.base import Counters, EpisodeReport


def make_chief(run, store, said, **how_it_begins):
    """The chief of a run on CartPole, whose target is refreshed after every 100 minibatches."""
    return Chief(
        config=make_config("cartpole", {"env": "CartPole-v1"}),
        run=run,
        store=store,
        client=local_client(store),
        agent=SimpleNamespace(epsilon=0.5, take_loss=lambda: math.nan),
        frame_skip=1,
        progress=Progress(said),
        **how_it_begins,
    )


@pytest.fixture
def parts(tmp_path):
    """A run directory, the store, the chief and what it says."""
    run = RunDirectory(tmp_path / "run")
    run.create()
    store, said = make_store(), io.StringIO()
    return run, store, make_chief(run, store, said, restored=None), said


@pytest.mark.parametrize("reason", ["finished", "failed: a reason"])
def test_the_summary_says_how_it_ended_though_the_parameters_are_not_saved(parts, reason):
    run, store, chief, said = parts
    chief.save("running")
    store.online.assign(np.array([1.0, np.nan], np.float32))
    chief.finish(reason)
    assert run.exit_reason() == reason
    assert checkpoints.load_newest(run.checkpoints)[0].arrays["store/online"].tolist() == [0.0, 0.0]
    assert "the parameters are not finite; they are not saved" in said.getvalue()


def test_games_of_steps_that_were_lost_do_not_count(parts):
    run, store, chief, _ = parts
    lost, played = (EpisodeReport(0, value, 9, 9, time.time()) for value in (5.0, 7.0))
    store.report_episodes([lost])
    chief.go_on_from(None)
    store.report_episodes([played])
    chief.finish("finished")
    assert [float(row["episode_return"]) for row in rows(run.episodes)] == [7.0]


def test_another_outage_while_it_goes_on_costs_neither_time_nor_a_second_recovery(parts, monkeypatch):
    run, store, chief, _ = parts
    chief._offset = 100.0  # seconds of an earlier process

    def fail(counts):
        raise Outage("again")

    with monkeypatch.context() as patch:
        patch.setattr(store, "add_counts", fail)
        with pytest.raises(Outage):
            chief.go_on_from(None)
    chief.go_on_from(None)
    assert chief.wall_seconds >= 100.0
    chief.finish("finished")
    assert json.loads(run.summary.read_text())["ps_recoveries"] == 1


@pytest.mark.parametrize("is_live", [False, True])
@pytest.mark.parametrize(("minibatches", "refreshes"), [(90, 0), (110, 1), (350, 1)])
def test_a_chief_that_takes_over_makes_up_for_the_refresh_that_fell_due(parts, is_live, minibatches, refreshes):
    run, store, chief, said = parts
    store.add_counts(Counters(env_steps=9, minibatches=60))
    chief.finish("running")
    store.add_counts(Counters(minibatches=minibatches - 60))  # by others, while there is no chief
    restored = checkpoints.load_newest(run.checkpoints)[0].values
    successor = make_chief(run, store, said, restored=restored, is_live=is_live)
    for _ in range(3):
        successor.tick()
    assert store.pull().counters.target_refreshes == refreshes
    successor.finish("finished")


def test_a_chief_that_takes_over_does_not_refresh_again(parts):
    run, store, chief, said = parts
    store.add_counts(Counters(env_steps=9, minibatches=130))
    make_chief(run, store, said, restored=None).tick()  # sees them
    chief = make_chief(run, store, said, restored=None)
    chief.tick()
    chief.finish("running")
    refreshes = store.pull().counters.target_refreshes
    restored = checkpoints.load_newest(run.checkpoints)[0].values
    make_chief(run, store, said, restored=restored).tick()
    assert store.pull().counters.target_refreshes == refreshes


def test_a_damaged_header_of_the_metrics_does_not_end_the_run(parts):
    run, store, chief, said = parts
    chief.finish("running")
    text = run.metrics.read_text()
    run.metrics.write_text(text.replace("env_steps", "env_stePs", 1))
    restored = checkpoints.load_newest(run.checkpoints)[0].values
    make_chief(run, store, said, restored=restored).finish("finished")
    assert [row["env_steps"] for row in rows(run.metrics)] == ["0"]
