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


@pytest.fixture(autouse=True)
def _environment():
    gymnasium.register("Quarter-v0", Quarter)
    yield
    del gymnasium.registry["Quarter-v0"]


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


def test_continuous_actions(tmp_path):
    run = async_dqn.train(
        env="Pendulum-v1", agent="ppo", total_steps=100_000, stop_at_return=-250.0, threads=1, logdir=tmp_path / "run"
    )
    summary = json.loads((run / "summary.json").read_text())
    assert summary["exit_reason"] == "solved"
    assert mean_return(async_dqn.load(run), 10) >= -300
