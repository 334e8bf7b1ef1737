"""The chief on a store in this process: what it writes, above all when something went wrong."""

import errno
import io
import json
import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import direct_client, make_store

from async_dqn.agents.table import make_config
from async_dqn.base.errors import Outage, RunError
from async_dqn.run import checkpoints, csv_log
from async_dqn.run.chief import Chief, Start
from async_dqn.run.csv_log import rows
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.store.base import Counters, EpisodeReport, Standing, WorkerStatus

NEW = Start()


def make_chief(run, store, said, start=NEW, settings=None, *, agent="dqn", has_servers=False):
    """The chief of a run on CartPole, whose agent has one metric of its own."""
    agent = SimpleNamespace(
        config=make_config(agent, "cartpole", {"env": "CartPole-v1"} | (settings or {})),
        spec=SimpleNamespace(frame_skip=4),
        metrics=("entropy",),
    )
    return Chief(
        run=run,
        store=store,
        client=direct_client(store),
        learner=SimpleNamespace(agent=agent, metrics=lambda: {"loss": 0.5, "entropy": 1.25}, settle=lambda: None),
        progress=Progress(said),
        start=start,
        has_servers=has_servers,
    )


@pytest.fixture
def parts(tmp_path):
    """A run directory, the store, the chief and what it says."""
    run = RunDirectory(tmp_path / "run")
    run.create()
    store, said = make_store([1, 2]), io.StringIO()
    return run, store, make_chief(run, store, said), said


def newest(run):
    checkpoint, faults = checkpoints.load_newest(run.checkpoints)
    assert checkpoint is not None and faults == []
    return checkpoint


def test_metrics_and_checkpoints_hold_what_the_agent_and_the_store_name(parts):
    run, store, chief, _ = parts
    store.add_counts(Counters(env_steps=9, minibatches=4, updates=3))
    chief.finish("finished")
    (row,) = rows(run.metrics)
    assert (row["env_steps"], row["frames"], row["entropy"], row["loss"]) == ("9", "36", "1.25", "0.5")
    assert (row["learning_rate"], row["mean_return_100"]) == ("1", "")
    arrays = newest(run).arrays
    assert newest(run).number == arrays["store/counter/env_steps"] == 9
    assert arrays["store/q/online"].tolist() == arrays["store/q/target"].tolist() == [1, 2]
    summary = json.loads(run.summary.read_text())
    assert (summary["exit_reason"], summary["updates"], summary["minibatches"]) == ("finished", 3, 4)


@pytest.mark.parametrize("reason", ["finished", "failed: a reason"])
def test_parameters_that_are_not_finite_in_the_end_are_not_saved_and_the_summary_says_so(parts, reason):
    run, store, chief, said = parts
    chief.save("running")
    store.online["q"].assign(np.array([1.0, np.nan], np.float32))
    chief.save("running")
    unsaved = chief.finish(reason)
    assert unsaved == "the checkpoint could not be saved: the parameters are not finite"
    assert run.exit_reason() == f"failed: {reason.removeprefix('failed: ')}, but {unsaved}"
    assert newest(run).arrays["store/q/online"].tolist() == [1, 2]
    assert "could not save: the parameters are not finite; the run goes on" in said.getvalue()


def test_games_of_steps_that_were_lost_do_not_count(parts):
    run, store, chief, _ = parts
    lost, played = (EpisodeReport(0, value, 9, 9, time.time()) for value in (5.0, 7.0))
    store.report_episodes([lost])
    chief.go_on_from(NEW)
    store.report_episodes([played])
    chief.finish("finished")
    assert [float(row["episode_return"]) for row in rows(run.episodes)] == [7.0]


