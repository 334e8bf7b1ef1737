"""Tests of export: what is handed on computes what was trained."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from evaluate_helpers import save, saved_run

from async_dqn.base.errors import UserError
from async_dqn.run import checkpoints
from async_dqn.run.build import make_agent
from async_dqn.run.directory import RunDirectory
from async_dqn.run.trained import load_trained
from async_dqn.tools.export import run_export


@pytest.mark.parametrize(("agent", "preset"), [("dqn", "pong-fast"), ("ppo", "pong"), ("a3c --lstm", "pong")])
def test_the_saved_model_gives_what_the_network_says(tmp_path, agent, preset):
    name, *options = agent.split()
    settings = {option.removeprefix("--"): True for option in options}
    agent, online, run = saved_run(tmp_path, "pong", preset, name, **settings)
    output = tmp_path / "export"
    assert run_export(agent.config, run, format="saved_model", output=str(output)) == 0
    frames = np.random.default_rng(0).integers(0, 256, (3, 4, 84, 84), dtype=np.uint8)
    recurrent_state = np.random.default_rng(1).normal(size=(3, agent.recurrent_size)).astype(np.float32)
    given = {"recurrent_state": recurrent_state} if agent.recurrent_size else {}
    exported = tf.saved_model.load(str(output)).signatures["serving_default"]
    found = exported(observation=tf.constant(frames), **{name: tf.constant(one) for name, one in given.items()})
    params = {module.name: module.layout.unflatten(tf.constant(online[module.name])) for module in agent.modules}
    anywhere = make_agent(dataclasses.replace(agent.config, compute_dtype="float32"))
    expected = anywhere.apply(params, frames, *given.values())
    assert found.keys() == expected.keys() == agent.network_outputs.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-6)


def test_the_agent_is_a_run_directory_with_the_networks_in_half_precision(tmp_path):
    agent, online, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    run.write_summary({"exit_reason": "solved"})
    assert run_export(agent.config, run, format="agent", output=str(tmp_path / "agent")) == 0
    copy = RunDirectory(tmp_path / "agent")
    assert copy.read_config() == agent.config
    assert json.loads(copy.config.read_text()) == json.loads(run.config.read_text())
    assert copy.exit_reason() == "solved"
    trained = load_trained(copy, agent, pytest.fail)
    assert trained.env_steps == 123
    assert trained.online["q"].dtype == np.float32
    np.testing.assert_array_equal(trained.online["q"], online["q"].astype(np.float16).astype(np.float32))


def test_means_and_variances_of_observations_stay_as_they_are(tmp_path):
    agent, online, run = saved_run(tmp_path, "CartPole-v1", "cartpole", normalize_observations=True)
    large = online | {"observations": np.full_like(online["observations"], 123_456.7)}
    save(run, large, 124)
    assert run_export(agent.config, run, format="agent", output=str(tmp_path / "agent")) == 0
    trained = load_trained(RunDirectory(tmp_path / "agent"), agent, pytest.fail)
    np.testing.assert_array_equal(trained.online["observations"], large["observations"])


def test_parameters_too_large_for_half_precision_are_refused_and_nothing_is_left(tmp_path):
    agent, online, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    save(run, {"q": online["q"] * 1e6}, 124)
    with pytest.raises(UserError, match="half precision"):
        run_export(agent.config, run, format="agent", output=str(tmp_path / "agent"))
    assert not (tmp_path / "agent").exists()


def test_an_export_killed_in_the_middle_has_not_taken_its_name(tmp_path):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    killed_at_the_config = (
        "import os; from async_dqn.cli.main import run; from async_dqn.tools import export; "
        f"export.write_atomically = lambda *args: os.kill(os.getpid(), {signal.SIGKILL:d}); run()"
    )
    output = tmp_path / "agent"
    flags = ["export", f"--logdir={run.path}", f"--output={output}", "--format=agent"]
    ended = subprocess.run([sys.executable, "-c", killed_at_the_config, *flags], timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert not os.path.lexists(output)
    (left,) = tmp_path.glob(".export-*/agent/checkpoints")  # it was being written
    assert any(left.iterdir())
    assert run_export(agent.config, run, format="agent", output=str(output)) == 0
    assert RunDirectory(output).read_config() == agent.config


@pytest.mark.parametrize("format", ["saved_model", "agent"])
def test_an_export_overwrites_nothing(tmp_path, format):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    (tmp_path / "export").mkdir()
    with pytest.raises(UserError, match="exists already"):
        run_export(agent.config, run, format=format, output=str(tmp_path / "export"))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="exists already"):
        run_export(agent.config, run, format=format, output=str(tmp_path / "loop"))
    with pytest.raises(UserError, match="is not a folder"):
        run_export(agent.config, run, format=format, output=str(tmp_path / "no" / "export"))
    for output in (tmp_path / ("n" * 300), tmp_path / ("n" * 300) / "export"):
        with pytest.raises(UserError, match="File name too long"):
            run_export(agent.config, run, format=format, output=str(output))


@pytest.mark.parametrize("name", ["q/online", "online"], ids=["this format", "the one before, without names"])
@pytest.mark.parametrize(
    "online", [np.zeros(5, np.float32), None, "of text"], ids=["another size", "none", "another type"]
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path, name, online):
    agent, right, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    if isinstance(online, str):
        online = np.array([online] * len(right["q"]))
    arrays = {} if online is None else {f"store/{name}": online}
    checkpoints.save(run.checkpoints, 124, arrays, {}, keep=1)
    with pytest.raises(UserError, match="checkpoint 124"):
        load_trained(run, agent, pytest.fail)


def test_a_checkpoint_of_the_format_before_is_read(tmp_path):
    agent, online, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    checkpoints.save(run.checkpoints, 124, {"store/online": online["q"]}, {}, keep=1)
    np.testing.assert_array_equal(load_trained(run, agent, pytest.fail).online["q"], online["q"])
