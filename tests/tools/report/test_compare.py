import contextlib
import dataclasses
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

from async_dqn.agents import table
from async_dqn.agents.table import make_config
from async_dqn.base.errors import UserError
from async_dqn.cli import main as command_line
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.system import signals
from async_dqn.tools.report import compare
from async_dqn.tools.report.compare import Comparison, begin, check_counts, with_clusters
from async_dqn.tools.report.runs import read_run, read_stalenesses

CONFIG = make_config("dqn", "cartpole", {"env": "CartPole-v1", "seed": 3, "num_ps": 2})
CALL = {"command": "compare", "date": "then"}


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


def comparison(folder, config=CONFIG, counts=(2, 1), seeds=1, games=1):
    alone = config.combine(dataclasses.asdict(config), config.unshared())
    kinds = with_clusters(alone, {number: dataclasses.replace(config, num_workers=number) for number in counts})
    return Comparison(config, folder, kinds, num_seeds=seeds, games=games)


def test_the_command_line_says_what_is_compared(asked, tmp_path):
    assert call("--env=CartPole-v1", "--seeds=3", "--worker_counts=1,2", "--seed=5", f"--logdir={tmp_path}") == 0
    assert [trial.name for trial in asked[0].trials()[:4]] == [
        "baseline-seed-5", "async-1-seed-5", "async-2-seed-5", "baseline-seed-6"
    ]  # fmt: skip
    assert [(trial.job, trial.config.num_workers) for trial in asked[0].trials()[6:]] == [
        ("baseline", 1), ("local", 1), ("local", 2)
    ]  # fmt: skip
    assert (asked[0].games, asked[0].folder) == (30, tmp_path)
    assert call("--agent=ppo", "--env=CartPole-v1", f"--logdir={tmp_path}") == 0
    assert {trial.config.agent for trial in asked[1].trials()} == {"ppo"}


def test_settings_are_checked_against_the_workers_that_there_will_be(asked, tmp_path):
    sync = ["--env=CartPole-v1", "--update_mode=sync", "--backup_workers=2"]
    assert call(*sync, "--worker_counts=4", f"--logdir={tmp_path}") == 0
    assert [trial.config.num_workers for trial in asked[0].trials()][:2] == [1, 4]
    assert call(*sync, "--worker_counts=1,2") == 2


def test_each_number_of_workers_has_the_preset_s_settings_for_it(asked, tmp_path):
    assert call("--env=CartPole-v1", "--worker_counts=4,2", f"--logdir={tmp_path}") == 0
    found = [(trial.config.local_steps, trial.config.averages) for trial in asked[0].trials()[:3]]
    assert found == [(0, "own"), (1, "shared"), (4, "own")]


def test_the_baseline_is_what_the_command_baseline_trains(asked, tmp_path):
    flags = ["--queue_size=3", "--replay=global", "--update_mode=accumulate", "--accumulate=2"]
    for agent, more in (("paac", []), ("dqn", flags), ("a3c", ["--store=shared_memory", "--update_mode=hogwild"])):
        assert call(f"--agent={agent}", "--env=CartPole-v1", *more, f"--logdir={tmp_path}") == 0
        alone = table.find(agent).Config.unshared()
        assert asked[-1].kinds[0].config == table.make_config(agent, "cartpole", {"env": "CartPole-v1"} | alone)


@pytest.mark.parametrize(("agent", "by_workers"), [("dqn", "local_steps=2"), ("paac", "envs_per_worker=5")])
def test_other_numbers_of_workers_may_be_compared_in_a_folder_later(asked, agent, by_workers, tmp_path):
    def begun(counts, *more):
        flags = [f"--worker_counts={counts}", *more, f"--logdir={tmp_path / 'a'}"]
        assert call(f"--agent={agent}", "--env=CartPole-v1", *flags) == 0
        return begin(tmp_path / "a", asked[-1].config, CALL, by_workers=asked[-1].by_workers)

    for counts in ("2", "4", "1,2", "2,4"):
        begun(counts)
    for other in ("learning_rate=0.5", by_workers):
        with pytest.raises(UserError, match=f"--{other.replace('=', '=.*, not ')}"):
            begun("2", f"--{other}")


