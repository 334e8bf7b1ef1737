"""Tests of async_dqn.tools.evaluate: games, how they went, and what is seen of them."""

import dataclasses
import json
import resource

import numpy as np
import pytest
from evaluate_helpers import save, saved_run
from gymnasium.envs.classic_control import CartPoleEnv
from PIL import Image

import async_dqn
from async_dqn.base.errors import UserError
from async_dqn.envs import registry
from async_dqn.tools.evaluate import Play, Watch, run_evaluate


def test_games_are_played_and_the_first_is_recorded(tmp_path, capsys):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    video = tmp_path / "play.gif"
    assert run_evaluate(agent.config, run, games=3, seed=5, watch=Watch(str(video))) == 0
    result = json.loads((run.path / "evaluation.json").read_text())
    assert (result["games"], len(result["returns"]), result["checkpoint_env_steps"]) == (3, 3, 123)
    assert result["mean"] == pytest.approx(np.mean(result["returns"]))
    assert result["min"] <= result["mean"] <= result["max"]
    assert 0 <= result["seconds"] < 60
    said = capsys.readouterr().out
    assert "3 greedy games at 123 agent steps" in said
    with Image.open(video) as pictures:
        assert pictures.size == (600, 400)
        assert 1 < pictures.n_frames <= result["returns"][0] + 1  # of each step, and of the end; equal ones may be one
    assert f"({result['returns'][0] + 1:.0f} pictures)" in said
    assert "warning" not in said


def test_a_video_is_no_longer_than_asked_for_and_shows_the_action_values(tmp_path, capsys):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    video = tmp_path / "play.gif"
    watch = Watch(str(video), video_seconds=0.1, overlay="q")
    assert run_evaluate(agent.config, run, games=1, seed=5, watch=watch) == 0
    assert "(5 pictures)" in capsys.readouterr().out  # CartPole has 50 a second
    with Image.open(video) as pictures:
        assert pictures.size == (840, 400)


def test_environments_run_in_processes_where_they_did_in_training(tmp_path, monkeypatch):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    made, make = [], registry.make_vector_env
    monkeypatch.setattr(registry, "make_vector_env", lambda *given, **how: made.append(how) or make(*given))
    for own, timeout in ({}, 0.0), ({"env_processes": True, "env_timeout": 9.0}, 9.0):
        config = dataclasses.replace(agent.config, **own)
        assert run_evaluate(config, run, games=1, seed=5, watch=Watch()) == 0
        assert made.pop()["process_timeout"] == timeout


def test_it_says_where_other_games_are_shown_than_played(tmp_path, capsys, monkeypatch):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    drawn, step = np.random.default_rng(0), CartPoleEnv.step

    def step_by_luck(self, action):
        observation, *rest = step(self, action)
        return observation + np.float32(1e-3 * drawn.random()), *rest

    monkeypatch.setattr(CartPoleEnv, "step", step_by_luck)
    assert run_evaluate(agent.config, run, games=1, seed=5, watch=Watch(str(tmp_path / "play.gif"))) == 0
    assert "warning: other games were shown than played" in capsys.readouterr().out


def test_an_mp4_is_written(tmp_path):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    video = tmp_path / "play.mp4"
    assert run_evaluate(agent.config, run, games=1, seed=5, watch=Watch(str(video))) == 0
    assert video.read_bytes()[4:8] == b"ftyp"


@pytest.mark.parametrize("name", ["play.gif", "play.mp4"])
def test_a_full_disk_costs_the_video_only(tmp_path, capsys, name):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limit[1]))  # bytes; no file may get any larger
    try:
        assert run_evaluate(agent.config, run, games=3, seed=5, watch=Watch(str(tmp_path / name), overlay="q")) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    said = capsys.readouterr().out
    assert "3 greedy games" in said and f"the video {tmp_path / name} ends after" in said
    assert json.loads((run.path / "evaluation.json").read_text())["games"] == 3


