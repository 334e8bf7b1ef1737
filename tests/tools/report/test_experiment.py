import json
import threading

import pytest

from async_dqn.base.errors import UserError
from async_dqn.run.progress import Progress
from async_dqn.settings.config import make_config
from async_dqn.tools.report import experiment
from async_dqn.tools.report.experiment import begin, check_counts, run_all, trials

CONFIG = make_config("cartpole", {"env": "CartPole-v1", "seed": 3, "num_ps": 2})


def plan(folder, **options):
    return trials(CONFIG, folder, **{"worker_counts": (0, 2, 1), "num_seeds": 2} | options)


def end(trial, reason, **summary):
    trial.path.mkdir(parents=True, exist_ok=True)
    trial.run.config.write_text("{}")
    trial.run.summary.write_text(json.dumps({"exit_reason": reason} | summary))


def test_all_kinds_are_trained_seed_by_seed(tmp_path):
    made = plan(tmp_path)
    assert [(trial.name, trial.job, trial.config.seed) for trial in made] == [
        ("standard", "baseline", 3),
        ("async-2", "local", 3),
        ("async-1", "local", 3),
        ("standard", "baseline", 4),
        ("async-2", "local", 4),
        ("async-1", "local", 4),
    ]
    assert [(trial.config.num_ps, trial.config.num_workers) for trial in made[:3]] == [(1, 1), (2, 2), (2, 1)]
    assert made[1].path == tmp_path / "runs" / "async-2-seed-3"
    own = {"seed": 3, "num_ps": 2, "num_workers": CONFIG.num_workers}
    assert {trial.config.from_dict(trial.config.to_dict() | own) for trial in made} == {CONFIG}  # all else is equal


@pytest.mark.parametrize(
    ("reason", "is_over"),
    [("finished", True), ("solved", True), ("failed: NaN", True), ("running", False), ("interrupted", False)],
)
def test_what_ended_in_order_is_over(tmp_path, reason, is_over):
    trial = plan(tmp_path)[0]
    assert not trial.is_over
    end(trial, reason)
    assert trial.is_over == is_over


def test_a_comparison_is_begun_and_gone_on_with(tmp_path):
    folder = tmp_path / "new" / "folder"
    first = {"command": "compare", "date": "then"}
    assert begin(folder, CONFIG, first) == [first]
    assert begin(folder, CONFIG, {"command": "compare", "date": "now"}) == [first]
    more_seeds = make_config("cartpole", {"env": "CartPole-v1", "seed": 9, "num_workers": 1, "num_ps": 2})
    second = {"command": "compare --seeds=9", "date": "later"}
    assert begin(folder, more_seeds, second) == [first, second]
    assert begin(folder, CONFIG, first) == [first, second]
    assert begin(folder, CONFIG, {"command": "compare --games=1"}, trains=False) == [first, second]


@pytest.mark.parametrize(
    ("content", "calls"),
    [({"origin": {"command": "a"}}, [{"command": "a"}]), ({}, []), ({"calls": 3}, []), ({"calls": [3]}, [])],
)
def test_an_earlier_versions_file_is_gone_on_with(tmp_path, content, calls):
    begin(tmp_path / "a", CONFIG, {})
    file = tmp_path / "a" / "compare.json"
    settings = json.loads(file.read_text())["settings"]
    file.write_text(json.dumps({"settings": settings} | content))
    assert begin(tmp_path / "a", CONFIG, {"command": "b"}) == [*calls, {"command": "b"}]


def test_a_beginning_that_was_killed_is_begun_again(tmp_path):
    (tmp_path / ".compare.json.123.tmp").touch()
    assert begin(tmp_path, CONFIG, {"date": "then"}) == [{"date": "then"}]


def test_what_a_version_did_not_know_yet_had_its_default(tmp_path):
    begin(tmp_path / "a", CONFIG, {})
    file = tmp_path / "a" / "compare.json"
    known = json.loads(file.read_text())
    assert known["settings"].pop("dueling") is False
    file.write_text(json.dumps(known))
    begin(tmp_path / "a", CONFIG, {})
    other = make_config("cartpole", {"env": "CartPole-v1", "num_ps": 2, "dueling": True})
    with pytest.raises(UserError, match="holds a comparison with --dueling=False, not True"):
        begin(tmp_path / "a", other, {})


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match=r"holds something else \(no compare.json\)"):
        begin(tmp_path, CONFIG, {})
    with pytest.raises(UserError, match="--logdir=/proc/x: "):
        begin(experiment.Path("/proc/x"), CONFIG, {})
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_other_settings_are_refused_by_name(tmp_path):
    begin(tmp_path / "a", CONFIG, {})
    other = make_config("cartpole", {"env": "CartPole-v1", "batch_size": 7, "num_ps": 2})
    with pytest.raises(UserError, match="holds a comparison with --batch_size=64, not 7"):
        begin(tmp_path / "a", other, {})
    with pytest.raises(UserError, match="holds a comparison with --num_ps=2, not 1"):
        begin(tmp_path / "a", make_config("cartpole", {"env": "CartPole-v1"}), {})


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"settings": 3}', b"\xff"])
def test_a_file_that_says_nothing_is_refused(tmp_path, content):
    begin(tmp_path / "a", CONFIG, {})
    (tmp_path / "a" / "compare.json").write_bytes(content)
    with pytest.raises(UserError, match=r"compare.json cannot be read; give another --logdir"):
        begin(tmp_path / "a", CONFIG, {})


