"""The run directory: when it is refused, what is written there and who may read it."""

import errno
import fcntl
import json
import os
import platform
import re
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from cluster_helpers import wait_until

from async_dqn.agents import table
from async_dqn.base.errors import UserError
from async_dqn.run import directory
from async_dqn.run.directory import RunDirectory, default_logdir
from async_dqn.settings.config import Config
from async_dqn.tools import pretrained


def made(path, config=None):
    """A run directory that holds a run."""
    run = RunDirectory(path)
    run.create()
    run.write_config(config or Config(), 7)
    return run


def refusal(run, *, resume):
    with pytest.raises(UserError) as raised:
        run.check(resume=resume)
    message = str(raised.value)
    assert "\n" not in message
    assert f"--logdir={run.path}" in message
    return message


def test_making_the_object_touches_nothing(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.check(resume=False)
    assert list(tmp_path.iterdir()) == []


def test_paths_lie_where_scripts_expect_them(tmp_path):
    run = RunDirectory(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in (run.config, run.summary, run.metrics, run.episodes)] == [
        "config.json",
        "summary.json",
        "metrics.csv",
        "episodes.csv",
    ]
    assert (run.checkpoints, run.tensorboard) == (tmp_path / "checkpoints", tmp_path / "tensorboard")
    assert run.worker(3) == tmp_path / "worker-3"


def test_a_relative_path_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunDirectory("runs/a").path == tmp_path / "runs" / "a"


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_run_takes_a_new_or_an_empty_folder(tmp_path, exists):
    path = tmp_path / "deep" / "run"
    if exists:
        path.mkdir(parents=True)
    RunDirectory(path).check(resume=False)
    assert path.exists() == exists


def test_a_run_is_resumed_and_not_overwritten(tmp_path):
    run = made(tmp_path)
    run.check(resume=True)
    assert "--resume" in refusal(run, resume=False)


@pytest.mark.parametrize("exists", [False, True])
def test_nothing_cannot_be_resumed(tmp_path, exists):
    path = tmp_path / "run"
    if exists:
        path.mkdir()
    assert "config.json" in refusal(RunDirectory(path), resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_in_place_of_the_folder_or_of_one_above_is_named(tmp_path, resume):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        assert f"{tmp_path / 'file'} is a file" in refusal(RunDirectory(path), resume=resume)


def test_the_folder_above_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    asked = []

    def access(path, mode):
        asked.append((Path(path), mode))
        return False

    monkeypatch.setattr(os, "access", access)  # a superuser may write everywhere, so no real folder would do
    message = refusal(RunDirectory(tmp_path / "deep" / "run"), resume=False)
    assert f"{tmp_path} cannot be written to" in message
    assert asked == [(tmp_path, os.W_OK)]


@pytest.mark.parametrize("target", ["run", "/nonexistent/folder", "/proc/run"])  # itself, nothing, and what cannot be
def test_a_folder_that_cannot_be_made_is_named(tmp_path, target):
    (tmp_path / "run").symlink_to(target)
    for path in (tmp_path / "run", "/proc/run"):
        with pytest.raises(UserError, match=f"--logdir={path}"):
            RunDirectory(path).create()


def test_only_this_user_may_look_into_a_new_folder(tmp_path):
    run = RunDirectory(tmp_path / "deep" / "run")
    run.create()
    run.create()  # twice does no harm
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700


@pytest.mark.parametrize("agent", table.TABLE)
def test_config_json_holds_every_setting_and_where_it_ran(tmp_path, agent):
    config = table.make_config(agent, "cartpole", {"env": "CartPole-v1", "learning_rate": 0.125})
    run = made(tmp_path, config)
    assert run.read_config() == config
    assert run.agent_name() == agent
    described = json.loads(run.config.read_text())
    assert (described["format"], described["config"]) == (directory.FORMAT, config.to_dict())
    assert described["versions"].keys() >= {"async-dqn", "tensorflow", "gymnasium", "ale-py", "numpy", "python"}
    assert described["versions"]["python"] == platform.python_version()
    assert (described["host"]["name"], described["host"]["cores"]) == (platform.node(), os.cpu_count())
    assert described["git_revision"] is None or re.fullmatch("[0-9a-f]{40}(-dirty)?", described["git_revision"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", described["started"])


def test_a_run_of_format_1_is_read_and_not_resumed(tmp_path):
    shipped = json.loads(pretrained.find("pong").config.read_text())
    shipped["config"]["averages"] = "auto"  # a value that there is no longer
    run = RunDirectory(tmp_path)
    run.config.write_text(json.dumps(shipped))
    config = run.read_config()
    assert (config.env, type(config), config.averages) == ("pong", table.find("dqn").Config, Config.averages)
    with pytest.raises(UserError, match=f"--resume: {tmp_path} .*format 1"):
        run.check_resumable()
    made(tmp_path).check_resumable()


@pytest.mark.parametrize("number", [0, 99, "two\nlines", None, [1]])
def test_a_run_of_an_unknown_format_is_refused(tmp_path, number):
    run = made(tmp_path)
    run.config.write_text(json.dumps(json.loads(run.config.read_text()) | {"format": number}))
    for refuse in (run.read_config, run.check_resumable):
        with pytest.raises(UserError, match=f"{tmp_path}.* format ") as raised:
            refuse()
        assert str(raised.value).isprintable()


def test_without_git_there_is_no_revision(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert json.loads(made(tmp_path).config.read_text())["git_revision"] is None


def test_a_folder_is_for_one_command_at_a_time(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.create()
    in_use = pytest.raises(UserError, match="--logdir=.* is in use")
    with run.claimed(), in_use, run.claimed():
        raise AssertionError("it was claimed twice")
    with run.claimed():  # and it is free again
        pass


KILLED = """
import os, subprocess, sys
from async_dqn.base.defer import defer
defer("tensorflow")
from async_dqn.run.directory import RunDirectory
with RunDirectory(sys.argv[1]).claimed() as inherited:
    subprocess.Popen([sys.executable, "-c", sys.argv[2]], pass_fds=inherited)
    os._exit(1)
"""


def test_a_command_waits_for_the_processes_of_one_that_was_killed(tmp_path):
    saves = f"import pathlib, sys; sys.stdin.read(); pathlib.Path({str(tmp_path / 'saved')!r}).touch()"
    killed = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path, saves], stdin=subprocess.PIPE)
    wait_until(lambda: psutil.Process(killed.pid).status() == psutil.STATUS_ZOMBIE, 30, "it is gone")
    said = []

    def say(line):
        said.append(line)
        killed.stdin.close()  # which its process has waited for

    with RunDirectory(tmp_path).claimed(say):
        assert (tmp_path / "saved").exists()
    assert len(said) == 1
    killed.wait()


def test_processes_that_do_not_end_keep_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_ENDING", 0.2)
    patient = "import sys; sys.stdin.read()"
    killed = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path, patient], stdin=subprocess.PIPE)
    killed.wait()
    refused = pytest.raises(UserError, match="--logdir=.* is in use")
    with killed.stdin, refused, RunDirectory(tmp_path).claimed():  # its process waits for the end of this input
        raise AssertionError("it was claimed")


@pytest.mark.parametrize(
    "holder", ["", "damaged", "1 another-host", f"{os.getpid()}"], ids=["none", "damaged", "elsewhere", "itself"]
)
def test_who_may_still_train_is_not_waited_for(tmp_path, holder):
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(holder)
        lock.flush()
        with pytest.raises(UserError, match="--logdir=.* is in use"), RunDirectory(tmp_path).claimed():
            raise AssertionError("it was claimed")


CLAIMS = """
import sys
from async_dqn.base.defer import defer
defer("tensorflow")
from async_dqn.run.directory import RunDirectory
with RunDirectory(sys.argv[1]).claimed(is_part=sys.argv[2] == "part"):
    pass
"""


def test_a_part_of_a_command_trains_in_the_folder_that_this_has_claimed(tmp_path):
    with RunDirectory(tmp_path).claimed():
        subprocess.run([sys.executable, "-c", CLAIMS, tmp_path, "part"], check=True)
        by_another = ["sh", "-c", '"$@"; exit $?', "sh"]
        for command, kind in (([], "other"), (by_another, "part")):
            command = [*command, sys.executable, "-c", CLAIMS, tmp_path, kind]
            found = subprocess.run(command, capture_output=True, text=True)
            assert found.returncode and "is in use" in found.stderr
        with pytest.raises(UserError, match="--logdir=.* is in use"), RunDirectory(tmp_path).claimed():
            raise AssertionError("the child has taken it away")


def test_a_command_on_a_host_that_may_be_lost_is_waited_for(tmp_path):
    said = []
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("1 another-host")
        lock.flush()

        def say(line):
            said.append(line)
            fcntl.flock(lock, fcntl.LOCK_UN)

        with RunDirectory(tmp_path).claimed(say, patience=60):
            pass
    assert len(said) == 1 and "waiting up to 60 s" in said[0]


def test_a_command_on_this_host_is_not_waited_for_and_no_other_one_once_it_is_told_to_stop(tmp_path):
    other = RunDirectory(tmp_path)
    with RunDirectory(tmp_path).claimed(), pytest.raises(UserError, match="is in use"), other.claimed(patience=60):
        raise AssertionError("it was claimed twice")
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("1 another-host")
        lock.flush()
        with pytest.raises(KeyboardInterrupt), other.claimed(patience=60, should_stop=lambda: True):
            raise AssertionError("it was claimed twice")


class Clock:
    """It stands still while nobody sleeps."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_processes_of_a_command_have_all_their_time_to_end_however_long_it_was_waited_for(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(directory, "time", clock)
    monkeypatch.setattr(directory, "_ENDING", 1.0)
    said, steps = [], []
    with open(tmp_path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("1 another-host")
        lock.flush()

        def should_stop():  # asked at each turn: the holder changes at the tenth, the lock is free at the fifteenth
            steps.append(0)
            if len(steps) == 10:
                lock.seek(0)
                lock.truncate()
                lock.write(f"{2**22 + 1} {directory._host()}")  # above the highest number of a process
                lock.flush()
            if len(steps) == 15:
                fcntl.flock(lock, fcntl.LOCK_UN)
            return False

        with RunDirectory(tmp_path).claimed(said.append, patience=60, should_stop=should_stop):
            pass
    assert ["another command" in said[0], "is gone" in said[1], len(said)] == [True, True, 2]


def test_where_nothing_can_be_locked_nothing_is(tmp_path, monkeypatch):
    def fail(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with RunDirectory(tmp_path).claimed(), RunDirectory(tmp_path).claimed():
        pass


def test_a_run_keeps_its_id_when_it_is_resumed(tmp_path):
    run, other = RunDirectory(tmp_path / "a"), RunDirectory(tmp_path / "b")
    for each in (run, other):
        each.create()
    run_id = run.next_id(resume=False)
    assert 0 < run_id < 2**63
    run.write_config(Config(), run_id)
    assert run.run_id() == run.next_id(resume=True) == run_id
    assert other.next_id(resume=False) != run_id
    assert run.next_id(resume=False) != run_id


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b'{"run_id": null}', b'{"run_id": 1e999}', b"\xff"])
def test_without_an_id_there_is_none_and_a_resumed_run_gets_one(tmp_path, content):
    run = RunDirectory(tmp_path)
    if content is not None:
        run.config.write_bytes(content)
    assert run.run_id() is None
    run.write_config(Config(), run.next_id(resume=True))
    assert run.run_id() is not None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no config.json"),
        ("", "config.json"),
        ("[]", "config.json"),
        ('{"config": {"batch_size": "many"}}', "--batch_size=many"),
        ('{"config": {"batch_size": 0}}', "--batch_size=0"),
        ('{"config": "many"}', '"config"'),
        ('{"config": {"batch_size": [1]}}', "--batch_size=[1]"),
        ('{"config": {"batch_size": NaN}}', "config.json"),
        ('{"config": {"batch_size": 1e999}}', "config.json"),
        ('{"config": {"batch_size": ' + "9" * 10_000 + "}}", "config.json"),
        ('{"config": {"discount": 1' + "0" * 400 + "}}", "config.json"),
        ('{"config": {"agent": "' + "x" * 10_000 + '"}}', "--agent=xxx"),
        ('{"config": {"agent": "a\\n\\u001b[31m\\u0000b"}}', r"--agent=a \x1b[31m\x00b"),
        ('{"config": {"agent": {"a": [1]}}}', "config.json"),
        ("[" * 100_000, "config.json"),
        (b"\xff\xfe", "config.json"),
        (b"\0" * 1000, "config.json"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_config_that_cannot_be_read_is_told_in_one_line(tmp_path, content, words):
    run = RunDirectory(tmp_path)
    if content is not None:
        run.config.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as raised:
        run.read_config()
    assert words in str(raised.value)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Path.mkdir, "Is a directory"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        (lambda path: path.symlink_to(path), "symbolic link"),
        (lambda path: path.symlink_to("nowhere"), "no config.json"),
    ],
    ids=["folder", "FIFO", "device", "link to itself", "link to nothing"],
)
def test_something_else_in_place_of_the_config_is_told_in_one_line(tmp_path, make, words):
    make(tmp_path / "config.json")
    with pytest.raises(UserError, match=words):
        RunDirectory(tmp_path).read_config()


def test_summary_is_replaced_whole(tmp_path):
    run = made(tmp_path)
    run.write_summary({"env_steps": 1, "solved_at_steps": None})
    run.write_summary({"env_steps": 2})
    assert json.loads(run.summary.read_text()) == {"env_steps": 2}
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "summary.json"}


def test_a_summary_is_json_whatever_numbers_it_gets(tmp_path):
    run = made(tmp_path)
    run.write_summary({"mean": float("inf"), "workers": [{"rate": float("nan"), "steps": 3}]})
    text = run.summary.read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"mean": None, "workers": [{"rate": None, "steps": 3}]}


@pytest.mark.parametrize(
    ("env", "name"),
    [("pong", "pong-dqn-"), ("ALE/Pong-v5", "Pong-v5-dqn-"), ("module:My/Env-v0", "module_My_Env-v0-dqn-")],
)
def test_default_folder_is_named_after_the_environment(env, name):
    path = default_logdir(env, "dqn")
    assert path.parent == Path("runs")
    assert re.fullmatch(re.escape(name) + r"\d{8}-\d{6}-\d{3}", path.name)


def test_an_exit_reason_is_new_once_a_run_has_written_one(tmp_path):
    run = RunDirectory(tmp_path)
    run.write_summary({"exit_reason": "failed: earlier"})
    reason = run.new_exit_reason()
    assert reason() == "" and run.has_failed()
    run.write_summary({"exit_reason": "failed: earlier"})
    assert reason() == "failed: earlier"
    fresh = RunDirectory(tmp_path / "fresh").new_exit_reason()
    assert fresh() == ""


def test_a_folder_that_cannot_be_named_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="the path is not UTF-8; give another folder"):
        RunDirectory(tmp_path / os.fsdecode(b"\xff") / "run").check_path()
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UserError, match="--logdir=run: the current folder is gone; give a full path"):
        RunDirectory("run")
