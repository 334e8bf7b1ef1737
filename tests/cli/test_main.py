"""The command line: what each command takes, and how bad input ends."""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from cluster_helpers import START, commands

from async_dqn.agents import table
from async_dqn.agents.a3c import A3C
from async_dqn.agents.dqn import DQN
from async_dqn.agents.paac import PAAC
from async_dqn.agents.ppo import PPO
from async_dqn.cli import from_flags, main, training
from async_dqn.cli.arguments import parse
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.run import checkpoints
from async_dqn.run.csv_log import rows
from async_dqn.run.directory import RunDirectory
from async_dqn.settings.config import Config
from async_dqn.settings.fields import type_of
from async_dqn.system.signals import ASK
from async_dqn.tools import pretrained

COMMANDS = main.COMMANDS
CARTPOLE = "--env=CartPole-v1"


@pytest.fixture(autouse=True)
def _calm(monkeypatch, tmp_path):
    """Commands run in this process, in an empty folder; they leave it as it was and start nothing."""

    def started(*args, **kwargs):
        raise AssertionError("a run was started")

    monkeypatch.setattr(main, "quiet_stderr", contextlib.nullcontext)
    monkeypatch.setattr("async_dqn.roles.local.run_local", started)
    monkeypatch.setattr(RunDirectory, "create", started)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, ASK)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Writes a user's own module to a folder that Python looks in: name, source -> folder."""
    folder = tmp_path.parent / f"{tmp_path.name}-modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def write(name, source):
        (folder / f"{name}.py").write_text(textwrap.dedent(source))
        return folder

    return write


def refusal(capsys, *arguments: str) -> str:
    """The one line that bad input ends with: exit code 2, nothing on standard output, nothing made."""
    before = sorted(os.listdir())
    assert main.main(arguments) == 2
    out, err = capsys.readouterr()
    assert sorted(os.listdir()) == before
    assert out == ""
    assert err.startswith("async-dqn: ") and len(err.splitlines()) == 1, err
    assert "Traceback" not in err and "Error" not in err, err
    return err


def settings_of(*arguments: str) -> Config:
    """The settings that a command line comes to."""
    parsed = parse(arguments, COMMANDS)
    assert not isinstance(parsed, str)
    return from_flags.config(parsed[1].values, {})


def write_run(path, config: Config) -> RunDirectory:
    """A run directory that holds settings and nothing else."""
    run = RunDirectory(path)
    run.path.mkdir()
    run.write_config(config, 1)
    return run


