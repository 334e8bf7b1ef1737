"""The loop: order of calls, the budget, and what an interruption leaves behind."""

import itertools

import numpy as np
import pytest
from fakes import CountingEnv, FragileStore, RecordingAgent, direct_client, gradient_client, make_store

from async_dqn.base.errors import Outage, RunFailed
from async_dqn.run.loop import Tick, run_loop
from async_dqn.store.base import Counters


def make(*, num_envs, total_steps, claim=2, length=3, overlap_steps=False):
    """The store, the client, the agent and the running loop."""
    store = make_store(total_steps=total_steps)
    client = gradient_client(store)
    agent = RecordingAgent(num_envs)
    return (
        store,
        client,
        agent,
        run_loop(agent, CountingEnv(num_envs, length), client, claim=claim, overlap_steps=overlap_steps),
    )


def taken(ticks):
    """The ticks that took steps. One that only asked for them shows nothing else."""
    ticks = list(ticks)
    assert all(tick == Tick(0, []) for tick in ticks if not tick.num_steps)
    return [tick for tick in ticks if tick.num_steps]


def test_each_step_acts_observes_and_learns_in_this_order():
    _, _, agent, loop = make(num_envs=2, total_steps=4)
    list(loop)
    assert agent.calls == [
        ("act",),
        ("observe", 1.0, 2),
        ("learn",),
        ("act",),
        ("observe", 2.0, 2),
        ("learn",),
    ]


