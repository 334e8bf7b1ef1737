"""Planning needs fewer real steps: tabular Dyna-Q in a maze as the ground truth, and the agent on CartPole."""

import collections
import math

import maze
import numpy as np
import pytest
from one_worker import OneWorker

from async_dqn.agents.table import make_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GAMES = 30
SEEDS = range(10)


def chance_of_so_many(wins: int, pairs: int) -> float:
    """The sign test: how probable so many wins are if either side wins a pair with equal chance."""
    return sum(math.comb(pairs, k) for k in range(wins, pairs + 1)) / 2**pairs


def tabular_steps(grid: list[str], seed: int, planning_steps: int) -> int:
    """Real steps of Dyna-Q (Sutton & Barto 2018, section 8.2) for the first games, as the book has it."""
    rng = np.random.default_rng(seed)
    start, goal = maze.find(grid, "S"), maze.find(grid, "G")
    values = np.zeros((len(grid), len(grid[0]), 4))
    model: dict[tuple, tuple] = {}
    cell, games, steps = start, 0, 0

    def learn(cell, action, reward, following):
        bootstrap = 0 if following == goal else values[following].max()
        values[(*cell, action)] += 0.1 * (reward + 0.95 * bootstrap - values[(*cell, action)])

    while games < GAMES:
        best = np.flatnonzero(values[cell] == values[cell].max())
        action = int(rng.integers(4) if rng.random() < 0.1 else rng.choice(best))
        following = maze.move(grid, cell, action)
        reward = float(following == goal)
        learn(cell, action, reward, following)
        model[cell, action] = reward, following
        seen = list(model)
        for index in rng.integers(len(seen), size=planning_steps):
            learn(*seen[index], *model[seen[index]])
        steps += 1
        cell = start if following == goal else following
        games += following == goal
    return steps


def agent_steps(seed: int, ratio: float, limit: float = math.inf) -> int:
    """Real steps on CartPole until the mean return of 20 games is 160, with one real minibatch in eight steps.

    Where it takes more than `limit`: some number above that.
    """
    settings = {"env": "CartPole-v1", "seed": seed, "threads": 1, "num_workers": 1, "total_steps": 20_000}
    settings |= {"train_period": 8, "epsilon_steps": 1_000, "max_simulated_ratio": ratio}
    worker = OneWorker(make_config("dyna_q", "cartpole", settings)).begin()
    returns: collections.deque[float] = collections.deque(maxlen=20)
    for tick in worker.steps(claim=1):
        returns.extend(episode.episode_return for episode in tick.episodes)
        if np.mean(returns or [0.0]) >= 160 or worker.client.env_steps > limit:
            break
    return worker.client.env_steps


def test_the_maze_is_that_of_the_book():
    assert maze.shortest(maze.BOOK) == 14 and sum(row.count("#") for row in maze.BOOK) == 7
    assert maze.shortest(maze.SMALL) == 6


@pytest.mark.parametrize("grid", [maze.BOOK, maze.SMALL], ids=["book", "small"])
def test_tabular_planning_needs_fewer_real_steps(grid):
    wins = sum(tabular_steps(grid, seed, 5) < tabular_steps(grid, seed, 0) for seed in SEEDS)
    assert chance_of_so_many(wins, len(SEEDS)) < 0.05


def test_the_agent_s_planning_needs_fewer_real_steps():
    found = []
    for seed in range(8):
        with_model = agent_steps(seed, ratio=8)
        found.append((with_model, agent_steps(seed, ratio=0, limit=with_model)))
    wins = sum(with_model < without for with_model, without in found)
    assert chance_of_so_many(wins, len(found)) < 0.05, found
