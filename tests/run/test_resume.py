"""A run that was stopped and resumed, against one that never stopped: real commands, compared to the last bit."""

import signal
from pathlib import Path

import numpy as np
import pytest
from cluster_helpers import START, Command, commands, wait_until

from async_dqn.run import checkpoints
from async_dqn.run.csv_log import rows
from async_dqn.run.directory import RunDirectory
from async_dqn.store.base import Counters

CARTPOLE = ["--env=CartPole-v1", "--warmup_steps=200", "--replay_capacity=600"]  # so small that the ring wraps around
PONG = ["--env=pong", "--envs_per_worker=2", "--warmup_steps=100", "--replay_capacity=400", "--network=nips"]
DEADLINE = 120.0


def baseline(start, name: str, run: RunDirectory, *flags: str) -> Command:
    return start(name, "baseline", *flags, "--threads=1", f"--logdir={run.path}")


def contents(run: RunDirectory) -> dict[Path, bytes]:
    """Every file of a run but the one that says which process has claimed it."""
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path.name != ".lock"}


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
    assert sorted(one.arrays) == sorted(two.arrays)
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, two.arrays[name], err_msg=name)
    assert (one.arrays["store/online"] != one.arrays["store/target"]).any()  # it did learn
    games = [[{**row, "time": ""} for row in rows(each.episodes)] for each in (run, other)]
    assert games[0] == games[1]


@pytest.fixture
def started(tmp_path: Path):
    with commands(tmp_path) as start:
        yield start


@pytest.mark.parametrize(
    ("flags", "stop_at", "total"),
    [
        ([*CARTPOLE], 1_000, 2_000),
        ([*CARTPOLE, "--optimizer=centered_rmsprop", "--n_step=1", "--train_period=3"], 1_300, 2_152),
        ([*PONG], 300, 500),
        ([*PONG, "--protocol=machado"], 300, 500),
    ],
    ids=["cartpole", "rmsprop", "pong", "sticky actions"],
)
def test_a_baseline_that_stopped_at_its_budget_goes_on_as_if_it_had_not(started, tmp_path, flags, stop_at, total):
    straight, resumed = RunDirectory(tmp_path / "straight"), RunDirectory(tmp_path / "resumed")
    finish(baseline(started, "straight", straight, *flags, f"--total_steps={total}"))
    finish(baseline(started, "first", resumed, *flags, f"--total_steps={stop_at}"))
    assert newest(resumed).number == stop_at
    finish(baseline(started, "second", resumed, "--resume", f"--total_steps={total}"))
    assert_same(straight, resumed)


def test_a_baseline_interrupted_at_any_moment_goes_on_as_if_it_had_not_been(started, tmp_path):
    straight, resumed = RunDirectory(tmp_path / "straight"), RunDirectory(tmp_path / "resumed")
    flags = [*CARTPOLE, "--total_steps=12_000", "--log_period=0.1"]
    finish(baseline(started, "straight", straight, *flags))
    first = baseline(started, "first", resumed, *flags)
    wait_until(lambda: len(rows(resumed.metrics)) > 5, START, "some rows of metrics")
    first.process.send_signal(signal.SIGINT)
    finish(first, 130)
    assert 0 < newest(resumed).number < 12_000
    finish(baseline(started, "second", resumed, "--resume"))
    assert_same(straight, resumed)


def test_without_replay_on_disk_a_run_goes_on_with_an_empty_one(started, tmp_path):
    run = RunDirectory(tmp_path / "run")
    finish(baseline(started, "first", run, *CARTPOLE, "--total_steps=1000", "--nocheckpoint_replay"))
    assert not (run.worker(0) / "replay").exists()
    second = baseline(started, "second", run, "--resume", "--total_steps=2000")
    finish(second)
    assert "replay is there again" not in second.out
    assert newest(run).number == 2_000


def test_a_run_killed_before_its_first_checkpoint_starts_over(started, tmp_path):
    run = RunDirectory(tmp_path / "run")
    finish(baseline(started, "first", run, *CARTPOLE, "--total_steps=400"))
    for path in (*run.checkpoints.iterdir(), run.summary):
        path.unlink()
    second = baseline(started, "second", run, "--resume", "--total_steps=800")
    finish(second)
    assert "the run has no checkpoint yet: it starts over" in second.out
    assert len(rows(run.episodes)) == newest(run).values["num_episodes"]