def test_with_overlap_each_step_acts_learns_from_the_steps_before_and_observes_in_this_order():
    _, _, agent, loop = make(num_envs=2, total_steps=4, overlap_steps=True)
    list(loop)
    assert agent.calls == [
        ("act",),
        ("learn",),
        ("observe", 1.0, 2),
        ("act",),
        ("learn",),
        ("observe", 2.0, 2),
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
    assert [tick.num_steps for tick in taken(loop)] == steps
    assert [call[2] for call in agent.calls if call[0] == "observe"] == steps
    client.finish()
    assert store.pull().counters == Counters(claimed_steps=total_steps, env_steps=sum(steps))
    assert sum(steps) == total_steps


def test_two_workers_share_a_budget_that_divides_by_neither():
    store = make_store(total_steps=29)
    loops = []
    for num_envs in (3, 4):
        client = gradient_client(store)
        loops.append(run_loop(RecordingAgent(num_envs), CountingEnv(num_envs), client, claim=2))
    steps = [0, 0]
    for ticks in itertools.zip_longest(*loops):
        for index, tick in enumerate(ticks):
            steps[index] += tick.num_steps if tick else 0
    assert sum(steps) == 29
    assert min(steps) > 0


def test_a_stop_ends_the_loop_after_the_steps_already_claimed():
    store, _, _, loop = make(num_envs=2, total_steps=1_000, claim=3)
    next(loop)
    store.add_counts(Counters(stopped=1))
    assert sum(tick.num_steps for tick in loop) == (3 - 1) * 2


def test_games_are_reported_with_the_step_that_ended_them():
    _, _, _, loop = make(num_envs=2, total_steps=2 * 6, length=3)
    ended = [[episode.environment for episode in tick.episodes] for tick in taken(loop)]
    assert ended == [[], [], [0, 1], [], [], [0, 1]]


def test_games_of_environments_that_do_not_count_in_the_last_step_are_not_reported():
    _, _, _, loop = make(num_envs=4, total_steps=4 + 4 + 3, length=3)
    ended = [[episode.environment for episode in tick.episodes] for tick in taken(loop)]
    assert ended == [[], [], [0, 1, 2]]


@pytest.mark.parametrize(("taken", "left"), [(1, 8 - 2), (3, 8 - 6), (4, 0)])
def test_an_interrupted_worker_returns_the_steps_it_claimed_and_did_not_take(taken, left):
    store, client, _, loop = make(num_envs=2, total_steps=100, claim=4)
    for _ in range(taken):
        next(loop)
    assert store.pull().counters.claimed_steps == 8
    loop.close()
    client.report()
    counters = store.pull().counters
    assert (counters.claimed_steps, counters.env_steps) == (8 - left, 2 * taken)


def test_an_error_of_the_environment_returns_the_steps_that_were_left():
    store, client, agent, loop = make(num_envs=2, total_steps=100, claim=4)
    next(loop)
    agent.act = lambda: np.zeros(7, np.int32)  # which the environment refuses
    with pytest.raises(AssertionError):
        next(loop)
    client.report()
    assert store.pull().counters.claimed_steps == 8 - (8 - 2 - 2)  # the step that failed is gone


def test_a_worker_waits_while_others_hold_the_rest_of_the_budget():
    store, client, agent, loop = make(num_envs=2, total_steps=10, claim=2)
    assert store.claim_steps(6, Counters())[0] == 6
    assert [next(loop).num_steps for _ in range(2)] == [2, 2]
    calls = len(agent.calls)
    assert [next(loop) for _ in range(3)] == [Tick(0, [])] * 3
    assert len(agent.calls) == calls  # neither acts nor learns
    store.add_counts(Counters(env_steps=6))
    assert taken(loop) == []
    assert client.is_over
    assert store.pull().counters == Counters(claimed_steps=10, env_steps=10)


def test_steps_that_another_worker_did_not_take_are_taken_by_one_that_waited():
    store, client, _, loop = make(num_envs=2, total_steps=10, claim=2)
    store.claim_steps(6, Counters())
    assert [next(loop).num_steps for _ in range(3)] == [2, 2, 0]
    store.add_counts(Counters(env_steps=3, claimed_steps=-3))  # it took 3 of its 6, and was lost
    assert [tick.num_steps for tick in taken(loop)] == [2, 1]
    assert store.pull().counters == Counters(claimed_steps=10, env_steps=10)


def test_a_stop_ends_a_worker_that_waits():
    store, client, _, loop = make(num_envs=2, total_steps=10)
    store.claim_steps(10, Counters())
    assert next(loop) == Tick(0, [])
    store.add_counts(Counters(stopped=2))
    assert taken(loop) == []
    assert client.counters.stopped == 2


def test_the_loop_of_the_baseline_meets_its_budget():
    store = make_store(total_steps=11)
    ticks = run_loop(RecordingAgent(4), CountingEnv(4), direct_client(store), claim=2)
    assert [tick.num_steps for tick in taken(ticks)] == [4, 4, 3]
    assert store.pull().counters == Counters(claimed_steps=11, env_steps=11)


def test_after_an_outage_the_loop_can_be_run_again_and_the_budget_is_met_exactly():
    store = FragileStore([0, 0], total_steps=31)
    client = gradient_client(store)
    agent, env = RecordingAgent(2), CountingEnv(2)
    loop = run_loop(agent, env, client, claim=3)
    steps = [next(loop).num_steps for _ in range(4)]
    store.is_out = True
    with pytest.raises(Outage):
        for tick in loop:
            steps.append(tick.num_steps)
    store.settle()
    client.restart(rolled_back=False)
    steps += [tick.num_steps for tick in run_loop(agent, env, client, claim=3)]
    client.finish()
    assert sum(steps) == 31
    assert store.pull().counters == Counters(claimed_steps=31, env_steps=31)
    assert [call[0] for call in agent.calls] == ["act", "observe", "learn"] * (len(agent.calls) // 3)


@pytest.mark.parametrize("overlap_steps", [False, True])
def test_a_step_that_was_begun_is_taken_in_and_counted_though_learning_fails(overlap_steps):
    store, client, agent, loop = make(num_envs=2, total_steps=100, claim=4, overlap_steps=overlap_steps)
    next(loop)
    agent.learn = lambda: 1 / 0
    assert next(loop).num_steps == 2  # its games are told of first
    with pytest.raises(ZeroDivisionError):
        next(loop)
    assert agent.calls[-2:] == [("act",), ("observe", 2.0, 2)]
    client.report()
    assert store.pull().counters == Counters(claimed_steps=2 + 2, env_steps=2 + 2)


@pytest.mark.parametrize("overlap_steps", [False, True])
@pytest.mark.parametrize("ends", ["close", "throw"])
def test_an_error_of_a_step_is_not_lost_where_the_caller_breaks_off_at_its_tick(overlap_steps, ends):
    def fail():
        raise RunFailed("not finite")

    store, client, agent, loop = make(num_envs=2, total_steps=100, claim=4, overlap_steps=overlap_steps)
    agent.learn = fail
    assert next(loop).num_steps == 2
    with pytest.raises(RunFailed, match="not finite"):
        loop.close() if ends == "close" else loop.throw(Outage("ps 0 has ended"))
    client.report()
    assert store.pull().counters == Counters(claimed_steps=2, env_steps=2)
