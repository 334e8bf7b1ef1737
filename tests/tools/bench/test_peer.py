"""Tests of bench.peer and the scripts in peers/, with stand-ins for pip and for what the scripts import."""

import ast
import json
import runpy
import sys
import textwrap
import types
from pathlib import Path
from unittest import mock

import pytest
from packaging.requirements import Requirement

from async_dqn.base.errors import RunError, UserError
from async_dqn.settings.config import Config
from async_dqn.tools.bench import command, peer, programs
from async_dqn.tools.bench.work import PEER_WORK, WORKS, Plan

SB3 = peer.PEERS["sb3"]

# Makes an "environment" whose python is this script again, and notes what pip is asked for.
FAKE_PYTHON = """\
    #!/usr/bin/env bash
    case "$*" in
      "-m venv "*) mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" ;;
      "-m pip "*)
        echo "$*" >>"$FAKE_LOG"
        if [[ $FAKE_PIP == fail ]]; then
          printf 'ERROR: no matching distribution\\nsome advice\\n'
          exit 1
        fi ;;
      *) exit 9 ;;
    esac
"""


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """The stand-in is used; gives the log of its calls."""
    python, log = tmp_path / "fake python", tmp_path / "pip.log"
    python.write_text(textwrap.dedent(FAKE_PYTHON))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setenv("FAKE_PIP", "")
    return lambda: log.read_text().splitlines() if log.exists() else []


def make(folder, **changes):
    said = []
    python = peer.ensure_environment(SB3._replace(**changes), folder, said.append)
    return python, said


def test_an_environment_is_made_once(pip, tmp_path):
    folder = tmp_path / "some cache" / "peer"
    python, said = make(folder)
    assert python == folder / "bin" / "python" and python.exists()
    assert said == [f"setting up Stable-Baselines3 DQN in {folder} (one time, some minutes)"]
    assert pip() == [f"-m pip --no-input install {' '.join(SB3.requirements)}"]
    assert make(folder) == (python, [])
    assert len(pip()) == 1


@pytest.mark.parametrize("change", ["requirements", "python", "cut short"])
def test_an_environment_that_is_not_the_wanted_one_is_made_anew(pip, tmp_path, monkeypatch, change):
    folder = tmp_path / "peer"
    make(folder)
    (folder / "left over").touch()
    if change == "python":
        monkeypatch.setattr(sys, "version", "another")
    if change == "cut short":
        (folder / peer._STAMP).unlink()
    make(folder, **({"requirements": ("other==1",)} if change == "requirements" else {}))
    assert len(pip()) == 2
    assert not (folder / "left over").exists()


def test_a_failure_is_told_in_one_line_and_tried_again(pip, tmp_path, monkeypatch):
    folder = tmp_path / "peer"
    monkeypatch.setenv("FAKE_PIP", "fail")
    with pytest.raises(RunError) as raised:
        make(folder)
    for words in ("ERROR: no matching distribution", f"the whole log is {tmp_path / 'peer.log'}", "--peer_python"):
        assert words in str(raised.value)
    monkeypatch.setenv("FAKE_PIP", "")
    make(folder)
    assert len(pip()) == 2


def test_a_cache_that_cannot_be_written_is_told(pip, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be set up in .*Not a directory|File exists"):
        make(tmp_path / "file" / "peer")


def test_the_environment_lies_in_the_users_cache(monkeypatch, tmp_path):
    assert peer.default_folder(SB3, {"XDG_CACHE_HOME": "/c"}) == Path("/c/async-dqn/peers/sb3-2.9.2")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert peer.default_folder(SB3, {}) == tmp_path / ".cache/async-dqn/peers/sb3-2.9.2"
    assert peer.default_folder(SB3, {"XDG_CACHE_HOME": ""}) == peer.default_folder(SB3, {})


def test_requirements_are_exact_and_complete():
    for line in SB3.requirements:
        assert [specifier.operator for specifier in Requirement(line).specifier] == ["=="], line
    assert SB3.packages == [
        "stable-baselines3",
        "torch",
        "gymnasium",
        "ale-py",
        "opencv-python-headless",
        "numpy",
    ]
    assert f"sb3-{Requirement(SB3.requirements[0]).specifier}".replace("==", "") == SB3.name


def test_versions_are_those_of_the_peers_python():
    found = peer.versions(SB3._replace(requirements=("numpy==1", "psutil==1")), Path(sys.executable))
    import numpy
    import psutil

    assert found["numpy"] == numpy.__version__ and found["psutil"] == psutil.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/no/such/python", ["--peer_python=/no/such/python", "No such file"]),
        (sys.executable, [f"--peer_python={sys.executable}", "No package metadata", "no-such-package"]),
        ("/bin/true", ["--peer_python=/bin/true"]),
        ("/bin/false", ["exit code 1"]),
    ],
)
def test_a_python_that_lacks_something_is_refused(python, words):
    with pytest.raises(UserError) as raised:
        peer.versions(SB3._replace(requirements=("no-such-package==1",)), Path(python))
    assert all(word in str(raised.value) for word in words)