# A refusal names the flag as it was given, and what is listed here.
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ["'trian'", "local", "baseline", "evaluate"]),
        (["--env=pong"], ["--env=pong", "local"]),
        (["local", "pong"], ["'pong'", "--name=value"]),
        (["local", "--batchsize=3"], ["batchsize", "batch_size"]),
        (["evaluate", "--batch_size=3"], ["batch_size", "--help"]),
        (["local", CARTPOLE, "--batch_size=1.5"], ["whole number"]),
        (["local", CARTPOLE, "--batch_size=inf"], ["whole number"]),
        (["local", CARTPOLE, "--batch_size="], ["whole number"]),
        (["local", CARTPOLE, "--batch_size"], []),
        (["local", CARTPOLE, "--batch_size=0"], ["at least 1", "65536"]),
        (["local", CARTPOLE, "--discount=1.5"], ["at least 0", "at most 1"]),
        (["local", CARTPOLE, "--stop_at_return=nan"], ["must be a finite number or inf"]),
        (["local", CARTPOLE, "--reward_scale=inf"], ["must be a finite number"]),
        (["local", CARTPOLE, "--checkpoint_period=inf"], ["must be a finite number of at least 1"]),
        (["local", "--agent=ppo", CARTPOLE, "--final_entropy_cost=-0.5"], ["must be -1 (constant) or at least 0"]),
        (["baseline", "--agent=ppo", CARTPOLE, "--batch_size=1"], ["at least 2"]),
        (["baseline", "--agent=dyna_q", CARTPOLE, "--discount=0"], ["--discount=0", "above 0"]),
        (
            ["local", "--agent=a3c", CARTPOLE, "--t_max=1", "--envs_per_worker=1", "--normalize_advantages"],
            ["--normalize_advantages=True", "single step"],
        ),
        (
            ["local", CARTPOLE, "--replay=global", "--overlap_steps"],
            ["--overlap_steps=True", "--replay=global", "leave it out"],
        ),
        (
            ["baseline", CARTPOLE, "--frame_stack=200", "--warmup_steps=100", "--replay_capacity=800"],
            ["--replay_capacity=800", "leaves 200", "at least 210"],
        ),
        (["baseline", CARTPOLE, "--discount=nan"], ["--discount=nan", "at least 0"]),
        (["local", CARTPOLE, "--learning_rate=fast"], ["a number"]),
        (["local", CARTPOLE, "--nodouble=3"], []),
        (["local", CARTPOLE, "--double=perhaps"], ["true or false"]),
        (["evaluate", "--human=perhaps"], ["true or false"]),
        (["local", CARTPOLE, "--logdir="], ["folder"]),
        (["local", CARTPOLE, "--num_workers=0"], ["at least 1"]),
        (["local", CARTPOLE, "--agent=paac", "--num_workers=0"], ["--num_workers=0", "at least 1"]),
        (["local", CARTPOLE, "--total_steps=1e30"], []),
        (["local", CARTPOLE, "--ps_deadline=inf"], []),
        (["local", CARTPOLE, "--max_restarts=-1"], ["0 to 1000"]),
        (["local", CARTPOLE, "--gpus=a"], ["auto", "none"]),
        (["local", CARTPOLE, "--gpus=7"], ["GPUs may be used here"]),
        (["local", CARTPOLE, "--local_steps=0", "--averages=shared"], ["--local_steps"]),
        (["local", CARTPOLE, "--num_ps=0"], ["--store=ps", "at least 1"]),
        (["local", CARTPOLE, "--store=shared_memory", "--num_ps=1"], ["--num_ps=1", "no parameter servers"]),
        (["local", CARTPOLE, "--store=shared_memory", "--private_network=always"], ["--store=shared_memory"]),
        (["local", CARTPOLE, "--store=shared_memory", "--local_steps=4"], ["--local_steps=4", "must be 0"]),
        (["local", CARTPOLE, "--store=shared_memory", "--update_mode=async"], ["hogwild", "locked"]),
        (["local", CARTPOLE, "--update_mode=hogwild"], ["--store=ps", "async"]),
        (["local", CARTPOLE, "--update_mode=sync", "--local_steps=4"], ["--local_steps=4", "must be 0"]),
        (["local", CARTPOLE, "--update_mode=accumulate", "--accumulate=2", "--local_steps=1"], ["must be 0"]),
        (["local", CARTPOLE, "--update_mode=accumulate"], ["--accumulate", "at least 1"]),
        (["local", CARTPOLE, "--update_mode=accumulate", "--accumulate=0"], ["--accumulate", "at least 1"]),
        (["local", CARTPOLE, "--accumulate=2"], ["--accumulate=2", "--update_mode=accumulate"]),
        (["local", CARTPOLE, "--update_mode=sync", "--accumulate=2"], ["--accumulate=2", "--update_mode=accumulate"]),
        (["local", CARTPOLE, "--backup_workers=1"], ["--backup_workers=1", "--update_mode=sync"]),
        (["local", CARTPOLE, "--update_mode=sync", "--backup_workers=2"], ["--backup_workers=2", "--num_workers=2"]),
        (["local", CARTPOLE, "--update_mode=sync", "--num_workers=1", "--backup_workers=1"], ["--num_workers=1"]),
        (["local", CARTPOLE, "--update_mode=sync", "--overlap"], ["--overlap", "sync"]),
        (["local", CARTPOLE, "--update_mode=sync", "--max_staleness=3"], ["--max_staleness=3", "sync"]),
        (["baseline", CARTPOLE, "--update_mode=sync"], ["local", "baseline"]),
        (["baseline", CARTPOLE, "--accumulate=2"], ["--accumulate=2", "local", "baseline"]),
        (["baseline", CARTPOLE, "--store=shared_memory"], ["local", "baseline"]),
        (["baseline", CARTPOLE, "--update_mode=locked"], ["local", "baseline"]),
        (["ps", CARTPOLE, "--store=shared_memory"], ["local", "ps"]),
        (["worker", CARTPOLE, "--store=shared_memory"], ["local", "worker"]),
        (["baseline", CARTPOLE, "--replay=global"], ["--replay=global", "local", "baseline"]),
        (["baseline", CARTPOLE, "--agent=ppo", "--parallelism=data"], ["--parallelism=data", "local", "baseline"]),
        (["local", CARTPOLE, "--parallelism=data"], ["--parallelism", "ppo", "a3c"]),
        (["local", CARTPOLE, "--agent=ppo", "--replay=global"], ["--replay", "dqn"]),
        (["local", CARTPOLE, "--replay=global", "--update_mode=sync"], ["--update_mode=sync"]),
        (["local", CARTPOLE, "--replay_capacity=50"], ["2 workers", "at least"]),
        (["local", "--env=Pongg"], ["pong", "CartPole-v1"]),
        (["local", "--resume", f"--logdir=/tmp/{'a' * 300}"], ["too long"]),
        (["local", CARTPOLE, "--resume", "--logdir=/tmp/none", "--preset=cartpole"], ["--preset=cartpole", "--resume"]),
        (["baseline", CARTPOLE, "--resume", "--logdir=/tmp/none", "--preset=x"], ["--preset=x", "--resume"]),
        (["compare", "--env=pong", "--agent=dyna_q"], ["vectors"]),
        (["local", "--env="], ["Atari"]),
        (["local", "--env=Pendulum-v1"], ["--env=Pendulum-v1", "continuous", "--agent=dqn", "ppo can"]),
        (["local", "--preset=cartpol"], ["cartpole", "nature"]),
        (["local", "--agent=ppo", "--preset=nature"], ["cartpole", "ppo"]),
        (["local", "--network=nip"], ["nips", "nature", "mlp"]),
        (["local", "--protocol=clasic"], ["classic", "machado"]),
        (["baseline", CARTPOLE, "--network=nature"], ["CartPole-v1", "mlp"]),
        (["baseline", "--env=pong", "--network=mlp"], ["nips", "nature"]),
        (["local", CARTPOLE, "--agent=ppo", "--batch_size=10_000"], ["--rollout_length", "--envs_per_worker"]),
        (["local", CARTPOLE, "--agent=paac", "--update_mode=async"], ["--update_mode=async", "--agent=paac", "sync"]),
        (["baseline", "--env=pong", "--replay_capacity=10_000_000_000"], ["GB"]),
        (["status", f"/none/{'a' * 90}/{'b' * 90}"], ["holds no run"]),
        (["local", CARTPOLE, "--resume"], ["--logdir"]),
        (["local", CARTPOLE, "--resume", "--logdir=none"], ["none", "config.json"]),
        (["baseline", CARTPOLE, "--logdir=" + "a" * 300], []),
        (["evaluate"], ["--logdir=FOLDER"]),
        (["evaluate", "--logdir=none"], ["none", "config.json"]),
        (["evaluate", "--logdir=none", "--games=0"], ["1 to 1000000"]),
        (["evaluate", "--logdir=none", "--video=x.avi"], [".gif", ".mp4"]),
        (["evaluate", "--pretrained=chess"], ["pong"]),
        (["evaluate", "--logdir=none", "--pretrained=pong"], ["--logdir=none"]),
        (["evaluate", "--pretrained=pong", "--overlay=q"], ["--overlay=q", "--video=FILE", "--human"]),
        (["evaluate", "--pretrained=pong", "--overlay=policy"], ["--overlay=policy", "--video=FILE", "--human"]),
        (["evaluate", "--pretrained=pong", "--video=x.gif", "--video_seconds=0"], ["at least 0.1"]),
        (["evaluate", "--pretrained=pong", "--games=1e30"], ["--games=1e30", "1 to 1000000"]),
        (["evaluate", "--pretrained=pong", "--max_steps=1e12"], ["--max_steps=1e12", "1 to 100000000"]),
        (["evaluate", "--pretrained=pong", "--seed=-1"], ["--seed=-1", "0 to"]),
        (["evaluate", "--pretrained=pong", "--overlay=r"], ["none|q|policy"]),
        (["export", "--logdir=none", "--format=onnx"], ["saved_model|agent"]),
        (["export"], ["--logdir=FOLDER"]),
    ],
    ids=lambda value: " ".join(value)[:60] if value and value[0] in COMMANDS else "",
)
def test_bad_input_is_refused_with_one_line(capsys, arguments, words):
    line = refusal(capsys, *arguments)
    named = arguments[-1].partition("=")[0].lstrip("-") if len(arguments) > 1 else ""
    for word in (named.removeprefix("no"), *words):
        assert word in line


