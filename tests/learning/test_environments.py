"""What is learned from pictures and with continuous actions, each from one call by its own preset."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import async_dqn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Quarter(gymnasium.Env):
    """One quarter of a noisy picture is brighter: it is the right action. 5 of 20 by chance."""

    action_space = spaces.Discrete(4)
    length = 20

    def __init__(self, shape=(64, 64, 3), is_float=False):
        high, dtype = (1, np.float32) if is_float else (255, np.uint8)
        self.observation_space = spaces.Box(0, high, tuple(shape), dtype)

    def _seen(self):
        self._where = int(self.np_random.integers(4))
        shape = self.observation_space.shape
        picture = self.np_random.uniform(60, 180, shape)
        rows, columns = (side // 2 for side in shape[:2])
        row, column = self._where // 2 * rows, self._where % 2 * columns
        picture[row : row + rows, column : column + columns] += 40
        is_float = self.observation_space.dtype == np.float32
        return (picture / 255 if is_float else picture).astype(self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self._seen(), {}

    def step(self, action):
        self._t += 1
        reward = float(action == self._where)
        return self._seen(), reward, self._t >= self.length, False, {}


class Catch(gymnasium.Env):
    """A ball falls through 10x10 truth values, and the paddle in the last row must be below it, as in bsuite's Catch.

    1 or -1 at the end; -0.8 or so by chance. `scale` is the upper bound of the space: 255 says that 1 is hardly seen.
    """

    action_space = spaces.Discrete(3)

    def __init__(self, scale=1):
        self.observation_space = spaces.Box(0, scale, (10, 10), bool if scale == 1 else np.uint8)

    def _seen(self):
        picture = np.zeros((10, 10), self.observation_space.dtype)
        picture[self._row, self._ball] = picture[9, self._paddle] = 1
        return picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._row, self._ball, self._paddle = 0, int(self.np_random.integers(10)), 5
        return self._seen(), {}

    def step(self, action):
        self._row, self._paddle = self._row + 1, int(np.clip(self._paddle + action - 1, 0, 9))
        is_over = self._row == 9
        return self._seen(), is_over * (1.0 if self._paddle == self._ball else -1.0), is_over, False, {}


@pytest.fixture(autouse=True)
def _small_games():
    gymnasium.register("Quarter-v0", Quarter)
    gymnasium.register("Catch-v0", Catch)
    yield
    del gymnasium.registry["Quarter-v0"], gymnasium.registry["Catch-v0"]


def mean_return(player, games, **options):
    """Of greedy games, played one after another."""
    env, total = gymnasium.make(player.agent.spec.id, **options), 0.0
    for game in range(games):
        observation, _ = env.reset(seed=1_000 + game)
        player.reset()
        is_over = False
        while not is_over:
            action = player.act(np.asarray(observation)[None])[0]
            observation, reward, terminated, truncated, _ = env.step(action)
            total, is_over = total + reward, terminated or truncated
    return total / games


@pytest.mark.parametrize(
    "options", [{"shape": [64, 64, 3]}, {"shape": [64, 64, 3], "is_float": True}], ids=["bytes", "floats"]
)
def test_pictures(tmp_path, options):
    flags = {"env": "Quarter-v0", "env_args": json.dumps(options), "total_steps": 4_000, "threads": 1}
    run = async_dqn.train(**flags, logdir=tmp_path / "run")
    config = json.loads((run / "config.json").read_text())["config"]
    assert config["network"] == "auto" and config["n_step"] == 1  # of the preset for pictures
    assert mean_return(async_dqn.load(run), 10, **options) >= 18


@pytest.mark.parametrize(
    "settings",
    [
        {"n_step": 3, "batch_size": 32, "epsilon_steps": 5_000, "total_steps": 20_000},
        # What is at most 1 of 255 is next to nothing, until it is normalised.
        {"agent": "ppo", "total_steps": 150_000, "env_args": '{"scale": 255}', "normalize_observations": True},
    ],
    ids=["dqn", "ppo"],
)
def test_small_pictures(tmp_path, settings):
    run = async_dqn.train(env="Catch-v0", stop_at_return=0.8, threads=1, logdir=tmp_path / "run", **settings)
    assert json.loads((run / "summary.json").read_text())["exit_reason"] == "solved"
    options = json.loads(settings.get("env_args", "{}"))
    assert mean_return(async_dqn.load(run), 20, **options) >= 0.7


def test_lunar_lander(tmp_path):
    pytest.importorskip("Box2D")
    run = async_dqn.train(env="LunarLander-v3", agent="ppo", stop_at_return=200.0, threads=1, logdir=tmp_path / "run")
    assert json.loads((run / "summary.json").read_text())["exit_reason"] == "solved"


def test_continuous_actions(tmp_path):
    run = async_dqn.train(
        env="Pendulum-v1", agent="ppo", total_steps=100_000, stop_at_return=-250.0, threads=1, logdir=tmp_path / "run"
    )
    summary = json.loads((run / "summary.json").read_text())
    assert summary["exit_reason"] == "solved"
    assert mean_return(async_dqn.load(run), 10) >= -300