@pytest.mark.parametrize("was_full", [False, True])  # the disk, when the first game had ended
def test_a_chief_that_takes_over_reads_the_games_since_the_checkpoint_and_keeps_them(parts, monkeypatch, was_full):
    run, store, chief, said = parts
    games = [EpisodeReport(0, value, 9, 9, time.time()) for value in (5.0, 7.0)]

    def full(file, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store.report_episodes(games[:1])
    with monkeypatch.context() as patch:
        if was_full:
            patch.setattr(csv_log, "_write_whole", full)
        chief.log()
    chief.save("running")
    chief._saver._writing.result()
    store.report_episodes(games[1:])
    chief.log()  # in episodes.csv, and in no checkpoint
    make_chief(run, store, said, Start(newest(run).values, is_live=True)).finish("finished")
    summary = json.loads(run.summary.read_text())
    assert (summary["episodes"], summary["mean_return_100"]) == (2, (5 + 7) / 2)
    assert [float(row["episode_return"]) for row in rows(run.episodes)] == ([7] if was_full else [5, 7])


def test_a_resumed_run_cuts_off_what_came_after_its_checkpoint(parts):
    run, store, chief, said = parts
    store.add_counts(Counters(env_steps=9))
    chief.finish("running")
    state, restored = store.state(), newest(run).values
    store.add_counts(Counters(env_steps=5))
    store.report_episodes([EpisodeReport(0, 5.0, 9, 12, time.time())])
    chief = make_chief(run, store, said, Start(restored))
    chief.log()
    store.restore(state)
    make_chief(run, store, said, Start(restored)).finish("finished")
    assert {row["env_steps"] for row in rows(run.metrics)} == {"9"}
    assert rows(run.episodes) == []
    assert json.loads(run.summary.read_text())["steps_lost"] == 5


@pytest.mark.parametrize("is_known_to_its_client", [True, False])  # or from the last row of metrics.csv alone
def test_going_on_from_a_copy_costs_what_was_done_since_and_no_game_of_before(parts, is_known_to_its_client):
    run, store, chief, said = parts
    store.add_counts(Counters(env_steps=9))
    state, values = store.state(), chief.values()
    store.add_counts(Counters(env_steps=5))
    if is_known_to_its_client:
        chief._client.report()
    games = [EpisodeReport(0, float(steps), 3, steps, time.time()) for steps in (4, 8, 12)]
    store.report_episodes(games[:1])
    chief.log()  # after the copy, a game of before it
    store.report_episodes(games[1:])
    store.restore(state)
    store.add_counts(Counters(env_steps=3))  # another worker goes on at once
    chief.go_on_from(Start(values, False, 9, "0.4 s old"))
    assert "restored worker 0's copy (0.4 s old) at 9 agent steps: 5 agent steps of work are lost" in said.getvalue()
    chief.finish("finished")
    summary = json.loads(run.summary.read_text())
    assert (summary["steps_lost"], summary["ps_recoveries"], summary["env_steps"]) == (5, 1, 12)
    assert [row["env_steps"] for row in rows(run.episodes)] == ["4", "8"]
    assert (summary["episodes"], summary["mean_return_100"]) == (2, (4 + 8) / 2)


def test_what_a_checkpoint_is_made_of_is_handed_on(parts):
    _, store, chief, _ = parts
    kept = []
    chief.keep = lambda state, values: kept.append((state, values))
    store.add_counts(Counters(env_steps=9))
    chief.save("running")
    store.online["q"].assign(np.array([1.0, np.nan], np.float32))
    chief.finish("finished")
    ((state, values),) = kept
    assert state["counter/env_steps"] == 9 and values["num_episodes"] == 0


def test_another_outage_while_it_goes_on_costs_neither_time_nor_a_second_recovery(parts, monkeypatch):
    run, store, chief, _ = parts
    chief._offset = 100.0  # seconds of an earlier process

    def fail(counts):
        raise Outage("again")

    with monkeypatch.context() as patch:
        patch.setattr(store, "add_counts", fail)
        with pytest.raises(Outage):
            chief.go_on_from(NEW)
    chief.go_on_from(NEW)
    assert chief.wall_seconds >= 100.0
    chief.finish("finished")
    assert json.loads(run.summary.read_text())["ps_recoveries"] == 1


@pytest.mark.parametrize("has_servers", [True, False])
def test_a_run_that_was_cut_short_had_lost_its_servers_if_it_had_any(parts, has_servers):
    run, store, chief, said = parts
    chief.finish("running")
    make_chief(run, store, said, Start(newest(run).values), has_servers=has_servers).finish("finished")
    summary = json.loads(run.summary.read_text())
    assert (summary["ps_recoveries"], summary["worker_restarts"]) == ((1, 1) if has_servers else (0, 0))


def test_what_was_read_before_is_saved_where_the_store_is_out_of_reach(parts, monkeypatch):
    run, store, chief, _ = parts
    store.add_counts(Counters(env_steps=9))
    state, values = store.state(), chief.values()
    store.add_counts(Counters(env_steps=5))
    for name in ("state", "add_counts", "pull", "check", "take_episodes"):
        monkeypatch.setattr(store, name, None)
    assert chief.save_copy(state, values, "interrupted") == ""
    assert newest(run).number == 9
    assert json.loads(run.summary.read_text())["exit_reason"] == "interrupted"


def test_what_is_learned_beside_is_waited_for_before_parameters_are_read(parts):
    run, store, chief, _ = parts
    chief._learner.settle = lambda: store.online["q"].assign_add([2, 2])
    finished(chief, store, [10] * 100, 10)
    assert checkpoints.load(run.best, 10).arrays["store/q/online"].tolist() == [3, 4]
    chief.save("running")
    chief._saver._writing.result()
    assert newest(run).arrays["store/q/online"].tolist() == [5, 6]


GLOBAL = {"num_workers": 3, "replay": "global"}


def missing(said):
    """Of whose experience it was said last that it has not reached anybody."""
    lines = [line for line in said.getvalue().splitlines() if "has not reached" in line]
    return lines[-1] if lines else ""


@pytest.mark.parametrize(
    ("first", "received", "second", "line"),
    [
        ({}, 0, ("dqn", GLOBAL), "of 50 agent steps has not reached the learner"),
        (GLOBAL, 900, ("dqn", GLOBAL), "of 150 agent steps has not reached the learner"),
        (GLOBAL, 900, ("dqn", {}), ""),
        (
            {},
            0,
            ("dyna_q", {"num_workers": 3}),
            "of 250 agent steps has not reached the planners (added up over all 2)",
        ),
    ],
    ids=["now to a learner", "as before", "to none now", "now to planners"],
)
def test_steps_count_as_missed_from_when_somebody_had_to_receive_them(parts, first, received, second, line):
    run, store, _, said = parts
    store.add_counts(Counters(env_steps=1_000, received=received))
    make_chief(run, store, said, settings=first).finish("interrupted")
    agent, settings = second
    for steps in (100, 100):  # resumed twice
        chief = make_chief(run, store, said, Start(newest(run).values), settings, agent=agent)
        store.add_counts(Counters(env_steps=steps, received=75))
        said.truncate(0)
        chief.finish("interrupted")
    assert line in missing(said) and bool(line) == bool(missing(said))


@pytest.mark.parametrize("period", [1, 20])  # seconds
def test_who_holds_up_the_run_is_named_once(parts, monkeypatch, period):
    run, store, _, said = parts
    chief = make_chief(run, store, said, settings={"lease": 30.0, "log_period": float(period)})
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    claims = Counters(claimed_steps=16, env_steps=9)
    workers = [
        WorkerStatus("active", 1, Counters()),
        WorkerStatus("lost", 1, claims),
        WorkerStatus("active", 1, claims),
    ]
    monkeypatch.setattr(store, "check", lambda: Standing(store.add_counts(Counters()), workers))

    def lines(seconds):
        """How often it was said within so many seconds."""
        nonlocal now
        before = said.getvalue().count("no agent step")
        for _ in range(seconds // period):
            now += period
            chief.log()
        return said.getvalue().count("no agent step") - before

    assert lines(20) == 0
    assert lines(80) == 1 and "no agent step for 30 s, though worker 2 has claimed some" in said.getvalue()
    store.add_counts(Counters(env_steps=1))
    assert lines(20) == 0
    now += 100.0  # an outage, in which nobody looks
    assert (lines(20), lines(60)) == (0, 1)
    store.add_counts(Counters(env_steps=1))
    workers[2] = WorkerStatus("active", 1, Counters(claimed_steps=9, env_steps=9))
    assert lines(80) == 0
    workers[2] = WorkerStatus("active", 1, claims)  # which begins to play only now
    assert lines(80) == 1


def test_a_damaged_header_of_the_metrics_does_not_end_the_run(parts):
    run, store, chief, said = parts
    chief.finish("running")
    text = run.metrics.read_text()
    run.metrics.write_text(text.replace("env_steps", "env_stePs", 1))
    make_chief(run, store, said, Start(newest(run).values)).finish("finished")
    assert [row["env_steps"] for row in rows(run.metrics)] == ["0"]


def test_parameters_that_cannot_be_read_cost_a_checkpoint_but_not_the_run(parts, monkeypatch):
    run, store, chief, said = parts

    def state():
        raise RunError("others went on")

    monkeypatch.setattr(store, "state", state)
    chief.save("running")
    assert "others went on" in said.getvalue() and not run.checkpoints.exists()
    with pytest.raises(RunError):  # the last one is missed
        chief.finish("finished")


def finished(chief, store, returns, env_steps):
    """Games end with these returns, and the chief looks."""
    store.add_counts(Counters(env_steps=env_steps))
    store.report_episodes([EpisodeReport(0, float(one), 1, env_steps, 0.0) for one in returns])
    chief._next_best = 0.0
    chief.log()
    if chief._saver.is_busy_with_best:
        chief._saver._writing_best.result(10)


def best(run):
    found, faults = checkpoints.load_newest(run.best)
    assert faults == []
    return found and (found.number, found.values["mean_return_100"])


def test_the_best_network_is_kept_beside_the_newest(parts):
    run, store, chief, _ = parts
    finished(chief, store, [10] * 99, 10)
    assert best(run) is None  # not 100 games yet
    finished(chief, store, [10], 10)
    assert best(run) == (20, 10.0)
    finished(chief, store, [110], 10)
    assert best(run) == (30, 11.0)
    finished(chief, store, [0] * 100, 10)
    assert best(run) == (30, 11.0)
    chief.finish("finished")
    assert best(run) == (30, 11.0) and newest(run).number == 40
    assert list(checkpoints.load(run.best, 30).arrays) == [f"store/{name}/online" for name in store.pull().online]


def test_the_best_network_of_the_end_is_kept_though_the_one_before_is_still_being_written(parts, monkeypatch):
    run, store, chief, _ = parts
    go_on, save = threading.Event(), checkpoints.save

    def slow_save(*arguments, **options):
        assert go_on.wait(10)
        return save(*arguments, **options)

    monkeypatch.setattr(checkpoints, "save", slow_save)
    store.report_episodes([EpisodeReport(0, 10.0, 1, 10, 0.0)] * 100)
    chief.log()
    assert chief._saver.is_busy_with_best
    store.add_counts(Counters(env_steps=10))
    store.report_episodes([EpisodeReport(0, 110.0, 1, 20, 0.0)])
    threading.Timer(0.2, go_on.set).start()
    chief.finish("solved")
    assert best(run) == (10, 11.0)


def test_a_resumed_chief_knows_the_best_network_so_far(parts):
    run, store, chief, said = parts
    finished(chief, store, [10] * 100, 10)
    chief.finish("interrupted")
    resumed = make_chief(run, store, said, Start(newest(run).values))
    finished(resumed, store, [9] * 100, 10)
    assert best(run) == (10, 10.0)
    finished(resumed, store, [11] * 100, 10)
    assert best(run) == (30, 11.0)


def test_a_checkpoint_of_another_kind_among_the_best_is_no_hindrance(parts):
    run, store, chief, said = parts
    checkpoints.save(run.best, 5, {"store/q/online": np.float32([1, 2])}, {}, keep=1)
    resumed = make_chief(run, store, said, Start(chief.values()))
    finished(resumed, store, [10] * 100, 10)
    assert best(run) == (10, 10.0)


def test_a_run_whose_best_networks_cannot_be_written_goes_on(parts):
    run, store, chief, said = parts
    run.best.write_text("in the way")
    finished(chief, store, [10] * 100, 10)
    assert "could not save the best networks so far" in said.getvalue()
    chief.finish("finished")
    assert newest(run).number == 10 and run.exit_reason() == "finished"


def test_what_could_not_be_saved_in_the_end_is_said(parts, monkeypatch):
    run, store, chief, _ = parts
    store.add_counts(Counters(env_steps=9))

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save", fail)
    unsaved = chief.finish("finished")
    assert "the checkpoint could not be saved" in unsaved and "No space left" in unsaved
    reason = json.loads(run.summary.read_text())["exit_reason"]
    assert reason.startswith("failed: finished, but the checkpoint could not be saved")


def test_nothing_is_said_of_an_end_that_was_saved(parts):
    _, store, chief, _ = parts
    store.add_counts(Counters(env_steps=9))
    assert chief.finish("finished") == ""


@pytest.mark.parametrize(("received", "line"), [(1_100, "the experience of 100 agent steps"), (1_200, "")])
def test_what_did_not_reach_the_one_learner_is_told(tmp_path, received, line):
    run = RunDirectory(tmp_path / "run")
    run.create()
    store, said = make_store([1, 2]), io.StringIO()
    chief = make_chief(run, store, said, settings={"replay": "global", "num_workers": 3})
    store.add_counts(Counters(env_steps=1_200, received=received, age_sum=received * 7))
    chief.finish("finished")
    assert ("the experience of" in said.getvalue()) == bool(line) and line in said.getvalue()
    summary = json.loads(run.summary.read_text())
    assert (summary["steps_received"], summary["data_age_mean"]) == (received, 7)