@pytest.mark.parametrize("command", ["local", "baseline", "worker", "ps", "doctor", "compare"])
@pytest.mark.parametrize("flag", ["--learning_rate=abc", "--learning_rate=-1", "--no_such_flag=3", "--agent=nosuch"])
def test_every_training_command_refuses_bad_flags(capsys, monkeypatch, tmp_path, command, flag):
    (tmp_path / "spec.json").write_text('{"ps": ["localhost:1023"], "worker": ["localhost:1022"]}')
    cluster = ["--cluster_spec=spec.json", "--task_index=0"] if command in ("worker", "ps") else []
    monkeypatch.setattr(from_flags, "check_port", lambda address: None)
    assert flag.partition("=")[0].lstrip("-") in refusal(capsys, command, CARTPOLE, *cluster, flag)


@pytest.mark.parametrize(
    ("arguments", "flag", "agent", "owners"),
    [
        (["--agent=ppo", "--dueling"], "--dueling", "ppo", "dqn"),
        (["--agent=ppo", "--nodueling"], "--nodueling", "ppo", "dqn"),
        (["--epsilon_final=0.1", "--agent", "ppo"], "--epsilon_final", "ppo", "dqn"),
        (["--agent=dqn", "--clip=0.2"], "--clip", "dqn", "ppo"),
        (["--clip=0.2"], "--clip", "dqn", "ppo"),  # the agent that is not named is dqn
    ],
)
def test_a_flag_of_another_agent_is_named_with_the_agents_that_have_it(capsys, arguments, flag, agent, owners):
    line = refusal(capsys, "baseline", CARTPOLE, *arguments)
    assert flag in line and f"--agent={agent}" in line and owners in line


def test_an_agent_that_cannot_be_used_is_named(capsys, modules):
    modules("raises", "raise ZeroDivisionError('two\\nlines')")
    for agent, words in [
        ("nosuch", ["dqn", "ppo", "package.module:NAME"]),
        ("dqnn", ["dqn?"]),
        ("", ["dqn", "ppo"]),
        ("two\nlines", ["dqn", "ppo"]),
        ("json:Nope", ["json", "Nope"]),
        ("json:JSONDecoder", ["json", "JSONDecoder"]),  # no agent
        ("no_such_module:X", ["no_such_module", "imported"]),
        ("raises:X", ["raises", "two lines"]),
        (":", []),
        ("json:", []),
    ]:
        line = refusal(capsys, "baseline", CARTPOLE, f"--agent={agent}")
        for word in (f"--agent={' '.join(agent.split())}", *words):
            assert word in line