def test_what_was_given_and_what_a_preset_says_are_not_compared_in_one_folder(asked, tmp_path):
    def begun(*more):
        assert call("--env=CartPole-v1", "--worker_counts=2", *more, f"--logdir={tmp_path / 'a'}") == 0
        return begin(tmp_path / "a", asked[-1].config, CALL, by_workers=asked[-1].by_workers)

    begun("--local_steps=16")
    with pytest.raises(UserError, match="holds a comparison with --local_steps given as 16; do the same"):
        begun()
    begun("--local_steps=16")


def test_another_machine_or_revision_is_another_call(tmp_path):
    call_here = CALL | {"cpu": "A", "git revision": "1"}
    elsewhere = call_here | {"cpu": "B", "date": "later"}
    assert begin(tmp_path / "a", CONFIG, call_here) == [call_here]
    assert begin(tmp_path / "a", CONFIG, elsewhere) == [call_here, elsewhere]
    assert begin(tmp_path / "a", CONFIG, call_here | {"date": "now"}) == [call_here, elsewhere]


def test_a_run_that_is_gone_on_with_computes_in_what_it_was_decided_to(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create()
    config = dataclasses.replace(CONFIG, compute_dtype="auto")
    trial = compare.Trial("dqn-1", "local", config, run)
    assert "--compute_dtype=auto" in trial.flags and "--resume" not in trial.flags
    run.write_config(dataclasses.replace(config, compute_dtype="bfloat16"), 7)
    assert "--compute_dtype=bfloat16" in trial.flags and "--resume" in trial.flags


def test_after_an_interrupt_no_other_run_begins_even_if_this_one_could_not_save(tmp_path, monkeypatch, capsys):
    stop, begun = threading.Event(), []

    def fails(trial, *how):
        begun.append(trial.name)
        stop.set()
        return 1

    monkeypatch.setattr(compare, "execute", fails)
    assert compare.run_compare(comparison(tmp_path / "a"), stop, Progress()) == 130
    assert len(begun) == 1 and "goes on from here" in capsys.readouterr().out


def test_quick_is_cartpole_to_a_goal_and_the_default_pong(asked, tmp_path):
    assert call("--quick", f"--logdir={tmp_path}") == 0
    assert call() == 0
    goals = [(one.config.env, one.config.total_steps, one.config.stop_at_return) for one in asked]
    assert goals[0] == ("CartPole-v1", 200_000, 195)
    assert (goals[1][0], goals[1][2]) == ("pong", 18.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds=0"], "--seeds=0: must be 1 to 100"),
        (["--games=0"], "--games=0: must be 1 to 10000"),
        (["--agent=fast_dqn", "--env=CartPole-v1"], "--agent=fast_dqn: trains in one process"),
        (["--study=sharing", "--preset=cartpole"], "--preset=cartpole: a study sets it itself"),
        (["--study=sharing", "--games=5"], "--games: a study sets it itself"),
        (["--worker_counts=two"], "--worker_counts=two: must be numbers of workers from 1 to 512"),
        (["--worker_counts=512", "--env=CartPole-v1", "--replay_capacity=20000"], "--replay_capacity=20000 leaves 9 "),
        (["--env=CartPole-v1", "--logdir=/proc/x"], "--logdir=/proc/x: "),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, words):
    assert call(*arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"async-dqn: {words}") and err.count("\n") == 1
    assert out == ""


def test_worker_counts_are_a_comma_list():
    assert [check_counts(text) for text in ("2", "1,2, 4", "2,2")] == [(2,), (1, 2, 4), (2,)]
    for text in ("", "0", "x", "1,,2", "-1", "513", "1.5"):
        with pytest.raises(UserError, match=f"--worker_counts={text}: must be numbers of workers"):
            check_counts(text)


def test_a_comparison_is_begun_and_gone_on_with(tmp_path):
    folder = tmp_path / "new" / "folder"
    folder.mkdir(parents=True)
    (folder / ".compare.json.123.tmp").touch()  # of a call that was killed
    assert begin(folder, CONFIG, CALL) == [CALL]
    assert begin(folder, CONFIG, CALL | {"date": "now"}) == [CALL]
    more_seeds = make_config("dqn", "cartpole", {"env": "CartPole-v1", "seed": 9, "num_workers": 1, "num_ps": 2})
    second = {"command": "compare --seeds=9", "date": "later"}
    assert begin(folder, more_seeds, second) == [CALL, second]
    assert begin(folder, CONFIG, None) == [CALL, second]


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match=r"holds something else \(no compare.json\)"):
        begin(tmp_path, CONFIG, CALL)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_other_settings_are_refused_by_name(tmp_path):
    begin(tmp_path / "a", CONFIG, CALL)
    file = tmp_path / "a" / "compare.json"
    known = json.loads(file.read_text())
    del known["settings"]["dueling"]  # an earlier version did not have it, and so its default
    file.write_text(json.dumps(known))
    begin(tmp_path / "a", CONFIG, CALL)
    for changed in ({"batch_size": 7}, {"num_ps": 1}, {"dueling": True}):
        ((name, value),) = changed.items()
        other = make_config("dqn", "cartpole", {"env": "CartPole-v1", "num_ps": 2} | changed)
        with pytest.raises(UserError, match=f"holds a comparison with --{name}=.*, not {value}"):
            begin(tmp_path / "a", other, CALL)
    with pytest.raises(UserError, match="holds a comparison with --agent=dqn, not ppo"):
        begin(tmp_path / "a", make_config("ppo", "cartpole", {"env": "CartPole-v1"}), CALL)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"settings": 3, "calls": []}', b'{"calls": [3]}', b"\xff"])