def test_a_run_whose_checkpoints_are_gone_is_not_started_over(started, tmp_path):
    run = RunDirectory(tmp_path / "run")
    finish(baseline(started, "first", run, *CARTPOLE, "--total_steps=400"))
    for path in run.checkpoints.iterdir():
        path.unlink()
    before = contents(run)
    second = baseline(started, "second", run, "--resume", "--total_steps=800")
    assert second.wait(DEADLINE) == 2
    assert "holds no checkpoint, though the run here has ended with one" in second.err
    assert len(second.err.splitlines()) == 1
    assert contents(run) == before


@pytest.mark.parametrize("damaged", [1, 3])
def test_damaged_checkpoints_are_passed_over_with_a_warning(started, tmp_path, damaged):
    run = RunDirectory(tmp_path / "run")
    flags = [*CARTPOLE, "--total_steps=12_000", "--checkpoint_period=1", "--keep_checkpoints=3"]
    finish(baseline(started, "first", run, *flags))
    numbers = checkpoints.numbers(run.checkpoints)
    assert len(numbers) == 3
    for number in numbers[-damaged:]:
        path = run.checkpoints / f"{number:012d}.npz"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    second = baseline(started, "second", run, "--resume", "--total_steps=13_000")
    if damaged == 3:
        assert second.wait(DEADLINE) == 2
        assert "holds no whole checkpoint" in second.err and len(second.err.splitlines()) == 1
        return
    finish(second)
    assert f"{numbers[-1]:012d}.json cannot be used" in second.out
    assert f"resumed at {numbers[-2]:,} agent steps" in second.out
    assert newest(run).number == 13_000


def test_with_overlap_the_minibatches_of_the_last_step_stay_owed(started, tmp_path):
    done = []
    for flag in ("--nooverlap_steps", "--overlap_steps"):
        run = RunDirectory(tmp_path / flag.strip("-"))
        finish(baseline(started, flag.strip("-"), run, *CARTPOLE, flag, "--envs_per_worker=4", "--total_steps=800"))
        done.append(int(newest(run).arrays["store/counters"][Counters._fields.index("minibatches")]))
    assert done[1] == done[0] - 4 // 2  # one step of 4 environments, a minibatch for every 2


@pytest.mark.parametrize("job", ["baseline", "local"])
def test_settings_that_do_not_fit_are_refused_and_the_run_keeps_its_own(started, tmp_path, job):
    run = RunDirectory(tmp_path / "run")
    flags = [*CARTPOLE, "--local_steps=0", f"--logdir={run.path}"]
    finish(started("first", job, *flags, "--total_steps=600"))
    before, summary = run.config.read_bytes(), run.summary.read_bytes()
    other = started("other", job, *flags, "--resume", "--total_steps=900", "--optimizer=centered_rmsprop")
    assert other.wait(DEADLINE) == 2
    assert "does not fit these settings" in other.out + other.err
    assert "solved" not in other.out and "finished" not in other.out
    assert (run.config.read_bytes(), run.summary.read_bytes()) == (before, summary)
    finish(started("again", job, *flags, "--resume", "--total_steps=900"))
    assert run.read_config().total_steps == newest(run).number == 900


def test_an_agent_that_was_handed_on_is_not_trained_on(started, tmp_path):
    run, agent = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "agent")
    finish(baseline(started, "run", run, *CARTPOLE, "--total_steps=300"))
    finish(started("export", "export", f"--logdir={run.path}", "--format=agent", f"--output={agent.path}"))
    before = agent.config.read_bytes()
    resumed = baseline(started, "resumed", agent, "--resume", "--total_steps=900")
    assert resumed.wait(DEADLINE) == 2
    assert "holds a network alone" in resumed.err
    assert agent.config.read_bytes() == before


@pytest.mark.parametrize("job", ["baseline", "local"])
def test_a_folder_in_which_another_command_trains_is_left_alone(started, tmp_path, job):
    run = RunDirectory(tmp_path / "run")
    finish(baseline(started, "first", run, *CARTPOLE, "--total_steps=300"))
    before = run.config.read_bytes(), run.summary.read_bytes()
    with run.claimed():
        second = started("second", job, *CARTPOLE, f"--logdir={run.path}", "--resume", "--total_steps=900")
        assert second.wait(DEADLINE) == 2
    assert "is in use: another command is training in it" in second.err
    assert (run.config.read_bytes(), run.summary.read_bytes()) == before
