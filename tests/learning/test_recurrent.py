"""What takes memory is learned with an LSTM, and not without."""

import numpy as np
import pytest
from one_worker import OneWorker

from async_dqn.agents.table import make_config

GOAL = 0.8  # mean return of the last 100 games; 1 is the most, and 0 what there is without a memory


def mean_return(**settings):
    """Of the last 100 games of a run that ends at the goal."""
    given = {"env": "recall:Recall-v0", "total_steps": 30_000, "threads": 1, "t_max": 10, "envs_per_worker": 8}
    returns = []
    for tick in OneWorker(make_config("a3c", "cartpole", given | settings)).begin().steps():
        returns += [episode.episode_return for episode in tick.episodes]
        if len(returns) >= 100 and np.mean(returns[-100:]) > GOAL:
            break
    return np.mean(returns[-100:])


@pytest.mark.parametrize("settings", [{}, {"share_torso": False}], ids=["one network", "two networks"])
def test_a_cue_is_remembered(settings):
    assert mean_return(lstm=True, **settings) > GOAL


def test_without_a_memory_it_is_not():
    assert mean_return(total_steps=10_000) < GOAL / 2