@pytest.mark.parametrize("resume", ["--resume", "-resume", "--resume=true"])
def test_a_resumed_run_keeps_its_agent_and_its_settings(capsys, tmp_path, resume):
    saved = table.make_config("ppo", "cartpole", {"env": "CartPole-v1", "entropy_cost": 0.5})
    write_run(tmp_path / "run", saved)
    assert settings_of("baseline", "--logdir=run", resume) == saved
    assert settings_of("baseline", resume, "--logdir", "run", "--clip=0.3") == dataclasses.replace(saved, clip=0.3)
    line = refusal(capsys, "baseline", "--logdir=run", resume, "--agent=dqn")
    assert "--agent=dqn" in line and "ppo" in line
    line = refusal(capsys, "baseline", "--logdir=run", resume, "--dueling")
    assert "--dueling" in line and "--agent=ppo" in line
    for name, value, before in (
        ("env", "Acrobot-v1", "CartPole-v1"),
        ("protocol", "machado", "classic"),
        ("frame_skip", 2, 0),
    ):
        line = refusal(capsys, "baseline", "--logdir=run", resume, f"--{name}={value}")
        assert f"--{name}={value}: " in line and f"a run with --{name}={before}, " in line
    assert settings_of("baseline", "--env=CartPole-v1", "--logdir=run", "--resume=false").agent == "dqn"


def test_a_replay_keeps_the_units_of_its_rewards(capsys, tmp_path):
    for agent in ("dqn", "ppo"):
        write_run(tmp_path / agent, table.make_config(agent, "cartpole", {"env": "CartPole-v1"}))
    line = refusal(capsys, "baseline", "--logdir=dqn", "--resume", "--reward_scale=0.5")
    assert "--reward_scale=0.5: " in line and "a run with --reward_scale=1.0, " in line
    assert settings_of("baseline", "--logdir=ppo", "--resume", "--reward_scale=0.5").reward_scale == 0.5


def test_a_run_resumed_with_more_workers_has_what_a_preset_has_for_so_many(tmp_path):
    def resumed(run, *flags):
        config = settings_of("local", f"--logdir={run}", "--resume", *flags)
        return config.local_steps, config.averages

    write_run(tmp_path / "two", table.make_config("dqn", "cartpole", {"env": "CartPole-v1"}))
    assert resumed("two") == (4, "own")
    assert resumed("two", "--num_workers=8") == (1, "shared")
    assert resumed("two", "--num_workers=8", "--local_steps=3") == (3, "shared")
    chosen = {"env": "CartPole-v1", "num_workers": 4, "local_steps": 16, "averages": "own"}
    write_run(tmp_path / "four", table.make_config("dqn", "cartpole", chosen))
    assert resumed("four") == resumed("four", "--num_workers=8") == (16, "own")