class Runner:
    """Stands in for training and evaluating: writes down what was asked for."""

    def __init__(self, monkeypatch, codes):
        self.done = []
        self._codes = codes
        monkeypatch.setattr(experiment, "train", self.train)
        monkeypatch.setattr(experiment, "evaluate", self.evaluate)

    def train(self, trial, show, say, should_stop, inherited=()):
        self.done.append(f"train {trial.title}")
        code = self._codes.get(trial.title, 0)
        end(trial, {0: "finished", 1: "failed: x", 130: "interrupted"}[code])
        show("half-way")
        return code

    def evaluate(self, trial, games, say, should_stop):
        self.done.append(f"evaluate {trial.title}")
        return 0


def test_what_is_done_is_not_done_again(monkeypatch, tmp_path):
    made = plan(tmp_path, worker_counts=(0, 1, 2), num_seeds=1)
    end(made[0], "solved")
    end(made[2], "solved", env_steps=9)
    (made[2].path / "evaluation.json").write_text('{"games": 1, "checkpoint_env_steps": 9}')
    runner = Runner(monkeypatch, {})
    results = list(run_all(made, Progress(), games=1, should_stop=threading.Event()))
    assert runner.done == ["evaluate standard, seed 3", "train async-1, seed 3", "evaluate async-1, seed 3"]
    assert results == [(made[0], 0), (made[1], 0)]


def test_a_run_that_fails_is_passed_over_and_an_interruption_ends_all(monkeypatch, tmp_path):
    made = plan(tmp_path, worker_counts=(0, 1, 2), num_seeds=1)
    runner = Runner(monkeypatch, {"standard, seed 3": 1, "async-1, seed 3": 130})
    results = list(run_all(made, Progress(), games=1, should_stop=threading.Event()))
    assert runner.done == ["train standard, seed 3", "train async-1, seed 3"]
    assert [code for _, code in results] == [1, 130]


@pytest.mark.parametrize(
    ("content", "is_done"),
    [
        (None, False),
        ('{"games": 5, "checkpoint_env_steps": 70}', True),
        ('{"games": 4, "checkpoint_env_steps": 70}', False),
        ('{"games": 5, "checkpoint_env_steps": 60}', False),  # of what it had learned before it went on
        ('{"games": 5}', False),
        ("[]", False),
        ("", False),
    ],
)
def test_it_is_done_once_so_many_games_were_played_with_what_it_learned(tmp_path, content, is_done):
    trial = plan(tmp_path)[0]
    end(trial, "solved", env_steps=70)
    if content is not None:
        (trial.path / "evaluation.json").write_text(content)
    assert trial.is_done(5) == is_done
    assert bool(experiment.read_evaluation(trial.run)) == (content is not None and '": 70}' in content)


def test_a_run_that_has_failed_or_goes_on_plays_no_part(tmp_path):
    trial = plan(tmp_path)[0]
    end(trial, "failed: NaN")
    assert trial.is_done(5)
    end(trial, "interrupted", env_steps=70)
    (trial.path / "evaluation.json").write_text('{"games": 5, "checkpoint_env_steps": 70}')
    assert not trial.is_done(5)


def test_games_are_played_with_the_run(monkeypatch, tmp_path):
    trial = plan(tmp_path)[0]
    commands = []
    monkeypatch.setattr(experiment, "supervise", lambda task, should_stop: commands.append(task._command(0)) or 7)
    assert experiment.evaluate(trial, 5, print, threading.Event()) == 7
    assert [command[3:] for command in commands] == [["evaluate", "--games=5", f"--logdir={trial.path}"]]


@pytest.mark.parametrize(("text", "counts"), [("2", (2,)), ("1,2, 4", (1, 2, 4)), ("2,2", (2,))])
def test_worker_counts_are_a_comma_list(text, counts):
    assert check_counts(text) == counts


@pytest.mark.parametrize("text", ["", "0", "x", "1,,2", "-1", "513", "1.5"])
def test_other_worker_counts_are_refused(text):
    with pytest.raises(UserError, match=f"--worker_counts={text}: must be numbers of workers"):
        check_counts(text)
