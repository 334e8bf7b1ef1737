"""The loop: order of calls, the budget, and what an interruption leaves behind."""

import itertools

import numpy as np
import pytest
from fakes import CountingEnv, RecordingAgent, make_store

from async_dqn.parameter_client import GradientClient
from async_dqn.parameters import Counters
from async_dqn.run_loop import run_loop
from async_dqn.schedules import constant


def make(*, num_envs, total_steps, claim=2, length=3):
    """The store, the client, the agent and the running loop."""
    store = make_store(total_steps=total_steps)
    client = GradientClient(store, constant(1.0), push_period=1, pull_period=1, overlap=False)
    client.start()
    agent = RecordingAgent(num_envs)
    return store, client, agent, run_loop(agent, CountingEnv(num_envs, length), client, claim=claim)


def test_each_step_acts_observes_and_learns_in_this_order():
    _, _, agent, loop = make(num_envs=2, total_steps=4)
    list(loop)
    assert agent.calls == [
        ("reset", (2, 1)),
        ("act",),
        ("observe", 1.0),
        ("learn", 2),
        ("act",),
        ("observe", 2.0),
        ("learn", 2),
    ]


@pytest.mark.parametrize(
    ("num_envs", "total_steps", "claim", "steps"),
    [
        (4, 10, 1, [4, 4, 2]),
        (4, 10, 2, [4, 4, 2]),
        (4, 10, 16, [4, 4, 2]),
        (4, 8, 16, [4, 4]),
        (8, 3, 1, [3]),
        (1, 3, 2, [1, 1, 1]),
    ],
)
def test_the_budget_is_met_exactly(num_envs, total_steps, claim, steps):
    store, client, agent, loop = make(num_envs=num_envs, total_steps=total_steps, claim=claim)
    assert [tick.num_steps for tick in loop] == steps
    assert [call[1] for call in agent.calls if call[0] == "learn"] == steps
    client.finish()
    assert store.pull().counters == Counters(claimed_steps=total_steps, env_steps=sum(steps))
    assert sum(steps) == total_steps


def test_two_workers_share_a_budget_that_divides_by_neither():
    store = make_store(total_steps=29)
    clients = [GradientClient(store, constant(1.0), push_period=1, pull_period=1, overlap=False) for _ in range(2)]
    loops = []
    for client, num_envs in zip(clients, (3, 4), strict=True):
        client.start()
        loops.append(run_loop(RecordingAgent(num_envs), CountingEnv(num_envs), client, claim=2))
    taken = [0, 0]
    for ticks in itertools.zip_longest(*loops):
        for index, tick in enumerate(ticks):
            taken[index] += tick.num_steps if tick else 0
    assert sum(taken) == 29
    assert min(taken) > 0


def test_without_a_budget_no_step_is_taken():
    store, _, agent, loop = make(num_envs=2, total_steps=5)
    store.add_counts(Counters(stopped=1))
    assert list(loop) == []
    assert agent.calls == [("reset", (2, 1))]


def test_a_stop_ends_the_loop_after_the_steps_already_claimed():
    store, _, _, loop = make(num_envs=2, total_steps=1_000, claim=3)
    next(loop)
    store.add_counts(Counters(stopped=1))
    assert sum(tick.num_steps for tick in loop) == (3 - 1) * 2


def test_games_are_reported_with_the_step_that_ended_them():
    _, _, _, loop = make(num_envs=2, total_steps=2 * 6, length=3)
    ended = [[episode.environment for episode in tick.episodes] for tick in loop]
    assert ended == [[], [], [0, 1], [], [], [0, 1]]


def test_games_of_environments_that_do_not_count_in_the_last_step_are_not_reported():
    _, _, _, loop = make(num_envs=4, total_steps=4 + 4 + 3, length=3)
    ended = [[episode.environment for episode in tick.episodes] for tick in loop]
    assert ended == [[], [], [0, 1, 2]]


@pytest.mark.parametrize(("taken", "left"), [(1, 8 - 2), (3, 8 - 6), (4, 0)])
def test_an_interrupted_worker_returns_the_steps_it_claimed_and_did_not_take(taken, left):
    store, client, _, loop = make(num_envs=2, total_steps=100, claim=4)
    for _ in range(taken):
        next(loop)
    assert store.pull().counters.claimed_steps == 8
    loop.close()
    client.consume(np.zeros(2, np.float32), 1.0)
    client.after_minibatch()  # a push reports it
    counters = store.pull().counters
    assert (counters.claimed_steps, counters.env_steps) == (8 - left, 2 * taken)


def test_an_error_of_the_environment_returns_the_steps_that_were_left():
    store, client, agent, loop = make(num_envs=2, total_steps=100, claim=4)
    next(loop)
    agent.act = lambda: np.zeros(7, np.int32)  # which the environment refuses
    with pytest.raises(AssertionError):
        next(loop)
    client.consume(np.zeros(2, np.float32), 1.0)
    client.after_minibatch()
    assert store.pull().counters.claimed_steps == 8 - (8 - 2 - 2)  # the step that failed is gone
