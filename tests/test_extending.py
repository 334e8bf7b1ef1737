"""docs/extending.md: its agent and its environment, exactly as printed, train; its calls from Python work."""

import gc
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from cluster_helpers import wait_until

import async_dqn

TEXT = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
AGENT, ENVIRONMENT, FROM_PYTHON = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "my_agents.py").write_text(AGENT)
    (tmp_path / "my_envs.py").write_text(ENVIRONMENT)
    return tmp_path


def run(folder, *arguments):
    environ = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{Path(__file__).parents[1]}"}
    command = [sys.executable, "-m", "async_dqn", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False)


def test_the_agent_is_short():
    assert len(AGENT.splitlines()) < 100


@pytest.mark.slow
def test_the_agent_learns_and_plays(folder):
    flags = ["--agent=my_agents:A2C", "--env=CartPole-v1", "--max_gradient_norm=0.5", "--logdir=run"]
    done = run(folder, "baseline", *flags)
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["best_mean_return_100"] > 100
    assert f"\n{summary['exit_reason']}: {summary['env_steps']:,} agent steps" in done.stdout
    assert "entropy" in (folder / "run" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert run(folder, "evaluate", "--logdir=run", "--games=5").returncode == 0


@pytest.mark.cluster
def test_the_agent_trains_on_parameter_servers(folder):
    flags = ["--agent=my_agents:A2C", "--env=CartPole-v1", "--rollout_length=32", "--total_steps=5000", "--logdir=run"]
    done = run(folder, "local", *flags)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "run" / "summary.json").read_text())["env_steps"] == 5_000
    # So its first worker says on a terminal of its own, where each process has one.
    assert "\nfinished: 5,000 agent steps" in (folder / "run" / "logs" / "worker-0.log").read_text()


def test_its_flags_are_those_of_help(folder):
    done = run(folder, "baseline", "--agent=my_agents:A2C", "--help")
    assert done.returncode == 0
    assert "--entropy_cost" in done.stdout and "--epsilon_final" not in done.stdout


@pytest.mark.slow
def test_the_environment_is_learned_and_shown(folder):
    env = ["--env=my_envs:Walk-v0", '--env_args={"size": 4}']
    done = run(folder, "doctor", *env, "--logdir=run")
    assert "my_envs:Walk-v0, 2 actions, observations 1" in done.stdout, done.stdout + done.stderr
    flags = ["--agent=ppo", "--total_steps=20_000", "--stop_at_return=0.99", "--logdir=run"]
    done = run(folder, "baseline", *env, *flags)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "run" / "summary.json").read_text())["exit_reason"] == "solved"
    assert run(folder, "evaluate", "--logdir=run", "--games=2", "--video=walk.gif").returncode == 0
    assert (folder / "walk.gif").stat().st_size > 500


def test_the_calls_from_python_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(FROM_PYTHON.replace("50_000", "2_000"), names)
    assert names["actions"].shape == names["values"].shape == (1,)
    assert names["done"] and names["run"].is_dir()


def test_a_player_keeps_stacks_by_row(tmp_path):
    """On Atari: a row that was reset sees zeros before its newest frame, the others go on."""
    from async_dqn.agents.table import make_config
    from async_dqn.nn.module import initial_parameters
    from async_dqn.run import build
    from async_dqn.run.trained import Trained
    from async_dqn.tools.player import Player

    agent = build.make_agent(make_config("dqn", "pong-fast", {"compute_dtype": "float32"}))
    online = initial_parameters(agent.modules, 3)
    frames = np.random.default_rng(0).integers(0, 256, (3, 2, 84, 84), dtype=np.uint8)

    def expected(*stack):
        stacked = np.zeros((1, 4, 84, 84), np.uint8)
        stacked[0, 4 - len(stack) :] = stack
        params = {"q": agent.modules[0].layout.unflatten(online["q"])}
        return agent.apply(params, stacked)["q_values"].numpy()[0]

    player = Player(agent, Trained(online, 0))
    ahead = player.values(frames[0])
    player.act(frames[0])
    np.testing.assert_array_equal(ahead, player.values(frames[0]))
    np.testing.assert_allclose(ahead[1], expected(frames[0, 1]), atol=1e-5)
    player.act(frames[1])
    player.reset([0])
    player.act(frames[2])
    values = player.values(frames[2])
    np.testing.assert_allclose(values[0], expected(frames[2, 0]), atol=1e-5)
    np.testing.assert_allclose(values[1], expected(frames[0, 1], frames[1, 1], frames[2, 1]), atol=1e-5)
    with pytest.raises(ValueError, match="rows"):
        player.act(frames[0, :1])
    with pytest.raises(ValueError, match="shape"):
        player.act(frames[0, :, :80])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"env": "nope"}, "--env=nope"),
        ({"env": "CartPole-v1", "clip": 0.2}, "--clip"),
        ({"env": "CartPole-v1", "agent": "ppo", "clip": -1.0}, "--clip=-1.0"),
        ({"env": "CartPole-v1", "agent": "pp"}, "--agent=pp"),
        ({"env": "CartPole-v1", "total_steps": "5"}, "--total_steps=5"),
        ({"env": "CartPole-v1", "gpus": "x"}, "--gpus=x"),
        ({"env": "CartPole-v1", "num_workers": 3}, "--num_workers=3"),
        ({"env": "CartPole-v1", "epsilon_final": 0.2, "noisy": True}, "--epsilon_final=0.2: .*--noisy=True"),
    ],
)
def test_bad_arguments_are_named(settings, named, tmp_path, monkeypatch):
    from async_dqn.base.errors import UserError

    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=named):
        async_dqn.train(**settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_two_trainings_leave_nothing_behind_in_the_process(tmp_path):
    """No threads, which would hold the replay, no objects that are never freed, and the caller's mode of new files."""
    before, names = set(threading.enumerate()), ("checkpoints", "snapshots", "replay-log")

    def left():
        return [one for one in threading.enumerate() if one not in before and one.name.startswith(names)]

    umask = os.umask(0o022)
    try:
        for number in range(2):
            async_dqn.train(env="CartPole-v1", total_steps=600, logdir=tmp_path / str(number))
            wait_until(lambda: not left(), 30, "threads of the run have ended")
            assert gc.get_freeze_count() == 0
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(umask)


@pytest.mark.slow
def test_a_script_that_its_own_environments_would_run_again_is_told_how_to_prevent_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import async_dqn\n"
        "async_dqn.train(env='CartPole-v1', env_processes=True, envs_per_worker=1, total_steps=100, logdir='run')\n"
    )
    path = os.pathsep.join(sys.path)
    command, environ = [sys.executable, str(script)], os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert "lacks `if __name__ == '__main__':` around the call" in done.stderr.splitlines()[-1]
