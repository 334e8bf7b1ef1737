"""The agent steps that past runs needed, and which runs they hold for."""

import dataclasses
import math

import pytest
from readme_tables import DQN_RUNS, PPO_RUNS, SHARED_RUNS, reached

from async_dqn.agents.goals import STEPS_ON_PONG, steps_to_goal
from async_dqn.agents.table import make_config

RUNS = {
    ("dqn", "pong-fast"): sum(DQN_RUNS.values(), []),
    ("ppo", "pong"): sum(PPO_RUNS.values(), []),
    ("pqn", "pong"): SHARED_RUNS["pqn"],
    ("paac", "pong"): SHARED_RUNS["paac"],
    ("a3c", "pong"): SHARED_RUNS["a3c"],
}


def test_they_are_those_of_the_runs_in_results():
    assert STEPS_ON_PONG.keys() == RUNS.keys()
    for key, folders in RUNS.items():
        steps = [reached(folder)[0] for folder in folders]
        assert STEPS_ON_PONG[key] == (min(steps), max(steps))


@pytest.mark.parametrize(("agent", "preset"), STEPS_ON_PONG)
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"env": "ALE/Pong-v5"},
        {"seed": 3, "num_workers": 4, "threads": 1},
        {"store": "shared_memory"},
        {"compute_dtype": "bfloat16"},
    ],
)
def test_they_hold_for_the_preset_wherever_it_runs(agent, preset, change):
    assert steps_to_goal(make_config(agent, preset, change)) == STEPS_ON_PONG[agent, preset]


@pytest.mark.parametrize(("agent", "preset"), STEPS_ON_PONG)
@pytest.mark.parametrize(
    "change",
    [{"stop_at_return": 19.0}, {"stop_at_return": math.inf}, {"env": "breakout"}, {"learning_rate": 1.0}]
    + [{"protocol": "machado"}, {"discount": 0.98}],
)
def test_they_do_not_hold_for_another_goal_game_or_way_to_learn(agent, preset, change):
    assert steps_to_goal(dataclasses.replace(make_config(agent, preset, {}), **change)) is None


@pytest.mark.parametrize(("agent", "preset"), [("dqn", "pong-fast"), ("ppo", "pong")])
@pytest.mark.parametrize("change", [{"local_steps": 3}, {"envs_per_worker": 4}])
def test_they_do_not_hold_where_fewer_play_or_what_they_learn_is_shared_less_often(agent, preset, change):
    assert steps_to_goal(make_config(agent, preset, change)) is None


@pytest.mark.parametrize(
    ("agent", "preset"), [("fast_dqn", "pong-fast"), ("c51", "pong-fast"), ("dqn", "atari-fast"), ("dqn", "cartpole")]
)
def test_other_agents_and_presets_have_none(agent, preset):
    assert steps_to_goal(make_config(agent, preset, {})) is None
