import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from cluster_helpers import processes_naming, wait_until
from report_helpers import write_run

from async_dqn import __main__ as command_line
from async_dqn.base.errors import UserError
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.settings.config import make_config
from async_dqn.system import signals
from async_dqn.tools.report import compare, experiment
from async_dqn.tools.report.compare import Comparison
from async_dqn.tools.report.runs import read_stalenesses

TINY = [
    "--env=CartPole-v1",
    "--total_steps=3000",
    "--seeds=1",
    "--games=2",
    "--checkpoint_period=1",
]


@pytest.fixture(autouse=True)
def no_handlers(monkeypatch):
    """Signals stay pytest's."""
    monkeypatch.setattr(signals, "install", threading.Event)


@pytest.fixture
def asked(monkeypatch):
    """What the command line makes of its flags, without doing it."""
    calls = []
    monkeypatch.setattr(compare, "run_compare", lambda comparison, should_stop, progress: calls.append(comparison) or 0)
    return calls


def call(*arguments):
    return command_line.main(["compare", *map(str, arguments)])


def test_the_command_line_says_what_is_compared(asked, tmp_path):
    assert call("--env=CartPole-v1", "--seeds=3", "--worker_counts=1,2", "--seed=5", f"--logdir={tmp_path}") == 0
    (comparison,) = asked
    trials = comparison.trials()
    assert [trial.name for trial in trials] == ["standard", "async-1", "async-2"] * 3
    assert [trial.config.seed for trial in trials[::3]] == [5, 6, 7]
    assert (comparison.games, comparison.folder) == (30, tmp_path)


def test_quick_is_cartpole_to_a_goal(asked, tmp_path):
    assert call("--quick", f"--logdir={tmp_path}") == 0
    config = asked[0].config
    assert (config.env, config.total_steps, config.stop_at_return, config.batch_size) == (
        "CartPole-v1",
        60_000,
        195,
        64,
    )