def test_a_file_that_says_nothing_is_refused(tmp_path, content):
    begin(tmp_path / "a", CONFIG, CALL)
    (tmp_path / "a" / "compare.json").write_bytes(content)
    with pytest.raises(UserError, match=r"compare.json cannot be read; give another --logdir"):
        begin(tmp_path / "a", CONFIG, CALL)


def end(trial, reason, played=None):
    """A run as training leaves it; `played`: greedy games, and the steps of the checkpoint that played them."""
    job = {"baseline": "baseline", "local": "worker"}[trial.job]
    if not trial.run.path.exists():
        own = {name: getattr(trial.config, name) for name in ("seed", "num_ps", "num_workers")}
        write_run(trial.run.path, [1.0, 2.0], command=job, exit_reason=reason, summary={"env_steps": 70}, **own)
    if played:
        evaluation = {"games": played[0], "checkpoint_env_steps": played[1], "mean": 1.0, "actions": "greedy"}
        (trial.run.path / "evaluation.json").write_text(json.dumps(evaluation))


@pytest.mark.parametrize(
    ("reason", "played", "is_over", "is_done"),
    [
        ("finished", None, True, False),
        ("solved", (5, 70), True, True),
        ("solved", (4, 70), True, False),
        ("solved", (5, 60), True, False),  # of what it had learned before it went on
        ("failed: NaN", None, True, True),
        ("interrupted", (5, 70), False, False),
        ("running", None, False, False),
        (None, None, False, False),
    ],
)
def test_a_trial_is_done_once_it_has_ended_and_played(tmp_path, reason, played, is_over, is_done):
    trial = comparison(tmp_path).trials()[0]
    assert not trial.is_over
    end(trial, reason, played)
    assert (trial.is_over, trial.is_done(5)) == (is_over, is_done)


@pytest.fixture
def runner(monkeypatch):
    """Stands in for the processes of trials: the commands that were run, by what ends how."""

    class Runner:
        def __init__(self):
            self.done, self.codes, self.verbose = [], {}, set()

        def execute(self, trial, job, flags, header, progress, stop, held):
            self.done.append(f"{job} {trial.name}")
            self.verbose |= {"--verbose" in flags}
            code = self.codes.get(trial.name, 0)
            end(trial, {0: "finished", 1: "failed: x", 130: "interrupted"}[code])
            if job == "evaluate":
                end(trial, None, (1, 70))
            progress.show(f"{header} | half-way")
            return code

    made = Runner()
    monkeypatch.setattr(compare, "execute", made.execute)
    return made


def run(one):
    return compare.run_compare(one, threading.Event(), Progress(plain_period=0.0))


