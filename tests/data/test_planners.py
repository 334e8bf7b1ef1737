"""What crosses to planners and back is what it would have been in one process."""

import numpy as np
import pytest
from experience_queue_helpers import LocalQueue
from planning_helpers import NUM_ACTIONS, make

from async_dqn.data.block import decode
from async_dqn.data.experience import Step
from async_dqn.data.planners import Broadcast, ReceivedPlans, simulate
from async_dqn.data.receiver import ReplayReceiver


def random_steps(num_steps, num_envs=1, seed=0):
    """Steps that follow each other, of states of one number, with ends of both kinds."""
    rng = np.random.default_rng(seed)
    state = np.zeros((num_envs, 1), np.float32)
    for _ in range(num_steps):
        action = rng.integers(NUM_ACTIONS, size=num_envs).astype(np.int32)
        following = state + 1 + action[:, None]
        terminated = rng.random(num_envs) < 0.1
        truncated = ~terminated & (rng.random(num_envs) < 0.1)
        yield Step(state, state[:, None], action, {}, state[:, 0], terminated, truncated, following)
        state = np.where((terminated | truncated)[:, None], np.float32(0), following).astype(np.float32)


def test_simulated_minibatches_cross_as_they_are_and_know_the_age_of_their_model():
    planner, learner = make(), make()
    queue, version = LocalQueue(), [7]
    received = ReceivedPlans(queue, lambda: version[0])
    assert received.at_hand(5) == 0
    queue.sender(1).put(0, simulate(planner, 3, np.random.default_rng(3), version=5))
    queue.sender(2).put(0, simulate(planner, 1, np.random.default_rng(4), version=8))
    received._ask_at = 0.0
    assert received.at_hand(0) == 0 and len(queue.items) == 2  # who wants none does not look
    assert received.at_hand(5) == 3 and received.at_hand(2) == 2
    rng = np.random.default_rng(3)
    for left in (2, 1, 0):
        planner.simulate(rng)
        received.fill(learner.batch)
        for name in ("s_tm1", "a_tm1", "r_t", "discount_t", "s_t", "weight"):
            np.testing.assert_array_equal(getattr(learner.batch, name), getattr(planner.batch, name))
        np.testing.assert_array_equal(learner.batch.model_age, 7 - 5)
        assert received._stop - received._first == left
    assert received.at_hand(1) == 1
    received.fill(learner.batch)
    np.testing.assert_array_equal(learner.batch.model_age, 0)  # the learner has not heard of that version yet
    assert received.at_hand(1) == 0


def test_an_empty_queue_is_not_asked_again_at_once(monkeypatch):
    now = [10.0]
    monkeypatch.setattr("async_dqn.data.planners.time.monotonic", lambda: now[0])
    queue = LocalQueue()
    received = ReceivedPlans(queue, lambda: 0)
    assert received.at_hand(1) == 0
    queue.sender(1).put(0, simulate(make(), 1, np.random.default_rng(0), version=0))
    assert received.at_hand(1) == 0
    now[0] += 1
    assert received.at_hand(1) == 1


def test_a_learner_draws_what_is_at_hand_within_the_ratio():
    experience, planner, queue = make(simulated_ratio=2.0), make(), LocalQueue(size=100)
    received = ReceivedPlans(queue, lambda: 0)
    received._ask_at = -1e9
    experience.learn_from(received)
    rng = np.random.default_rng(0)

    def draw():
        experience.draw(rng, 0)
        return int(experience.batch.is_simulated[0])

    def send(number, count):
        received._ask_at = 0.0
        queue.sender(1).put(number, simulate(planner, count, rng, version=0))

    assert [draw() for _ in range(3)] == [0, 0, 0]
    send(0, 4)
    real = experience.due() - 4  # of the 6 that are called for, 4 are there
    assert real == 51 - 3
    assert [draw() for _ in range(5)] == [1, 1, 1, 1, 0]
    send(1, 9)
    assert [draw() for _ in range(6)] == [1, 1, 1, 1, 0, 1]
    experience._error.sums[0] += 1e9  # the model is found to be wrong
    assert [draw() for _ in range(3)] == [0, 0, 0] and experience.due() == 51 - 8