def test_games_are_shown_in_a_window(tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # a screen that nobody sees
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    assert run_evaluate(agent.config, run, games=2, seed=5, watch=Watch(human=True)) == 0
    assert json.loads((run.path / "evaluation.json").read_text())["games"] == 2


def test_a_window_that_is_closed_ends_the_games(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr("async_dqn.tools.show.viewers.Window.is_done", True)
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    assert run_evaluate(agent.config, run, games=2, seed=5, watch=Watch(human=True)) == 0
    assert "no game was played to its end" in capsys.readouterr().out
    assert not (run.path / "evaluation.json").exists()


def test_nothing_is_written_where_nothing_is_to_be_kept(tmp_path):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    assert run_evaluate(agent.config, run, games=1, seed=5, watch=Watch(), keeps=False) == 0
    assert not (run.path / "evaluation.json").exists()


def test_a_run_without_a_checkpoint_is_named(tmp_path):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    for path in run.checkpoints.iterdir():
        path.unlink()
    with pytest.raises(UserError, match="holds no whole checkpoint"):
        run_evaluate(agent.config, run, games=1, seed=0, watch=Watch())


@pytest.mark.parametrize(
    ("agent", "settings"), [("dqn", {}), ("ppo", {}), ("rainbow", {"noisy": True, "network": "mlp"})]
)
def test_games_are_played_as_asked_for(tmp_path, agent, settings):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole", agent, **settings)

    def returns(play):
        assert run_evaluate(agent.config, run, games=8, seed=5, watch=Watch(), play=play) == 0
        result = json.loads((run.path / "evaluation.json").read_text())
        assert (result["actions"], result["epsilon"]) == (play.name, play.epsilon)
        return result["returns"]

    greedy = returns(Play())
    assert greedy == returns(Play())
    assert greedy != returns(Play(greedy=False))
    assert greedy != returns(Play(epsilon=1.0))


def test_the_probabilities_of_a_policy_are_shown(tmp_path):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole", "ppo")
    video = tmp_path / "play.gif"
    watch = Watch(str(video), video_seconds=0.1, overlay="policy")
    assert run_evaluate(agent.config, run, games=1, seed=5, watch=watch) == 0
    with Image.open(video) as pictures:
        assert pictures.size == (840, 400)


@pytest.mark.parametrize(("agent", "overlay", "other"), [("ppo", "q", "policy"), ("pqn", "policy", "q")])
def test_an_overlay_of_what_an_agent_has_not_is_refused_and_the_other_one_is_named(tmp_path, agent, overlay, other):
    built, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole", agent)
    watch = Watch(str(tmp_path / "play.gif"), overlay=overlay)
    with pytest.raises(UserError, match=f"--overlay={overlay}: --agent={agent} has no .*use --overlay={other}"):
        run_evaluate(built.config, run, games=1, seed=5, watch=watch)
    assert not (tmp_path / "play.gif").exists()


def test_an_agent_plays_as_in_training_whatever_its_number_of_environments(tmp_path):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    config = dataclasses.replace(agent.config, exploration="ape_x", envs_per_worker=3)
    assert run_evaluate(config, run, games=5, seed=5, watch=Watch(), play=Play(greedy=False)) == 0
    assert json.loads((run.path / "evaluation.json").read_text())["games"] == 5


@pytest.mark.parametrize(
    ("asked_for", "steps", "said"),
    [(None, 50, "best"), ("best", 50, "best"), ("newest", 123, "newest"), ("50", 50, ""), ("1_23", 123, "")],
)
def test_the_checkpoint_that_is_asked_for_is_played(tmp_path, capsys, asked_for, steps, said):
    agent, online, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    save(run, online, 50, is_best=True)
    assert run_evaluate(agent.config, run, games=1, seed=5, watch=Watch(), checkpoint=asked_for) == 0
    result = json.loads((run.path / "evaluation.json").read_text())
    assert (result["checkpoint"], result["checkpoint_env_steps"]) == (said, steps)
    which = f"the {said} checkpoint" if said else "as asked for"
    assert f"1 greedy game at {steps} agent steps ({which})" in capsys.readouterr().out
    player = async_dqn.load(run.path, asked_for)
    assert (player.checkpoint, player.env_steps) == (said, steps)


@pytest.mark.parametrize(
    ("asked_for", "words"),
    [
        ("best", "holds none: it has not played 100 games, or was exported"),
        ("7", "agent steps of one that is there: 123"),
        ("last", "must be best"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_refused(tmp_path, asked_for, words):
    agent, _, run = saved_run(tmp_path, "CartPole-v1", "cartpole")
    with pytest.raises(UserError, match=f"--checkpoint={asked_for}: .*{words}"):
        run_evaluate(agent.config, run, games=1, seed=5, watch=Watch(), checkpoint=asked_for)


def test_a_game_without_an_end_is_cut_off(tmp_path, capsys):
    agent, _, run = saved_run(tmp_path, "faulty_environments:Faulty/NoEnd-v0", "cartpole")
    assert agent.spec.max_episode_steps is None
    assert run_evaluate(agent.config, run, games=2, seed=5, watch=Watch(), max_steps=250) == 0
    assert json.loads((run.path / "evaluation.json").read_text())["lengths"] == [250, 250]
    said = capsys.readouterr().out
    assert "0/2 games; the ones now played have gone on for 99 steps" in said
    assert "2 games of 2 reached the limit of 250 steps" in said


def test_an_environment_that_cannot_be_drawn_says_why(tmp_path):
    agent, _, run = saved_run(tmp_path, "faulty_environments:Faulty/NoRenderMode-v0", "cartpole")
    with pytest.raises(UserError, match="NoRenderMode-v0 cannot be drawn; with render_mode=rgb_array: .*render_mode"):
        run_evaluate(agent.config, run, games=1, seed=5, watch=Watch(str(tmp_path / "play.gif")))