def test_cases_are_rows_of_the_programs_table():
    cases = peer.cases(SB3, Path("/p"), Plan())
    assert [(case.section, case.name) for case in cases] == [
        ("programs", "Stable-Baselines3 DQN, 8 environments"),
        ("programs", "Stable-Baselines3 DQN, 1 environment"),
    ]
    assert len(peer.cases(SB3, Path("/p"), Plan(is_quick=True))) == 1


def test_a_peer_s_rows_come_from_its_output(tmp_path):
    program = peer._program(SB3, Path("/a/python"), 8)
    assert list(program.command(tmp_path)) == ["/a/python", "-I", str(SB3.script), "--envs=8"]
    (tmp_path / programs.LOG).write_text('banner\n{"wall_seconds": 1}\n')
    assert program.rows(tmp_path) == [{"wall_seconds": 1}]


def test_every_peer_can_be_asked_for():
    assert ("none", *peer.PEERS) == command.PEERS
    assert all(one.script.exists() for one in peer.PEERS.values())


@pytest.mark.parametrize("one", peer.PEERS.values(), ids=lambda one: one.name)
def test_scripts_import_nothing_of_ours(one):
    tree = ast.parse(one.script.read_text())
    names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not any(name.startswith("async_dqn") for name in names)


class Callback:
    """Stands in for BaseCallback."""

    model: mock.Mock
    num_timesteps = 0


@pytest.fixture
def sb3(monkeypatch):
    """The script's names, with stand-ins for all that it imports."""
    stand_ins = {
        "stable_baselines3.common.callbacks": types.SimpleNamespace(BaseCallback=Callback),
        **dict.fromkeys(["ale_py", "gymnasium", "torch", "stable_baselines3"], mock.MagicMock()),
        **dict.fromkeys(["stable_baselines3.common.env_util", "stable_baselines3.common.vec_env"], mock.MagicMock()),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    return types.SimpleNamespace(**runpy.run_path(str(SB3.script)))


def test_sb3_does_the_same_work(sb3):
    sb3.make_model(8, 5)
    given = sb3.DQN.call_args.kwargs
    work = Config(**WORKS[PEER_WORK])
    assert given["batch_size"] == work.batch_size
    assert given["buffer_size"] == work.replay_capacity
    assert given["learning_starts"] == work.warmup_steps
    assert given["learning_rate"] == work.learning_rate
    assert given["gamma"] == work.discount
    assert given["target_update_interval"] == work.target_period * work.train_period
    assert given["exploration_final_eps"] == work.epsilon_final
    assert given["exploration_fraction"] * 10**9 < work.warmup_steps
    environment = sb3.make_atari_env.call_args
    assert environment.args == ("ALE/Pong-v5",)
    assert environment.kwargs["n_envs"] == work.envs_per_worker and environment.kwargs["seed"] == 5
    assert environment.kwargs["env_kwargs"] == {"frameskip": 1, "repeat_action_probability": 0.0}
    assert environment.kwargs["wrapper_kwargs"]["frame_skip"] == 4
    sb3.VecFrameStack.assert_called_with(sb3.make_atari_env.return_value, 4)


@pytest.mark.parametrize("num_envs", [1, 2, 4, 8, 16])
def test_sb3_makes_one_minibatch_per_four_agent_steps(sb3, num_envs):
    sb3.make_model(num_envs, 0)
    given = sb3.DQN.call_args.kwargs
    vector_steps, unit = given["train_freq"]
    assert unit == "step"
    assert vector_steps * num_envs / given["gradient_steps"] == WORKS[PEER_WORK]["train_period"]


@pytest.mark.parametrize("num_envs", [3, 6])
def test_sb3_refuses_environments_that_do_not_divide_evenly(sb3, num_envs):
    with pytest.raises(AssertionError, match=f"{num_envs} environments"):
        sb3.make_model(num_envs, 0)


def test_sb3_counts_what_the_optimizer_really_did(sb3, capsys, monkeypatch):
    monkeypatch.setattr(sb3.time, "monotonic", iter([100.0, 100.25, 100.75, 101.0]).__next__)
    progress = sb3.Progress()
    progress.model = mock.Mock()
    progress._on_training_start()
    (count,) = progress.model.policy.optimizer.register_step_post_hook.call_args.args
    for steps in (8, 16, 24):
        progress.num_timesteps = steps
        assert progress._on_step()
        count("optimizer", (), {})
        count("optimizer", (), {})
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"wall_seconds": 0.75, "env_steps": 16, "minibatches": 2, "updates": 2}
