"""Tests of async_dqn.__main__: what each command takes, and how bad input ends."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from cluster_helpers import commands, processes_naming
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from async_dqn import __main__ as command_line
from async_dqn.cli import from_flags
from async_dqn.cli.arguments import parse
from async_dqn.run.directory import RunDirectory
from async_dqn.settings.config import Config
from async_dqn.system.signals import ASK

TRAINING = [name for name, command in command_line.COMMANDS.items() if command.trains]
CARTPOLE = "--env=CartPole-v1"


@pytest.fixture(autouse=True)
def _calm(monkeypatch, tmp_path):
    """Commands run in this process, in an empty folder; they leave it as it was and start nothing."""

    def started(*args, **kwargs):
        raise AssertionError("a run was started")

    monkeypatch.setattr(command_line, "quiet_stderr", contextlib.nullcontext)
    monkeypatch.setattr("async_dqn.roles.local.run_local", started)
    monkeypatch.setattr("async_dqn.run.directory.RunDirectory.create", started)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, ASK)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _files() -> list[str]:
    return sorted(os.listdir())


def _refusal(capsys, *arguments: str) -> str:
    """The one line that bad input ends with: exit code 2, nothing on standard output, nothing made."""
    before, begin = _files(), time.monotonic()
    assert command_line.main(arguments) == 2
    out, err = capsys.readouterr()
    assert time.monotonic() - begin < 30
    assert _files() == before
    assert out == ""
    assert err.startswith("async-dqn: ") and len(err.splitlines()) == 1, err
    assert "Traceback" not in err and "Error" not in err, err
    return err


@pytest.mark.parametrize("command", ["local", "baseline", "worker", "ps"])
@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--batch_size=abc", ["--batch_size=abc", "must be a whole number"]),
        ("--batch_size=0", ["--batch_size=0", "at least 1", "65536"]),
        ("--no_such_flag=3", ["no_such_flag", "--help"]),
    ],
)
def test_every_training_command_refuses_bad_flags(capsys, monkeypatch, tmp_path, command, flag, words):
    spec = tmp_path / "spec.json"
    spec.write_text('{"ps": ["localhost:1023"], "worker": ["localhost:1022"]}')
    cluster = [f"--cluster_spec={spec}", "--task_index=0"] if command in ("worker", "ps") else []
    monkeypatch.setattr(from_flags, "check_port", lambda address: None)
    line = _refusal(capsys, command, CARTPOLE, *cluster, flag)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["'trian'", "must be one of", "local", "baseline", "evaluate"]),
        (["--env=pong"], ["--env=pong", "must be one of", "local"]),
        (["local", "pong"], ["'pong'", "--name=value"]),
        (["local", "--batchsize=3"], ["batchsize", "Did you mean: batch_size"]),
        (["local", CARTPOLE, "--batch_size=1.5"], ["--batch_size=1.5", "whole number"]),
        (["local", CARTPOLE, "--batch_size=inf"], ["--batch_size=inf", "whole number"]),
        (["local", CARTPOLE, "--batch_size="], ["--batch_size", "whole number"]),
        (["local", CARTPOLE, "--batch_size"], ["batch_size"]),
        (["local", CARTPOLE, "--discount=1.5"], ["--discount=1.5", "at least 0", "at most 1"]),
        (["local", CARTPOLE, "--discount=nan"], ["--discount=nan", "at least 0"]),
        (["local", CARTPOLE, "--stop_at_return=nan"], ["--stop_at_return=nan", "must be a number, not nan"]),
        (["local", CARTPOLE, "--nodouble=3"], ["--nodouble=3", "does not take an argument"]),
        (["local", CARTPOLE, "--logdir="], ["--logdir=", "give a folder"]),
        (["local", CARTPOLE, "--learning_rate=fast"], ["--learning_rate=fast", "must be a number"]),
        (["local", CARTPOLE, "--double=perhaps"], ["--double=perhaps", "must be true or false"]),
        (["local", CARTPOLE, "--verbose=perhaps"], ["--verbose=perhaps", "must be true or false"]),
        (["evaluate", "--human=perhaps"], ["--human=perhaps", "must be true or false"]),
        (["local", CARTPOLE, "--num_workers=0"], ["--num_workers=0", "at least 1"]),
        (["local", CARTPOLE, "--num_ps=0"], ["--num_ps=0", "at least 1"]),
        (["local", CARTPOLE, "--total_steps=0"], ["--total_steps=0", "at least 1"]),
        (["local", CARTPOLE, "--total_steps=1e30"], ["--total_steps=1", "at most"]),
        (["local", CARTPOLE, "--ps_deadline=inf"], ["--ps_deadline=inf"]),
        (["local", CARTPOLE, "--gpus=a"], ["--gpus=a", "auto, none"]),
        (["local", CARTPOLE, "--gpus=7"], ["--gpus=7", "this host has"]),
        (["local", CARTPOLE, "--local_steps=4", "--push_period=2"], ["--local_steps=4", "--push_period=2"]),
        (["local", CARTPOLE, "--replay_capacity=50"], ["--replay_capacity=50", "2 workers", "at least"]),
        (["local", "--env=Pongg"], ["--env", "Pongg", "did you mean pong", "CartPole-v1"]),
        (["local", "--env=NoSuchEnv-v0"], ["--env", "NoSuchEnv-v0", "use an Atari game"]),
        (["local", "--env="], ["--env", "use an Atari game"]),
        (["local", "--env=Pendulum-v1"], ["--env", "Pendulum-v1", "Discrete"]),
        (["local", "--preset=cartpol"], ["--preset=cartpol", "did you mean cartpole?", "nature"]),
        (["local", "--agent=dqnn"], ["--agent=dqnn", "did you mean dqn?", "must be one of"]),
        (["local", CARTPOLE, "--agent=two\nlines"], ["--agent=two", "must be one of"]),
        (["local", "--network=nip"], ["--network=nip", "did you mean nips?", "nature", "mlp"]),
        (["local", "--protocol=clasic"], ["--protocol=clasic", "did you mean classic?", "machado"]),
        (["local", CARTPOLE, "--network=nips"], ["--network=nips", "CartPole-v1", "use mlp"]),
        (["baseline", CARTPOLE, "--network=nature"], ["--network=nature", "CartPole-v1", "use mlp"]),
        (["baseline", "--env=pong", "--network=mlp"], ["--network=mlp", "Pong-v5", "nips or nature"]),
        (
            ["local", "--env=pong", "--replay_capacity=10_000_000_000"],
            ["--replay_capacity=10000000000", "GB", "would fit"],
        ),
        (
            ["baseline", "--env=pong", "--replay_capacity=10_000_000_000"],
            ["--replay_capacity=10000000000", "GB", "would fit"],
        ),
        (["local", CARTPOLE, "--resume"], ["--resume", "--logdir"]),
        (["local", CARTPOLE, "--resume", "--logdir=none"], ["--resume", "none", "no config.json"]),
        (["baseline", CARTPOLE, "--logdir=" + "a" * 300], ["--logdir=", "aaa"]),
        (["worker", CARTPOLE, "--task_index=0"], ["--cluster_spec=FILE", "TF_CONFIG"]),
        (["ps", CARTPOLE, "--task_index=0"], ["--cluster_spec=FILE", "TF_CONFIG"]),
        (["ps", CARTPOLE, "--cluster_spec=missing.json"], ["missing.json", "No such file"]),
        (["evaluate"], ["--logdir=FOLDER"]),
        (["evaluate", "--logdir=none"], ["--logdir=", "none", "no config.json"]),
        (["evaluate", "--logdir=none", "--games=0"], ["--games=0", "at least 1"]),
        (["evaluate", "--logdir=none", "--video=x.avi"], ["--video=x.avi", ".gif or .mp4"]),
        (["evaluate", "--batch_size=3"], ["batch_size", "--help"]),
        (["evaluate", "--pretrained=chess"], ["--pretrained=chess", "use pong"]),
        (["evaluate", "--pretrained=pong", "--logdir=none"], ["--pretrained=pong", "--logdir=none", "out"]),
        (["evaluate", "--pretrained=pong", "--overlay=q"], ["--overlay=q", "--video=FILE", "--human"]),
        (["evaluate", "--pretrained=pong", "--video=x.gif", "--video_seconds=0"], ["--video_seconds=0", "more than 0"]),
        (["evaluate", "--pretrained=pong", "--overlay=r"], ["overlay", "none|q"]),
        (["export", "--logdir=none", "--format=onnx"], ["format", "saved_model|agent"]),
        (["export"], ["--logdir=FOLDER"]),
        (["export", "--logdir=none"], ["--logdir=", "none", "no config.json"]),
    ],
    ids=lambda value: " ".join(value)[:60].replace("\n", " ") if value and value[0] in command_line.COMMANDS else "",
)
def test_bad_input_is_refused_with_one_line(capsys, arguments, words):
    line = _refusal(capsys, *arguments)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("content", "flags", "words"),
    [
        ("no json", ["--task_index=0"], ["spec.json is not JSON"]),
        ('{"worker": ["a:1"]}', ["--task_index=0"], ["spec.json", "no ps"]),
        ('{"ps": ["a:1"]}', ["--task_index=0"], ["spec.json", "no worker"]),
        ('{"ps": ["a:1"], "worker": ["a:1"]}', ["--task_index=0"], ["worker 0 repeats", "a:1"]),
        ('{"ps": ["a:1"], "worker": ["a:2"]}', ["--task_index=1"], ["no worker 1", "must be 0"]),
        ('{"ps": ["a:1"], "worker": ["a:2"]}', ["--task_index=-1"], ["no worker -1", "must be 0"]),
        ('{"ps": ["a:1"], "worker": ["a:2"]}', ["--task_index=x"], ["--task_index=x", "whole number"]),
        ('{"ps": ["a:1"], "worker": ["a:2", "a:3"]}', [], ["--task_index is needed", "0 ... 1"]),
    ],
)
def test_a_bad_cluster_spec_is_refused(capsys, tmp_path, content, flags, words):
    (tmp_path / "spec.json").write_text(content)
    line = _refusal(capsys, "worker", CARTPOLE, "--cluster_spec=spec.json", "--logdir=run", *flags)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("job", "flag", "words"),
    [
        ("worker", "--resume", ["--resume: ", "no config.json", "leave --resume to worker 0"]),
        ("worker", "--logdir=file", ["--logdir=", "is a file"]),
        ("ps", "--logdir=file", ["--logdir=", "is a file"]),
    ],
)
def test_every_process_of_a_cluster_looks_at_its_folder_first(capsys, tmp_path, job, flag, words):
    (tmp_path / "file").touch()
    ports = [free_port() for _ in range(4)]
    spec = {job: [f"127.0.0.1:{port}" for port in two] for job, two in (("ps", ports[:2]), ("worker", ports[2:]))}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    line = _refusal(capsys, job, CARTPOLE, "--cluster_spec=spec.json", "--task_index=1", "--logdir=new", flag)
    for word in words:
        assert word in line


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def test_a_tf_config_of_another_job_is_refused(capsys, monkeypatch):
    cluster = {"ps": ["a:1"], "worker": ["a:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}}))
    line = _refusal(capsys, "worker", CARTPOLE)
    assert "TF_CONFIG" in line and "is a ps" in line and "worker" in line


def test_doctor_goes_by_this_machine_where_tf_config_names_no_cluster_of_ours(monkeypatch, capsys):
    from async_dqn.tools.doctor import run

    asked = []
    monkeypatch.setattr(run, "run_doctor", lambda config, spec, *others, **options: asked.append(spec) or 0)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1"]}}))
    assert command_line.main(["doctor", CARTPOLE]) == 0
    assert asked == [None]
    assert capsys.readouterr().out.startswith("warning  TF_CONFIG")


def test_doctor_checks_the_cluster_that_ps_and_worker_would_join(monkeypatch):
    from async_dqn.tools.doctor import run

    asked = []
    monkeypatch.setattr(run, "run_doctor", lambda config, spec, *others, **options: asked.append((config, spec)) or 0)
    cluster = {"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1", "e:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster}))
    assert command_line.main(["doctor", CARTPOLE]) == 0
    ((config, spec),) = asked
    assert spec.to_dict() == cluster and (config.num_ps, config.num_workers) == (2, 3)


@pytest.mark.parametrize("command", ["ps", "worker"])
def test_a_taken_port_is_refused(capsys, tmp_path, command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        spec = {"ps": ["127.0.0.1:1", "127.0.0.1:2"], "worker": ["127.0.0.1:3", "127.0.0.1:4"]}
        spec[command][0] = f"127.0.0.1:{port}"
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        line = _refusal(capsys, command, CARTPOLE, "--cluster_spec=spec.json", "--task_index=0", "--logdir=run")
    assert f"127.0.0.1:{port}" in line and "taken" in line


@pytest.mark.parametrize("command", ["local", "baseline"])
def test_a_folder_that_holds_a_run_is_not_overwritten(capsys, tmp_path, command):
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    run.write_config(Config(), 1)
    before = run.config.read_bytes()
    line = _refusal(capsys, command, CARTPOLE, f"--logdir={run.path}")
    assert f"--logdir={run.path}" in line and "already holds a run" in line and "--resume" in line
    assert run.config.read_bytes() == before and os.listdir(run.path) == ["config.json"]


@pytest.mark.parametrize("command", ["local", "baseline"])
def test_a_file_is_no_run_directory(capsys, tmp_path, command):
    (tmp_path / "file").write_text("")
    line = _refusal(capsys, command, CARTPOLE, "--logdir=file")
    assert "--logdir=" in line and "is a file" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["local", "--batchsize=3"], ["Did you mean: batch_size"]),
        (["baseline", "--env=CartPole-v1", "--network=nips"], ["--network=nips", "use mlp"]),
        (["local", "--env=pong", "--replay_capacity=10_000_000_000"], ["GB"]),
    ],
)
def test_a_real_process_ends_with_2_and_one_clean_line(tmp_path, arguments, words):
    with commands(tmp_path) as start:
        command = start("bad", *arguments, f"--logdir={tmp_path / 'run'}")
        assert command.wait(60) == 2
        assert command.out == ""
        assert len(command.err.splitlines()) == 1, command.err
        assert all(word in command.err for word in words), command.err
        assert processes_naming(tmp_path) == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_usage_names_every_command(capsys, arguments):
    assert command_line.main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for name, command in command_line.COMMANDS.items():
        assert re.search(rf"^ *{name} +{re.escape(command.help)}$", out, re.MULTILINE)


def _listed_flags(capsys, command: str) -> set[str]:
    assert command_line.main([command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "absl" not in out and "async_dqn" not in out  # no flags of its own, no names of modules
    return set(re.findall(r"^ +-[^\s-]*-(?:\[no\])?(\w+):", out, re.MULTILINE))


@pytest.mark.parametrize("command", list(command_line.COMMANDS))
def test_help_lists_the_flags_that_the_command_takes(capsys, command):
    fields = {field.name for field in dataclasses.fields(Config)}
    listed = _listed_flags(capsys, command)
    own = listed - fields
    options = {name for name, *_ in command_line.COMMANDS[command].options}
    if command in TRAINING or command == "doctor":
        cluster = {"cluster_spec", "task_index"} if command in ("ps", "worker") else set()
        assert fields <= listed
        assert own == {"preset", "resume", "logdir", "verbose"} | cluster | options
    else:
        logdir = {"logdir"} if command in ("evaluate", "export") else set()
        assert listed == {"verbose"} | logdir | options


@pytest.mark.parametrize("field", dataclasses.fields(Config), ids=lambda field: field.name)
def test_every_setting_is_a_flag_of_its_type(field):
    text = {bool: "false", str: "1", int: "1e3", float: "0.25"}[field.type]
    expected = {bool: False, str: "1", int: 1_000, float: 0.25}[field.type]
    parsed = parse(["local", f"--{field.name}={text}"], command_line.COMMANDS)
    assert not isinstance(parsed, str)
    explicit = from_flags.explicit_settings(parsed[1].values)
    assert explicit == {field.name: expected}
    assert type(explicit[field.name]) is field.type


@pytest.mark.parametrize("text", ["200000", "200_000", "2e5", "2E+5", "200000.0"])
def test_whole_numbers_may_be_written_in_many_ways(text):
    parsed = parse(["local", f"--replay_capacity={text}"], command_line.COMMANDS)
    assert not isinstance(parsed, str)
    assert from_flags.explicit_settings(parsed[1].values) == {"replay_capacity": 200_000}


@pytest.mark.parametrize(
    ("env", "preset"), [("CartPole-v1", "cartpole"), ("pong", "pong-fast"), ("breakout", "atari-fast")]
)
def test_the_environment_chooses_the_preset(env, preset):
    assert from_flags.auto_preset(env) == preset


TRAIN_A_LITTLE = ["baseline", CARTPOLE, "--total_steps=300", "--warmup_steps=200", "--logdir=run"]


@pytest.mark.parametrize(("arguments", "code"), [(["baseline", "--help"], 1), (TRAIN_A_LITTLE, 0)])
def test_whoever_has_read_enough_is_told_nothing_and_training_goes_on(tmp_path, arguments, code):
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "async_dqn", *arguments]
    with os.fdopen(writes, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert RunDirectory(tmp_path / "run").exit_reason() == ("" if code else "finished")


def test_an_unexpected_error_is_one_line_and_exit_code_1(capsys, monkeypatch):
    def fail(call):
        raise ZeroDivisionError("two\nlines")

    broken = dataclasses.replace(command_line.COMMANDS["baseline"], run=fail)
    monkeypatch.setitem(command_line.COMMANDS, "baseline", broken)
    assert command_line.main(["baseline"]) == 1
    line = capsys.readouterr().err
    assert re.fullmatch(r"async-dqn: ZeroDivisionError at .*test_main.py:\d+: two lines \(--verbose.*\)\n", line)
    with pytest.raises(ZeroDivisionError):
        command_line.main(["baseline", "--verbose"])


@pytest.mark.parametrize(("command", "draws"), [("worker", False), ("ps", False), ("plot", True), ("compare", True)])
def test_only_what_draws_can_load_what_draws(command, draws):
    script = (
        "import sys, async_dqn.__main__ as command_line\n"
        f"sys.argv[1:] = ['{command}']\n"
        "command_line.main = lambda: print(sys.modules.get('matplotlib', 'may be loaded'))\n"
        "command_line.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == ("may be loaded\n" if draws else "None\n"), done.stderr


# A run directory that is a file: whatever else is right, no command gets as far as starting a process.
_FLAG = st.one_of(
    st.builds(
        lambda name, value: f"--{name}={value}",
        st.sampled_from([field.name for field in dataclasses.fields(Config) if field.name != "env"]),
        st.one_of(st.integers().map(str), st.floats().map(str), st.booleans().map(str), st.text(max_size=8)),
    ),
    st.sampled_from(["--resume", "--help", "--nodouble", "--task_index=0", "--cluster_spec=/dev/null", "--", "-", ""]),
    st.text(max_size=12),
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    # doctor would look at the machine, and has much to say on it.
    command=st.one_of(st.sampled_from(sorted(command_line.COMMANDS.keys() - {"doctor"})), st.text(max_size=8)),
    arguments=st.lists(_FLAG, max_size=4),
)
def test_no_flags_whatever_make_it_raise(capsys, tmp_path, command, arguments):
    (tmp_path / "file").write_text("")
    code = command_line.main([command, CARTPOLE, f"--logdir={tmp_path / 'file'}", *arguments])
    err = capsys.readouterr().err
    assert code in (0, 1, 2, 130)
    assert code == 0 or len(err.splitlines()) == 1, err
    assert _files() == ["file"]