def test_by_default_it_is_pong_to_18_with_two_seeds(asked):
    assert call() == 0
    (comparison,) = asked
    assert (comparison.config.env, comparison.config.stop_at_return) == ("pong", 18.0)
    assert [trial.title for trial in comparison.trials()] == [
        "standard, seed 0", "async-2, seed 0", "standard, seed 1", "async-2, seed 1"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--seeds=0"], "--seeds=0: must be 1 to 100"),
        (["--games=0"], "--games=0: must be 1 to 10000"),
        (["--worker_counts=two"], "--worker_counts=two: must be numbers of workers from 1 to 512"),
        (["--num_workers=4"], "--num_workers=4: compare takes --worker_counts, such as 2 or 1,2,4"),
        (["--quick", "--env=pong"], "--quick: is on CartPole-v1; leave it or --env=pong out"),
        (["--worker_counts=512", "--env=CartPole-v1", "--replay_capacity=20000"], "--replay_capacity=20000 leaves 9 "),
        (["--env=CartPole-v1", "--logdir=/proc/x"], "--logdir=/proc/x: "),
        (["--resume", "--logdir=x"], "--resume: leave it out; the same command with its --logdir=FOLDER goes on"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, line):
    assert call(*arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"async-dqn: {line}") and err.count("\n") == 1
    assert out == ""


def test_a_comparison_says_itself_what_is_wrong_with_it(tmp_path):
    with pytest.raises(UserError, match="--seeds=101"):
        Comparison(None, tmp_path, worker_counts=(2,), num_seeds=101, games=1)


@pytest.mark.parametrize(("reason", "code"), [("solved", 0), ("failed: NaN", 1)])
def test_what_failed_in_an_earlier_call_is_still_told(monkeypatch, tmp_path, capsys, reason, code):
    monkeypatch.setattr(experiment, "evaluate", lambda trial, games, say, should_stop: 0)
    config = make_config("cartpole", {"env": "CartPole-v1", "num_workers": 1})
    folder = tmp_path / "compare"
    comparison = Comparison(config, folder, worker_counts=(1,), num_seeds=1, games=1)
    experiment.begin(folder, config, {})
    for trial in comparison.trials():
        job = {"baseline": "baseline", "local": "worker"}[trial.job]
        write_run(trial.path, [1.0, 2.0], command=job, exit_reason=reason)
    assert compare.run_compare(comparison, threading.Event(), Progress()) == code
    text = (folder / "report.md").read_text()
    assert f"| async-1, seed 0 | {reason.partition(':')[0]} |" in text
    told = f"async-1, seed 0 failed: NaN; to train it anew, remove {folder / 'runs' / 'async-1-seed-0'}\n"
    assert (told in capsys.readouterr().out) == bool(code)


def test_two_commands_do_not_train_in_one_comparison(monkeypatch, tmp_path):
    monkeypatch.setattr(experiment, "run_all", lambda *arguments, **options: pytest.fail("it trains"))
    config = make_config("cartpole", {"env": "CartPole-v1"})
    comparison = Comparison(config, tmp_path / "c", worker_counts=(1,), num_seeds=1, games=1)
    experiment.begin(comparison.folder, config, {})
    with RunDirectory(comparison.folder).claimed(), pytest.raises(UserError, match="in use"):
        compare.run_compare(comparison, threading.Event(), Progress())


def test_a_report_that_cannot_be_made_ends_no_comparison(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(experiment, "evaluate", lambda trial, games, say, should_stop: 0)
    monkeypatch.setattr(compare.findings, "sections", lambda *arguments, **options: 1 // 0)
    comparison = Comparison(
        make_config("cartpole", {"env": "CartPole-v1"}), tmp_path / "c", worker_counts=(1,), num_seeds=1, games=1
    )
    experiment.begin(comparison.folder, comparison.config, {})
    for trial in comparison.trials():
        write_run(trial.path, [1.0], exit_reason="solved")
    assert compare.run_compare(comparison, threading.Event(), Progress()) == 0
    assert capsys.readouterr().out.count("could not write the report: ") == 2


def start(folder):
    command = [sys.executable, "-m", "async_dqn", "compare", *TINY, f"--logdir={folder}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.cluster
def test_an_interrupted_comparison_goes_on_and_reports(tmp_path):
    folder = tmp_path / "compare"
    first = start(folder)
    cluster = folder / "runs" / "async-2-seed-0"
    wait_until(lambda: (cluster / "metrics.csv").exists() or first.poll() is not None, 120, "the second run trains")
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == 130, said
    assert f"interrupted; the same command with --logdir={folder} goes on from here" in said
    assert processes_naming(folder) == []
    standard = folder / "runs" / "standard-seed-0"
    finished = os.stat(standard / "summary.json").st_mtime_ns

    second = start(folder)
    said, _ = second.communicate(timeout=180)
    assert second.returncode == 0, said
    assert "2 runs, 1 of them done" in said
    assert os.stat(standard / "summary.json").st_mtime_ns == finished
    for run in (standard, cluster):
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["env_steps"], summary["exit_reason"]) == (3_000, "finished")
        assert json.loads((run / "evaluation.json").read_text())["games"] == 2
    assert sum(read_stalenesses(cluster, 2).values()) == json.loads((cluster / "summary.json").read_text())["updates"]
    text = (folder / "report.md").read_text()
    assert "| standard, seed 0 | finished | 3,000 |" in text and "| async-2, seed 0 | finished | 3,000 |" in text
    html = (folder / "report.html").read_text()
    assert html.count("data:image/png;base64,") == 4
    assert re.search(r"https?://", html) is None

    done = time.time_ns()
    third = start(folder)  # nothing is left to do but the report
    said, _ = third.communicate(timeout=60)
    assert third.returncode == 0, said
    assert os.stat(folder / "report.md").st_mtime_ns > done