def make_pair(queue, length=4, num_envs=1):
    here, there = make(num_steps=0), make(num_steps=0)
    sink = Broadcast(here, queue.sender(0), length=length, version=lambda: 11)
    heard = []
    receiver = ReplayReceiver(
        there,
        queue,
        num_envs=num_envs,
        first_sender=0,
        has_turn=lambda number: True,
        on_block=lambda block: heard.append((block.num_steps, block.version)),
    )
    return here, there, sink, receiver, heard


def feed(sink, steps):
    for step in steps:
        sink.add(step, 1)
        if sink.has_block:
            sink.send()


def contents(experience):
    """Every transition of a replay, oldest first."""
    replay = experience.ring
    env, index = replay.valid_starts()
    out = replay.gather(env, index, replay.make_batch(len(env)))
    return np.stack([out.s_tm1[:, 0, 0], out.a_tm1, out.r_t, out.discount_t, out.s_t[:, 0, 0]], axis=1)


def test_a_planner_s_replay_is_that_of_the_worker_that_acts():
    queue = LocalQueue(size=100)
    here, there, sink, receiver, heard = make_pair(queue)
    feed(sink, random_steps(80))
    while not receiver.is_idle:
        receiver.due()
        there._owed_steps = 0  # nothing is drawn here
    assert heard == [(4, 11)] * 20
    # Replay knows a transition once the step after it is there, so the newest one may be missing.
    np.testing.assert_array_equal(contents(there), contents(here)[: len(contents(there))])
    assert len(contents(there)) >= len(contents(here)) - 1
    there.ring.check_valid()
    assert there._error.share == 0  # where the last step of a block led is known as well


@pytest.mark.parametrize("lost", [[], [3], [3, 4]])
def test_a_block_that_found_no_room_is_a_gap_and_nothing_follows_from_it(lost):
    queue = LocalQueue(size=100)
    here, there, sink, receiver, _ = make_pair(queue)
    for number in range(8):
        queue._size = 0 if number in lost else 100
        feed(sink, (step for index, step in enumerate(random_steps(32)) if number * 4 <= index < number * 4 + 4))
    assert [item.number for item in queue.items] == [number for number in range(8) if number not in lost]
    while not receiver.is_idle:
        receiver.due()
        there._owed_steps = 0
    there.ring.check_valid()
    all_of_them = {tuple(row) for row in contents(here)}
    found = {tuple(row) for row in contents(there)}
    assert found <= all_of_them and len(found) > 5


@pytest.mark.parametrize("cut", [41, 39], ids=["within a block", "at its end"])
def test_where_an_environment_starts_anew_no_replay_has_a_transition(cut):
    lengths = []
    for is_cut in (False, True):
        queue = LocalQueue(size=100)
        here, there, sink, receiver, _ = make_pair(queue)
        for number, step in enumerate(random_steps(80)):
            sink.add(step, 1)
            if is_cut and number == cut:
                assert not (step.terminated | step.truncated).any()
                sink.truncate(np.array([0]))
            if sink.has_block:
                sink.send()
        while not receiver.is_idle:
            receiver.due()
            there._owed_steps = 0
        np.testing.assert_array_equal(contents(there), contents(here)[: len(contents(there))])
        lengths.append(len(contents(there)))
    assert lengths[1] == lengths[0] - 1


def test_after_the_parameters_were_put_back_a_stream_begins_without_what_was_gathered():
    queue = LocalQueue(size=100)
    _, _, sink, _, _ = make_pair(queue)
    all_steps = [*random_steps(4 + 2 + 4)]
    feed(sink, all_steps[:6])
    sink.begin_stream()
    sink._queue.stream = (2, 1)
    feed(sink, all_steps[6:])
    assert [(item.stream, item.number) for item in queue.items] == [((1, 1), 0), ((2, 1), 0)]
    sent = decode(queue.items[1].data).arrays["observation"]
    np.testing.assert_array_equal(sent, [step.observation for step in all_steps[6:]])


def test_a_block_that_an_outage_kept_is_lost_and_the_next_one_says_so():
    queue = LocalQueue(size=100)
    _, _, sink, _, _ = make_pair(queue)
    for step in random_steps(9):
        sink.add(step, 1)
    assert not queue.items and not sink.has_block
    feed(sink, random_steps(3))
    assert [item.number for item in queue.items] == [2]
