"""Going on with a run: from which checkpoint, and that the network is the one of a run that never stopped."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from cluster_helpers import START, Command, commands, wait_until
from fakes import descent, make_store, push

from async_dqn.agents import table
from async_dqn.base.errors import UserError
from async_dqn.nn import optimizers
from async_dqn.run import checkpoints
from async_dqn.run.csv_log import rows
from async_dqn.run.directory import RunDirectory
from async_dqn.run.resume import STORE, restore_run
from async_dqn.store.base import Counters, saved_counters

SMALL = ["--warmup_steps=200", "--replay_capacity=600"]  # so small that the ring wraps around
DEADLINE = 600.0  # on a busy machine without AVX-512


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


def saved(run: RunDirectory, number: int, *, keep: int = 9, optimizer=None, **changes) -> Path:
    """Saves a trained store; gives the path of the arrays."""
    store = make_store([number, 2], optimizer=optimizer or descent())
    push(store, 1, 1, env_steps=number, claimed_steps=number + 32, stopped=1)
    arrays = {f"{STORE}{name}": array for name, array in store.state().items()} | changes
    arrays = {name: array for name, array in arrays.items() if array is not None}
    return checkpoints.save(run.checkpoints, number, arrays, {"marker": number}, keep=keep).with_suffix(".npz")


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_newest_checkpoint_is_gone_on_from_with_nothing_claimed_and_nobody_stopped(run):
    saved(run, 10)
    saved(run, 20)
    store, said = make_store(optimizer=descent()), []
    assert restore_run(run, store, said.append) == {"marker": 20}
    assert store.pull().online["q"].tolist() == [20 - 1, 2 - 1]
    assert store.pull_target()["q"].tolist() == [20, 2]
    assert saved_counters(store.state()) == Counters(claimed_steps=20, env_steps=20, updates=1)
    assert len(said) == 1 and "20" in said[0]


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(run):
    saved(run, 10)
    spoil(saved(run, 20))
    said = []
    assert restore_run(run, make_store(optimizer=descent()), said.append) == {"marker": 10}
    assert "warning" in said[0] and "000000000020.json" in said[0]


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda run: spoil(saved(run, 10)), "no whole checkpoint"),
        (lambda run: run.write_summary({"exit_reason": "finished", "env_steps": 10}), "no checkpoint"),  # it had one
        (lambda run: saved(run, 10, **{"store/counter/env_steps": None}), "network alone"),  # as export writes it
        (lambda run: saved(run, 10, **{"store/q/online": np.zeros(3, np.float32)}), "does not fit"),
        (lambda run: saved(run, 10, **{"store/q/online": None}), "does not fit"),
        (lambda run: saved(run, 10, **{"store/q/slot/m": np.zeros(2, np.float32)}), "does not fit"),
        (lambda run: saved(run, 10, **{"store/policy/online": np.zeros(2, np.float32)}), "does not fit"),
    ],
    ids=["damaged", "gone", "exported", "other layout", "no network", "other optimizer", "other modules"],
)
def test_what_cannot_be_gone_on_with_is_refused(run, prepare, words):
    prepare(run)
    store = make_store([3, 4], optimizer=descent())
    with pytest.raises(UserError, match=f"--resume: .*{words}"):
        restore_run(run, store, lambda line: None)
    assert store.pull().online["q"].tolist() == [3, 4]


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(run):
    run.write_summary({"exit_reason": "running", "env_steps": 10})
    store, said = make_store([3, 4]), []
    assert restore_run(run, store, said.append) is None
    assert len(said) == 1 and store.pull().online["q"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("then", "now", "online"),
    [
        (optimizers.add(), optimizers.adam(), [10 + 1, 2 + 1]),
        (optimizers.adam(), optimizers.add(), [10 - 1, 2 - 1]),
    ],
    ids=["from the workers to the store", "from the store to the workers"],
)
def test_an_optimizer_that_is_held_elsewhere_now_begins_anew(run, then, now, online):
    saved(run, 10, optimizer=then)
    store, said = make_store(optimizer=now), []
    assert restore_run(run, store, said.append) == {"marker": 10}
    assert store.pull().online["q"].tolist() == pytest.approx(online, abs=1e-3)
    assert len(said) == 2 and "the optimizer of q is held elsewhere" in said[1]
    state = store.state()
    for name, value in now.initial_slots(2).items():
        np.testing.assert_array_equal(state[f"q/slot/{name}"], value)


@pytest.mark.parametrize(
    ("then", "now", "remedy"),
    [
        (optimizers.average(), optimizers.add(), "give --local_steps=0"),
        (optimizers.add(), optimizers.average(), "the --local_steps that it had"),
    ],
)
def test_a_running_mean_is_not_gone_on_with_without_its_count(run, then, now, remedy):
    saved(run, 10, optimizer=then)
    with pytest.raises(UserError, match=f"does not fit .* counts of q, .*{remedy}"):
        restore_run(run, make_store(optimizer=now, is_trained=False), lambda line: None)


# From here on with real commands.


@pytest.fixture
def start(tmp_path):
    with commands(tmp_path) as start:
        yield start


def baseline(start, name: str, run: RunDirectory, *flags: str) -> Command:
    return start(name, "baseline", *flags, "--threads=1", f"--logdir={run.path}")


def finish(command: Command, code: int = 0) -> None:
    assert command.wait(DEADLINE) == code, command.out + command.err
    assert command.err == ""


def newest(run: RunDirectory) -> checkpoints.Checkpoint:
    checkpoint, faults = checkpoints.load_newest(run.checkpoints)
    assert checkpoint is not None and faults == []
    return checkpoint


def assert_same(run: RunDirectory, other: RunDirectory) -> None:
    """Parameters, target, slots, counters and games are the same to the last bit."""
    one, two = newest(run), newest(other)
    assert one.number == two.number
    np.testing.assert_equal(one.arrays, two.arrays)
    games = [[{**row, "time": ""} for row in rows(each.episodes)] for each in (run, other)]
    assert games[0] == games[1]
    assert one.arrays["store/counter/minibatches"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
# One of each kind of state that is kept in files; tests/contract compares all agents.
@pytest.mark.parametrize("agent", ["dqn", "fast_dqn", "dyna_q", "ppo"])
def test_a_baseline_that_is_interrupted_goes_on_as_if_it_had_not_been(start, tmp_path, agent):
    has_replay = agent in table.owners("warmup_steps")
    budget = 6_000 if has_replay else 40_000  # rollout agents are quick; the signal has to find them under way
    small = SMALL if has_replay else []
    flags = ["--env=CartPole-v1", f"--agent={agent}", f"--total_steps={budget}", "--log_period=0.1", *small]
    straight, resumed = RunDirectory(tmp_path / "straight"), RunDirectory(tmp_path / "resumed")
    never_stopped = baseline(start, "straight", straight, *flags)
    first = baseline(start, "first", resumed, *flags)
    wait_until(lambda: len(rows(resumed.metrics)) > 2, 2 * START, "some rows of metrics")
    first.process.send_signal(signal.SIGINT)
    finish(first, 130)
    assert resumed.exit_reason() == "interrupted"
    assert 0 < newest(resumed).number < budget
    finish(baseline(start, "second", resumed, "--resume"))
    finish(never_stopped)
    assert_same(straight, resumed)


@pytest.mark.slow
def test_a_run_that_was_stopped_before_anything_reached_replay_goes_on_exactly(start, tmp_path):
    flags = ["--env=CartPole-v1", "--agent=fast_dqn", "--target_period=50", *SMALL]  # 100 steps in a period
    straight, resumed = RunDirectory(tmp_path / "straight"), RunDirectory(tmp_path / "resumed")
    never_stopped = baseline(start, "straight", straight, *flags, "--total_steps=1_200")
    finish(baseline(start, "first", resumed, *flags, "--total_steps=60"))
    finish(baseline(start, "second", resumed, "--resume", "--total_steps=1_200"))
    finish(never_stopped)
    assert_same(straight, resumed)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--protocol=machado"]], ids=["classic", "sticky actions"])
def test_a_run_on_frames_that_spent_its_budget_goes_on_with_a_larger_one(start, tmp_path, flags):
    flags = ["--env=pong", "--envs_per_worker=2", "--warmup_steps=100", "--replay_capacity=400", *flags]
    straight, resumed = RunDirectory(tmp_path / "straight"), RunDirectory(tmp_path / "resumed")
    never_stopped = baseline(start, "straight", straight, *flags, "--total_steps=600")
    finish(baseline(start, "first", resumed, *flags, "--total_steps=300"))
    assert newest(resumed).number == 300
    finish(baseline(start, "second", resumed, "--resume", "--total_steps=600"))
    finish(never_stopped)
    assert_same(straight, resumed)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_run_goes_on_with_other_local_steps_and_more_planners(start, tmp_path):
    run = RunDirectory(tmp_path / "run")
    flags = ["--env=CartPole-v1", "--agent=dyna_q", *SMALL]
    finish(start("first", "local", *flags, f"--logdir={run.path}", "--total_steps=400", "--local_steps=2"))
    again = ["local", "--resume", f"--logdir={run.path}"]
    more = start("more planners", *again, "--total_steps=800", "--num_workers=3")
    finish(more)
    assert "the optimizer of model is held elsewhere" in more.out + more.err
    none = start("no local steps", *again, "--total_steps=1_200", "--local_steps=0")
    finish(none)
    assert "the optimizer of q is held elsewhere" in none.out + none.err
    assert newest(run).number == 1_200


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("job", ["baseline", "local"])
def test_other_settings_that_do_not_fit_are_refused_and_the_run_is_left_as_it_is(start, tmp_path, job):
    run = RunDirectory(tmp_path / "run")
    flags = ["--local_steps=0", "--nocheckpoint_replay", f"--logdir={run.path}"]
    finish(start("first", job, "--env=CartPole-v1", *SMALL, *flags, "--total_steps=600"))
    before, summary = run.config.read_bytes(), run.summary.read_bytes()
    with run.claimed():
        second = start("second", job, *flags, "--resume")
        assert second.wait(DEADLINE) == 2 and "is in use" in second.err
    other = start("other", job, *flags, "--resume", "--total_steps=900", "--optimizer=centered_rmsprop")
    assert other.wait(DEADLINE) == 2
    assert "does not fit these settings" in other.out + other.err
    assert (run.config.read_bytes(), run.summary.read_bytes()) == (before, summary)
    finish(start("again", job, *flags, "--resume", "--total_steps=900"))
    assert run.read_config().total_steps == newest(run).number == 900
    assert not (run.worker(0) / "replay").exists()
    assert json.loads(run.summary.read_text())["env_steps"] == 900