def test_an_update_of_paac_is_of_as_many_environments_after_a_resume_with_other_workers(tmp_path):
    write_run(tmp_path / "run", table.make_config("paac", "cartpole", {"env": "CartPole-v1", "num_workers": 2}))
    before = settings_of("local", "--logdir=run", "--resume").envs_per_worker
    assert before > 1
    for number, expected in ((1, 2 * before), (4, before // 2)):
        assert settings_of("local", "--logdir=run", "--resume", f"--num_workers={number}").envs_per_worker == expected
    given = settings_of("local", "--logdir=run", "--resume", "--num_workers=4", "--envs_per_worker=3")
    assert given.envs_per_worker == 3


def test_a_run_resumed_in_another_way_leaves_behind_what_does_not_go_with_it(capsys, tmp_path):
    def resumed(*flags):
        config = settings_of("local", "--logdir=run", "--resume", *flags)
        return config.overlap, config.max_staleness, config.wire_dtype

    chosen = {"overlap": True, "max_staleness": 5, "wire_dtype": "bfloat16"}
    write_run(tmp_path / "run", table.make_config("dqn", "cartpole", {"env": "CartPole-v1", "local_steps": 0} | chosen))
    assert resumed() == tuple(chosen.values())
    assert resumed("--update_mode=sync") == (False, 0, "bfloat16")
    assert resumed("--store=shared_memory") == (False, 5, "float32")
    assert resumed("--store=shared_memory", "--update_mode=locked") == (True, 5, "float32")
    line = refusal(capsys, "local", "--logdir=run", "--resume", "--store=shared_memory", "--overlap")
    assert "--overlap=True" in line and "hogwild" in line


def test_the_commands_that_a_run_ends_with_can_be_pasted(capsys, tmp_path):
    run = RunDirectory(tmp_path / "my run")
    training._say_how_to_watch(run)  # there is nothing to see yet
    run.checkpoints.mkdir(parents=True)
    training._say_how_to_watch(run)
    checkpoints.save(run.checkpoints, 1, {}, {}, keep=1)
    training._say_how_to_watch(run)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        program, *arguments = shlex.split(line.partition(":")[2])
        assert Path(program).parent == Path(sys.executable).parent and f"--logdir={run.path}" in arguments


def test_a_run_of_format_1_is_read_but_not_resumed(capsys, tmp_path):
    shipped = json.loads(pretrained.find("pong").config.read_text())
    assert "format" not in shipped
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(shipped))
    config = RunDirectory(tmp_path / "run").read_config()
    assert isinstance(config, DQN.Config) and config.env == "pong"
    line = refusal(capsys, "baseline", "--resume", "--logdir=run")
    assert "--resume" in line and "format 1" in line and str(tmp_path / "run") in line


def test_a_run_of_a_format_to_come_is_refused(capsys, tmp_path):
    run = write_run(tmp_path / "run", Config())
    run.config.write_text(json.dumps(json.loads(run.config.read_text()) | {"format": 99}))
    for command in ("baseline", "local", "evaluate", "export"):
        resume = ["--resume"] if COMMANDS[command].trains else []
        line = refusal(capsys, command, *resume, "--logdir=run")
        assert "format 99" in line and str(run.path) in line


@pytest.mark.parametrize(
    ("content", "flags", "words"),
    [
        ("no json", ["--task_index=0"], ["spec.json", "JSON"]),
        ('{"worker": ["a:1"]}', ["--task_index=0"], ["spec.json", "no ps"]),
        ('{"ps": ["a:1"]}', ["--task_index=0"], ["spec.json", "no worker"]),
        ('{"ps": ["a:1"], "worker": ["a:1"]}', ["--task_index=0"], ["worker 0", "a:1"]),
        ('{"ps": ["a:1"], "worker": ["a:2"]}', ["--task_index=1"], ["worker 1"]),
        ('{"ps": ["a:1"], "worker": ["a:2"]}', ["--task_index=-1"], ["worker -1"]),
        ('{"ps": ["a:1"], "worker": ["a:2"]}', ["--task_index=x"], ["--task_index=x"]),
        ('{"ps": ["a:1"], "worker": ["a:2", "a:3"]}', [], ["--task_index", "0 ... 1"]),
    ],
)
def test_a_bad_cluster_spec_is_refused(capsys, tmp_path, content, flags, words):
    (tmp_path / "spec.json").write_text(content)
    line = refusal(capsys, "worker", CARTPOLE, "--cluster_spec=spec.json", "--logdir=run", *flags)
    for word in words:
        assert word in line


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_without_a_cluster_spec_there_is_no_cluster(capsys, job):
    line = refusal(capsys, job, CARTPOLE, "--task_index=0")
    assert "--cluster_spec=FILE" in line and "TF_CONFIG" in line
    assert "missing.json" in refusal(capsys, job, CARTPOLE, "--task_index=0", "--cluster_spec=missing.json")


@pytest.mark.parametrize(
    ("job", "flag", "words"),
    [
        ("worker", "--resume", ["--resume", "config.json", "worker 0"]),
        ("worker", "--logdir=file", ["--logdir=", "is a file"]),
        ("ps", "--logdir=file", ["--logdir=", "is a file"]),
    ],
)
def test_every_process_of_a_cluster_looks_at_its_folder_first(capsys, tmp_path, job, flag, words):
    (tmp_path / "file").touch()
    (tmp_path / "spec.json").write_text(json.dumps(ClusterSpec.local(2, 2).to_dict()))
    line = refusal(capsys, job, CARTPOLE, "--cluster_spec=spec.json", "--task_index=1", "--logdir=new", flag)
    for word in words:
        assert word in line


@pytest.mark.parametrize("command", ["ps", "worker"])
@pytest.mark.parametrize("flag", ["--num_ps=2", "--num_workers=2"])
def test_sizes_that_are_not_those_of_the_cluster_are_refused(capsys, tmp_path, command, flag):
    (tmp_path / "spec.json").write_text(json.dumps(ClusterSpec.local(1, 1).to_dict()))
    line = refusal(capsys, command, CARTPOLE, "--cluster_spec=spec.json", "--task_index=0", "--logdir=new", flag)
    assert f"{flag}: the cluster has 1" in line


@pytest.mark.parametrize("command", ["ps", "worker"])
def test_a_taken_port_is_refused(capsys, tmp_path, command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        spec = {"ps": ["127.0.0.1:1", "127.0.0.1:2"], "worker": ["127.0.0.1:3", "127.0.0.1:4"]}
        spec[command][0] = f"127.0.0.1:{port}"
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        line = refusal(capsys, command, CARTPOLE, "--cluster_spec=spec.json", "--task_index=0", "--logdir=run")
    assert f"127.0.0.1:{port}" in line and "taken" in line


def test_a_tf_config_of_another_job_is_refused(capsys, monkeypatch):
    cluster = {"ps": ["a:1"], "worker": ["a:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}}))
    line = refusal(capsys, "worker", CARTPOLE)
    assert "TF_CONFIG" in line and "ps" in line and "worker" in line


@pytest.mark.parametrize(
    ("cluster", "is_ours"),
    [({"worker": ["a:1"]}, False), ({"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1", "e:1"]}, True)],
)
def test_doctor_checks_the_cluster_of_tf_config_or_else_this_machine(monkeypatch, capsys, cluster, is_ours):
    from async_dqn.tools.doctor import run

    asked = []
    monkeypatch.setattr(run, "run_doctor", lambda config, spec, *others, **options: asked.append((config, spec)) or 0)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster}))
    assert main.main(["doctor", CARTPOLE]) == 0
    ((config, spec),) = asked
    assert ("TF_CONFIG" in capsys.readouterr().out) == (spec is None) == (not is_ours)
    if is_ours:
        assert spec.to_dict() == cluster and (config.num_ps, config.num_workers) == (2, 3)


