"""The peer and its script, with stand-ins for pip and for what the script imports."""

import json
import runpy
import sys
import textwrap
import types
from pathlib import Path
from unittest import mock

import pytest

from async_dqn.base.errors import RunError
from async_dqn.tools.bench import peer, programs
from async_dqn.tools.bench.work import Plan, config

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


def test_an_environment_is_made_once(pip, tmp_path):
    said = []
    python = peer.ensure_environment(tmp_path / "cache", said.append)
    assert python.exists() and tmp_path / "cache" in python.parents and len(said) == 1
    (call,) = pip()
    assert all(f"{name}=={version}" in call for name, version in peer.VERSIONS.items())
    assert peer.ensure_environment(tmp_path / "cache", said.append) == python
    assert len(pip()) == len(said) == 1


@pytest.mark.parametrize("change", ["requirements", "python", "cut short"])
def test_an_environment_that_is_not_the_wanted_one_is_made_anew(pip, tmp_path, monkeypatch, change):
    python = peer.ensure_environment(tmp_path, lambda line: None)
    if change == "requirements":
        monkeypatch.setattr(peer, "_REQUIREMENTS", ["other==1"])
    if change == "python":
        monkeypatch.setattr(sys, "version", "another")
    if change == "cut short":
        (python.parents[1] / "finished").unlink()
    peer.ensure_environment(tmp_path, lambda line: None)
    assert len(pip()) == 2


def test_a_failure_is_told_in_one_line_and_tried_again(pip, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_PIP", "fail")
    with pytest.raises(RunError) as raised:
        peer.ensure_environment(tmp_path, lambda line: None)
    assert all(words in str(raised.value) for words in ("no matching distribution", ".log"))
    monkeypatch.setenv("FAKE_PIP", "")
    peer.ensure_environment(tmp_path, lambda line: None)
    assert len(pip()) == 2


def test_cases_are_rows_of_the_programs_table():
    cases = peer.cases(Path("/p"), Plan())
    assert [(case.section, case.name.rpartition(", ")[2]) for case in cases] == [
        ("programs", "8 environments"),
        ("programs", "1 environment"),
    ]
    assert len(peer.cases(Path("/p"), Plan(is_quick=True))) == 1
    (case,) = peer.cases(Path("/p"), Plan(work="a2c"))
    assert case.name == "Stable-Baselines3 A2C, 16 environments"


def test_a_peer_s_rows_come_from_its_output(tmp_path):
    program = peer.program(Path("/a/python"), "nature", 8, 3_000, 500)
    assert list(program.command(tmp_path)) == ["/a/python", "-I", str(peer.SCRIPT), "nature", "8", "3000", "500"]
    assert program.rows(tmp_path) == []
    (tmp_path / programs.LOG).write_text('banner\n{"wall_seconds": 1}\n\n{"wall_seco')
    assert program.rows(tmp_path) == [{"wall_seconds": 1}]


class Callback:
    """Stands in for BaseCallback."""

    model: mock.Mock
    num_timesteps = 0


@pytest.fixture
def sb3(monkeypatch):
    """The script's names, with stand-ins for all that it imports; anything of ours is not to be had."""
    stand_ins = {
        "async_dqn": None,
        "stable_baselines3.common.callbacks": types.SimpleNamespace(BaseCallback=Callback),
        **dict.fromkeys(["ale_py", "gymnasium", "torch", "stable_baselines3"], mock.MagicMock()),
        **dict.fromkeys(["stable_baselines3.common.env_util", "stable_baselines3.common.vec_env"], mock.MagicMock()),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    return types.SimpleNamespace(**runpy.run_path(str(peer.SCRIPT)))


def test_sb3_s_dqn_does_the_same_work(sb3):
    work = config(Plan(work="nature"))
    sb3.make_dqn(8, work.replay_capacity, work.warmup_steps)
    given = sb3.DQN.call_args.kwargs
    assert given["batch_size"] == work.batch_size
    assert given["buffer_size"] == work.replay_capacity
    assert given["learning_starts"] == work.warmup_steps
    assert given["learning_rate"] == work.learning_rate
    assert given["gamma"] == work.discount
    assert given["target_update_interval"] == work.target_period * work.train_period
    assert given["exploration_final_eps"] == work.epsilon_final
    assert given["exploration_fraction"] * 10**9 < work.warmup_steps
    environment = sb3.make_atari_env.call_args
    assert environment.args == ("ALE/Pong-v5",) and environment.kwargs["n_envs"] == work.envs_per_worker
    assert environment.kwargs["env_kwargs"] == {"frameskip": 1, "repeat_action_probability": 0.0}
    assert environment.kwargs["wrapper_kwargs"]["frame_skip"] == 4
    sb3.VecFrameStack.assert_called_with(sb3.make_atari_env.return_value, 4)


def test_sb3_s_a2c_does_the_same_work(sb3):
    work = config(Plan(work="a2c"))
    sb3.make_a2c(work.envs_per_worker)
    given = sb3.A2C.call_args.kwargs
    assert (work.network, work.optimizer, work.rmsprop_decay, given["learning_rate"]) == (
        "nature",
        "rmsprop",
        0.99,  # Stable-Baselines3's own
        work.learning_rate,
    )
    assert given["n_steps"] == work.t_max and given["gae_lambda"] == work.trace
    assert given["gamma"] == work.discount and given["rms_prop_eps"] == work.optimizer_epsilon
    assert given["ent_coef"] == work.entropy_cost and given["vf_coef"] == work.value_cost
    assert given["max_grad_norm"] == work.max_gradient_norm
    assert sb3.make_atari_env.call_args.kwargs["n_envs"] == work.envs_per_worker


@pytest.mark.parametrize("num_envs", [1, 2, 4, 8, 16])
def test_sb3_makes_one_minibatch_per_four_agent_steps(sb3, num_envs):
    sb3.make_dqn(num_envs, 50_000, 2_000)
    given = sb3.DQN.call_args.kwargs
    vector_steps, unit = given["train_freq"]
    assert unit == "step" and vector_steps * num_envs / given["gradient_steps"] == 4


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
