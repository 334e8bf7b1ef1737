"""Tests of async_dqn.roles.evaluate and async_dqn.screen: games, video and export of a checkpoint."""

import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from async_dqn import checkpoints, environments
from async_dqn.config import make_config
from async_dqn.errors import UserError
from async_dqn.roles import assemble, evaluate
from async_dqn.run_directory import RunDirectory
from async_dqn.screen import make_screen


def saved_run(folder, env, preset):
    """A run directory with the untrained network of the preset."""
    config = make_config(preset, {"env": env})
    problem = assemble.make_problem(config)
    online = assemble.initial_parameters(config, problem)
    run = RunDirectory(folder / "run")
    run.create()
    checkpoints.save(run.checkpoints, 123, {"store/online": online}, {}, keep=1)
    return config, problem, online, run


def test_games_are_played_and_the_first_is_recorded(tmp_path, capsys):
    config, _, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    video = tmp_path / "play.gif"
    assert evaluate.run_evaluate(config, run, games=3, seed=5, video=str(video)) == 0
    result = json.loads((run.path / "evaluation.json").read_text())
    assert (result["games"], len(result["returns"]), result["checkpoint_env_steps"]) == (3, 3, 123)
    assert result["mean"] == pytest.approx(np.mean(result["returns"]))
    assert result["min"] <= result["mean"] <= result["max"]
    assert "3 greedy games at 123 agent steps" in capsys.readouterr().out
    with Image.open(video) as pictures:
        assert pictures.size == (600, 400)
        assert pictures.n_frames > 1


def test_the_export_gives_the_network_s_values(tmp_path):
    config, problem, online, run = saved_run(tmp_path, "pong", "pong-fast")
    output = tmp_path / "export"
    assert evaluate.run_export(config, run, str(output)) == 0
    frames = np.random.default_rng(0).integers(0, 256, (3, 4, 84, 84), dtype=np.uint8)
    values = tf.saved_model.load(str(output)).signatures["serving_default"](observation=tf.constant(frames))
    expected = problem.network.apply(problem.layout.unflatten(tf.constant(online)), frames)
    assert values["q_values"].shape == (3, 6)
    np.testing.assert_allclose(values["q_values"], expected, atol=1e-6)


def test_an_export_overwrites_nothing(tmp_path):
    config, _, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    (tmp_path / "export").mkdir()
    with pytest.raises(UserError, match="exists already"):
        evaluate.run_export(config, run, str(tmp_path / "export"))


def test_a_run_without_a_checkpoint_is_named(tmp_path):
    config, _, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    for path in run.checkpoints.iterdir():
        path.unlink()
    with pytest.raises(UserError, match="holds no whole checkpoint"):
        evaluate.run_evaluate(config, run, games=1, seed=0, video=None)


def test_the_screen_goes_through_the_same_game_as_the_agent():
    spec = environments.resolve("pong", "classic")
    env, screen = environments.make_vector_env(spec, 1, seed=3), make_screen(spec, seed=3)
    observation, picture = env.reset()[0], screen.reset()
    actions = np.random.default_rng(0).integers(6, size=60)
    for action in actions:
        observation = env.step(np.array([action])).observation[0]
        picture = screen.step(int(action))
    assert picture.shape == (210, 160, 3)
    # The agent's frame is the picture in grey, smaller: its rows and columns are 2.5 and 1.9 of the picture's.
    grey = picture @ np.array([0.299, 0.587, 0.114])
    small = np.asarray(Image.fromarray(grey.astype(np.uint8)).resize((84, 84), Image.Resampling.BOX), np.float32)
    assert np.abs(small - observation).mean() < 2
    other = env.step(np.array([2])).observation[0]
    env.close()
    screen.close()
    assert not np.array_equal(other, observation)