def test_what_is_done_is_not_done_again_and_time_left_is_told(runner, tmp_path, capsys):
    one = comparison(tmp_path / "c", counts=(1, 2, 4))
    trials = one.trials()
    begin(one.folder, CONFIG, CALL)
    end(trials[0], "solved")
    end(trials[2], "solved", (1, 70))
    assert run(one) == 0
    assert runner.done == [
        "evaluate baseline-seed-3", "local async-1-seed-3", "evaluate async-1-seed-3", "local async-4-seed-3",
        "evaluate async-4-seed-3",
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert "4 runs, 2 of them done" in said and re.search(r"4 of 4: async-4-seed-3, about 0:0\d left", said)
    runner.done.clear()
    assert run(one) == 0 and runner.done == [] and runner.verbose == {False}


def test_what_tensorflow_says_is_in_the_logs_of_runs_too_where_it_is_asked_for(runner, tmp_path):
    assert run(dataclasses.replace(comparison(tmp_path / "c", counts=(1,)), verbose=True)) == 0
    assert runner.done and runner.verbose == {True}


def test_a_run_that_fails_is_passed_over_and_told_again(runner, tmp_path, capsys):
    one = comparison(tmp_path / "c")
    runner.codes = {"baseline-seed-3": 1}
    assert run(one) == 1
    assert runner.done[:2] == ["baseline baseline-seed-3", "local async-2-seed-3"]
    assert run(one) == 1  # in a later call too
    assert capsys.readouterr().out.count(f"to train it anew, remove {one.trials()[0].run.path}") == 2
    assert "| baseline, seed 3 | failed |" in (one.folder / "report.md").read_text()


def test_an_interruption_ends_all_and_leaves_a_report(runner, tmp_path, capsys):
    one = comparison(tmp_path / "c")
    runner.codes = {"async-2-seed-3": 130}
    assert run(one) == 130
    assert runner.done[-1] == "local async-2-seed-3"
    assert f"--logdir={one.folder} goes on from here" in capsys.readouterr().out
    assert "Not complete: 1 run of 3" in (one.folder / "report.md").read_text()


def test_a_report_that_cannot_be_made_ends_no_comparison(runner, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(compare.findings, "write_report", lambda *arguments, **options: 1 // 0)
    assert run(comparison(tmp_path / "c", counts=(1,))) == 0
    assert capsys.readouterr().out.count("could not write the report: ") == 2


@contextlib.contextmanager
def start(folder, agent, steps):
    flags = ["--env=CartPole-v1", f"--total_steps={steps}", "--seeds=1", "--games=2", "--checkpoint_period=1"]
    command = [sys.executable, "-m", "async_dqn", "compare", f"--agent={agent}", *flags, f"--logdir={folder}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()  # with all that it has started


@pytest.mark.cluster
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("agent", "steps"), [("dqn", 6_000), ("ppo", 20_000)])
def test_an_interrupted_comparison_goes_on_and_reports(tmp_path, agent, steps):
    folder = tmp_path / "compare"
    baseline, cluster = (folder / "runs" / name for name in ("baseline-seed-0", "async-2-seed-0"))
    with start(folder, agent, steps) as first:
        wait_until(lambda: (cluster / "metrics.csv").exists() or first.poll() is not None, 600, "the second run trains")
        first.send_signal(signal.SIGINT)
        said, _ = first.communicate(timeout=120)
    assert first.returncode == 130, said
    assert processes_naming(folder) == []
    finished = os.stat(baseline / "summary.json").st_mtime_ns

    with start(folder, agent, steps) as second:
        said, _ = second.communicate(timeout=600)
    assert second.returncode == 0, said
    assert "2 runs, 1 of them done" in said
    assert os.stat(baseline / "summary.json").st_mtime_ns == finished
    for path in (baseline, cluster):
        summary = json.loads((path / "summary.json").read_text())
        assert (summary["env_steps"], summary["exit_reason"]) == (steps, "finished")
        assert json.loads((path / "evaluation.json").read_text())["games"] == 2
    assert sum(read_stalenesses(read_run(cluster)).values()) == summary["updates"]
    html = (folder / "report.html").read_text()
    assert html.count("data:image/png;base64,") == len(list((folder / "figures").iterdir())) == 3
    assert re.search(r"https?://", html) is None

    done = time.time_ns()
    with start(folder, agent, steps) as third:  # nothing is left to do but the report
        said, _ = third.communicate(timeout=120)
    assert third.returncode == 0, said
    assert os.stat(folder / "report.md").st_mtime_ns > done