@pytest.mark.parametrize("command", ["local", "baseline"])
def test_a_folder_that_holds_a_run_is_not_overwritten(capsys, tmp_path, command):
    run = write_run(tmp_path / "run", Config())
    before = run.config.read_bytes()
    line = refusal(capsys, command, CARTPOLE, f"--logdir={run.path}")
    assert f"--logdir={run.path}" in line and "--resume" in line
    assert run.config.read_bytes() == before and os.listdir(run.path) == ["config.json"]
    (tmp_path / "file").write_text("")
    assert "--logdir=" in refusal(capsys, command, CARTPOLE, "--logdir=file")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_usage_names_every_command(capsys, arguments):
    assert main.main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for name, command in COMMANDS.items():
        assert re.search(rf"^ *{name} +{re.escape(command.help)}$", out, re.MULTILINE)


def listed_flags(capsys, *arguments: str) -> set[str]:
    """The flags in the help of a command."""
    assert main.main([*arguments, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "absl" not in out and "async_dqn" not in out  # no flags of its own, no names of modules
    return set(re.findall(r"^ +-[^\s-]*-(?:\[no\])?(\w+):", out, re.MULTILINE))


def settings_flags(cls) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lists_the_flags_that_the_command_takes(capsys, name):
    command = COMMANDS[name]
    expected = {"verbose"} | {option for option, *_ in command.options}
    if command.logdir:
        expected.add("logdir")
    if command.joins_cluster:
        expected |= {"cluster_spec", "task_index"}
    if command.trains:
        expected |= settings_flags(DQN.Config) | {"preset", "resume"}
    assert listed_flags(capsys, name) == expected


@pytest.mark.parametrize(
    ("agent", "has", "lacks"), [("ppo", "clip", "epsilon_final"), ("dqn", "epsilon_final", "clip")]
)
def test_help_lists_the_flags_of_the_chosen_agent(capsys, agent, has, lacks):
    listed = listed_flags(capsys, "baseline", f"--agent={agent}")
    assert has in listed and lacks not in listed
    assert settings_flags(table.find(agent).Config) <= listed


@pytest.mark.parametrize(
    ("arguments", "preset", "n_step"),
    [([], "pong-fast", 10), ([CARTPOLE], "cartpole", 3), (["--preset=nature"], "nature", 1), (["--env=none"], "", 3)],
)
def test_help_gives_the_values_that_a_run_would_have(capsys, arguments, preset, n_step):
    assert main.main(["local", *arguments, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (f"in [ ] their values with --preset={preset}:" in out) == bool(preset)
    assert re.search(r"--n_step: [^\[]*\[(\d+)\]", out)[1] == str(n_step)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["baseline", "--agent=paac"], {"envs_per_worker": 16}),
        (["local", "--agent=paac"], {"envs_per_worker": 8}),
        (["local", "--agent=paac", "--num_workers=4"], {"envs_per_worker": 4}),
        (["local", "--num_workers=3"], {"local_steps": 1, "averages": "shared"}),
        (["local", "--num_workers=x"], {"local_steps": 4, "averages": "own"}),
    ],
)
def test_help_gives_what_a_preset_has_for_the_workers_that_there_will_be(capsys, arguments, shown):
    assert main.main([*arguments, CARTPOLE, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    found = {name: re.search(rf"--{name}: [^\[]*\[([^]]*)\]", out)[1] for name in shown}
    assert found == {name: str(value) for name, value in shown.items()}


def test_the_version_is_said(capsys):
    assert main.main(["--version"]) == 0
    assert re.fullmatch(r"async-dqn [\d.]+, tensorflow [\d.]+, .*, python 3[\d.]+\n", capsys.readouterr().out)


def test_a_missing_package_is_one_line():
    program = "import sys; sys.modules['psutil'] = None; import async_dqn.__main__ as program; program.run()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("async-dqn: ") and "psutil" in done.stderr and "remove .venv" in done.stderr


@pytest.mark.parametrize("agent", table.TABLE)
def test_every_setting_is_a_flag_of_its_type(agent):
    for field in dataclasses.fields(table.find(agent).Config):
        text = {bool: "false", str: "1", int: "1e3", float: "0.25"}[type_of(field)]
        expected = {bool: False, str: "1", int: 1_000, float: 0.25}[type_of(field)]
        if field.name == "agent":
            text = expected = agent
        parsed = parse(["local", f"--agent={agent}", f"--{field.name}={text}"], COMMANDS)
        assert not isinstance(parsed, str)
        explicit = from_flags.explicit_settings(parsed[1].values)
        assert explicit == {"agent": agent} | {field.name: expected}
        assert type(explicit[field.name]) is type_of(field)


@pytest.mark.parametrize("text", ["200000", "200_000", "2e5", "2E+5", "200000.0"])
def test_whole_numbers_may_be_written_in_many_ways(text):
    assert settings_of("local", CARTPOLE, f"--total_steps={text}").total_steps == 200_000


@pytest.mark.parametrize(
    ("agent", "env", "preset"),
    [
        (DQN, "CartPole-v1", "cartpole"),
        (DQN, "pong", "pong-fast"),
        (DQN, "breakout", "atari-fast"),
        (PPO, "CartPole-v1", "cartpole"),
        (PPO, "pong", "pong"),
        (PPO, "breakout", "atari"),
        (A3C, "CartPole-v1", "cartpole"),
        (A3C, "pong", "pong"),
        (A3C, "breakout", "atari"),
        (PAAC, "pong", "pong"),
    ],
)
def test_agent_and_environment_choose_the_preset(agent, env, preset):
    name = next(name for name in table.TABLE if table.find(name) is agent)
    assert table.auto_preset(name, {"env": env}) == preset
    expected = table.make_config(name, preset, {"env": env, "seed": 3})
    assert settings_of("local", f"--agent={name}", f"--env={env}", "--seed=3") == expected


def test_an_unexpected_error_is_one_line_and_exit_code_1(capsys, monkeypatch):
    def fail(call):
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setitem(COMMANDS, "baseline", dataclasses.replace(COMMANDS["baseline"], run=fail))
    assert main.main(["baseline"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "ZeroDivisionError" in line and "test_main.py" in line and "two lines" in line
    assert main.main(["baseline", "--verbose"]) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "ZeroDivisionError: two\nlines" in shown


def test_an_error_in_a_package_is_shown_where_it_was_called(capsys, monkeypatch):
    def fail(call):
        np.linalg.cholesky(-np.eye(2))

    monkeypatch.setitem(COMMANDS, "baseline", dataclasses.replace(COMMANDS["baseline"], run=fail))
    assert main.main(["baseline"]) == 1
    assert "test_main.py" in capsys.readouterr().err


# Runs the program as `python -m async_dqn` does, and says at its end what it has loaded.
LOADED = """
import os, runpy, sys
sys.path.insert(0, sys.argv.pop(1))

def end(code):
    names = {"tensorflow": "tensorflow.python", "matplotlib": "matplotlib.figure"}
    print("\\nloaded", code, *(name for name, module in names.items() if module in sys.modules), flush=True)
    exit_now(code)

exit_now, os._exit = os._exit, end
runpy.run_module("async_dqn", run_name="__main__", alter_sys=True)
"""
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def loaded(*arguments: str) -> list[str]:
    """The exit code of a real process, and which of the packages that take long to import it has imported."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, ROOT, *arguments], capture_output=True, text=True, timeout=240, check=False
    )
    return done.stdout.splitlines()[-1].split()[1:]


def test_the_exit_code_is_what_it_is_where_nothing_can_be_said():
    command = [sys.executable, "-m", "async_dqn", "baseline", "--no_such_flag"]
    with open("/dev/full", "wb") as full:
        assert subprocess.run(command, stderr=full, cwd=ROOT, timeout=240).returncode == 2


def test_what_needs_no_tensorflow_does_not_import_it(tmp_path):
    write_run(tmp_path / "run", Config())
    assert loaded("local", "--help") == ["0"]
    assert loaded("baseline", "--agent=ppo", "--help") == ["0"]
    assert loaded("status", "run") == ["0"]
    assert loaded("local", CARTPOLE, "--batch_size=0") == ["2"]
    assert loaded("baseline", CARTPOLE, "--agent=ppo", "--dueling") == ["2"]


LITTLE = ["--total_steps=300", "--log_period=0.1", "--threads=1"]


LAUNCHED = """
import sys
import async_dqn.__main__
from async_dqn.agents import table
from async_dqn.cli import from_flags
from async_dqn.run import build

for name in table.TABLE:
    for env in ["CartPole-v1", "pong"]:
        if (name, env) != ("dyna_q", "pong"):
            build.make_agent(table.make_config(name, "auto", {"env": env}))
assert "tensorflow.python" not in sys.modules
from tensorflow.python.util import _pywrap_util_port

assert _pywrap_util_port.IsMklEnabled(), "oneDNN does not compute the convolutions"
"""


def test_the_launcher_of_a_cluster_makes_any_agent_without_tensorflow():
    environ = os.environ | {"PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""}
    environ.pop("TF_ENABLE_ONEDNN_OPTS", None)  # that an agent of another test has set
    subprocess.run([sys.executable, "-c", LAUNCHED], env=environ, timeout=240, check=True)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("store", ["ps", "shared_memory"])
def test_the_launcher_of_a_cluster_leaves_tensorflow_to_its_processes(tmp_path, store):
    sizes = ["--num_workers=1", f"--num_ps={int(store == 'ps')}"]
    assert loaded("local", CARTPOLE, *LITTLE, *sizes, f"--store={store}", "--logdir=run") == ["0"]
    assert RunDirectory(tmp_path / "run").exit_reason() == "finished"


@pytest.mark.slow
def test_training_imports_tensorflow_and_not_what_draws(tmp_path):
    assert loaded("baseline", CARTPOLE, *LITTLE, "--logdir=run") == ["0", "tensorflow"]
    assert RunDirectory(tmp_path / "run").exit_reason() == "finished"


@pytest.mark.slow
def test_training_goes_on_though_nobody_reads_its_output(tmp_path):
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "async_dqn", "baseline", CARTPOLE, *LITTLE, "--logdir=run"]
    with os.fdopen(writes, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert RunDirectory(tmp_path / "run").exit_reason() == "finished"


@pytest.mark.slow
def test_training_goes_on_though_its_standard_streams_are_closed(tmp_path):
    command = f"exec {sys.executable} -m async_dqn baseline {CARTPOLE} {' '.join(LITTLE)} --logdir=run <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], timeout=240, check=False).returncode == 0
    assert RunDirectory(tmp_path / "run").exit_reason() == "finished"


@pytest.mark.slow
def test_an_environment_may_import_what_training_does_without(tmp_path):
    (tmp_path / "draws.py").write_text(
        "import matplotlib.figure, gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Drawn-v0', CartPoleEnv, max_episode_steps=500)\n"
    )
    assert loaded("baseline", "--env=draws:Drawn-v0", "--preset=cartpole", *LITTLE, "--logdir=run") == [
        "0",
        "tensorflow",
        "matplotlib",
    ]


OWN_AGENT = """
    from __future__ import annotations

    import dataclasses

    from async_dqn.agents.ppo import PPO, PPOConfig
    from async_dqn.settings.fields import setting


    @dataclasses.dataclass(frozen=True)
    class TinyConfig(PPOConfig):
        bonus: float = setting(0.5, "A setting of its own.", minimum=0)


    class Tiny(PPO):
        Config = TinyConfig
        presets = {"tiny": PPO.presets["cartpole"]}
        metrics = ("bonus", "entropy")

        @classmethod
        def default_preset(cls, spec):
            return "tiny"

        def loss(self, params, targets, batch, seed):
            loss = super().loss(params, targets, batch, seed)
            return loss._replace(statistics={"entropy": loss.statistics["entropy"]})

        def schedules(self, step):
            return {"bonus": self.config.bonus * 2}
"""


@pytest.mark.parametrize(
    ("module", "code", "wrong", "named"),
    [
        (
            "plain_field",
            'setting(0.5, "A setting of its own.", minimum=0)',
            "0.5",
            "its setting bonus must be made by setting(",
        ),
        ("bad_preset", 'PPO.presets["cartpole"]}', '{"bonnus": 1.0}}', "its preset tiny sets bonnus"),
    ],
)
def test_what_is_wrong_with_an_agent_of_the_user_s_own_is_told(module, code, wrong, named, capsys, modules):
    assert code in OWN_AGENT
    modules(module, OWN_AGENT.replace(code, wrong))
    assert named in refusal(capsys, "baseline", f"--agent={module}:Tiny", CARTPOLE)


def test_a_module_that_is_not_found_may_lie_beside_the_path(capsys):
    for flag in ("--agent=no_such_module:A", "--env=no_such_module:E-v0", "--wrapper=no_such_module:f"):
        line = refusal(capsys, "baseline", *[CARTPOLE] * flag.startswith("--wrapper"), flag)
        assert "no_such_module" in line and "PYTHONPATH?" in line


@pytest.mark.slow
def test_an_agent_of_the_user_s_own_trains_is_resumed_and_plays(capsys, tmp_path, modules):
    environ = {"PYTHONPATH": os.pathsep.join([ROOT, str(modules("own_agents", OWN_AGENT))])}
    agent = "--agent=own_agents:Tiny"
    assert "bonus" in listed_flags(capsys, "baseline", agent)
    assert "--bonus=-1" in refusal(capsys, "baseline", agent, CARTPOLE, "--bonus=-1")
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        for name, arguments in [
            ("first", ["baseline", agent, CARTPOLE, "--bonus=2", "--total_steps=600", "--log_period=0.1"]),
            ("second", ["baseline", "--resume", "--total_steps=900"]),
            ("evaluate", ["evaluate", "--games=1"]),
        ]:
            command = start(name, *arguments, f"--logdir={run.path}", environ=environ)
            assert command.wait(2 * START) == 0, command.out + command.err
    config = run.read_config()
    assert (config.agent, type(config).__name__, config.total_steps) == ("own_agents:Tiny", "TinyConfig", 900)
    written = rows(run.metrics)
    assert {row["bonus"] for row in written} == {"4"}
    assert any(row["entropy"] for row in written) and "clip_share" not in written[0]
    checkpoint, _ = checkpoints.load_newest(run.checkpoints)
    assert checkpoint is not None and checkpoint.number == 900
    assert {"store/policy_value/online", "store/policy_value/slot/m", "store/counter/env_steps"} <= set(
        checkpoint.arrays
    )
    assert not any("target" in name.split("/") for name in checkpoint.arrays)
    assert np.all(np.isfinite(checkpoint.arrays["store/policy_value/online"]))


def test_games_are_listed_with_their_numbers_of_actions(monkeypatch, capsys):
    from async_dqn.envs import registry

    games = [*itertools.islice(registry.atari_games(), 2)]
    monkeypatch.setattr(registry, "atari_games", lambda: games)
    assert main.main(["games"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:-1]] == [[name, str(spec.num_actions), "actions"] for name, spec in games]
