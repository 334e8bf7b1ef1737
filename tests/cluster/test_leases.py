"""Tests of async_dqn.cluster.leases: what a ps makes of the messages of its workers, at times that are given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_dqn.cluster.done_queue import ALIVE, Message
from async_dqn.cluster.leases import LeaseState, LeaseTable

LEASE, START = 10.0, 100.0
EXPECTED, LIVES, DONE, FAILED, LOST = LeaseState
A, B, C = 7, 8, 9  # tokens of processes that are worker 0 one after the other


def make_table(num_workers=1, now=1_000.0):
    return LeaseTable(num_workers, LEASE, START, now)


# Steps: at a time, a message of worker 0 (token, code) or None for a look at what has expired; then its state.
STORIES = {
    "in time": [(90, (A, ALIVE), LIVES), (99, (A, ALIVE), LIVES), (109, None, LIVES), (110, (A, 0), DONE)],
    "never came": [(100, None, EXPECTED), (100.1, None, LOST), (500, None, LOST)],
    "came after all": [(101, None, LOST), (102, (A, ALIVE), LIVES), (112, None, LIVES), (112.1, None, LOST)],
    "silent": [(50, (A, ALIVE), LIVES), (60, None, LIVES), (60.1, None, LOST)],
    "late": [(50, (A, ALIVE), LIVES), (61, None, LOST), (62, (A, ALIVE), LIVES), (72, None, LIVES)],
    "late, but before anyone looked": [(50, (A, ALIVE), LIVES), (70, (A, ALIVE), LIVES), (71, None, LIVES)],
    "interrupted": [(50, (A, ALIVE), LIVES), (51, (A, 130), DONE), (500, None, DONE)],
    "done at once": [(50, (A, 0), DONE), (500, None, DONE)],
    "failed": [(50, (A, ALIVE), LIVES), (51, (A, 1), FAILED), (61, None, FAILED), (61.1, None, LOST)],
    "killed": [(50, (A, -9), FAILED)],
    "failed and restarted": [
        (50, (A, ALIVE), LIVES),
        (51, (A, 1), FAILED),
        (60, (B, ALIVE), LIVES),
        (70, None, LIVES),
        (71, (B, 0), DONE),
    ],
    "restarted without a word": [(50, (A, ALIVE), LIVES), (55, (B, ALIVE), LIVES), (65, None, LIVES), (66, None, LOST)],
    "lost and restarted": [(50, (A, ALIVE), LIVES), (61, None, LOST), (70, (B, ALIVE), LIVES), (80, None, LIVES)],
    "failed to start": [(50, (A, 2), FAILED), (51, (B, 2), FAILED), (61, None, FAILED), (61.1, None, LOST)],
    "thawed": [
        (50, (A, ALIVE), LIVES),
        (55, (B, ALIVE), LIVES),
        (57, (A, ALIVE), LIVES),  # says nothing of B
        (58, (A, 1), LIVES),
        (65.1, None, LOST),
        (66, (A, ALIVE), LOST),
        (67, (B, ALIVE), LIVES),
    ],
    "thawed after its successor was done": [
        (50, (A, ALIVE), LIVES),
        (55, (B, ALIVE), LIVES),
        (56, (B, 0), LIVES),
        (57, (A, ALIVE), LIVES),  # it finds out that it is not the worker any more
        (58, (A, 1), DONE),
    ],
    "refused beside it": [
        (50, (A, ALIVE), LIVES),
        (55, (B, ALIVE), LIVES),
        (56, (B, 2), LIVES),
        (57, (A, ALIVE), LIVES),
        (66.5, None, LIVES),
        (67.5, None, LOST),
    ],
    "interrupted beside it": [
        (50, (A, ALIVE), LIVES),
        (55, (B, ALIVE), LIVES),
        (56, (B, 130), LIVES),
        (57, (A, 0), DONE),
    ],
    "thawed twice": [
        (50, (A, ALIVE), LIVES),
        (51, (B, ALIVE), LIVES),
        (52, (C, ALIVE), LIVES),
        (53, (A, 0), LIVES),
        (54, (B, 0), LIVES),
        (55, (C, 0), DONE),
    ],
    "done, then started again": [(50, (A, 130), DONE), (60, (B, ALIVE), LIVES), (71, None, LOST)],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_what_is_thought_of_a_worker(story):
    table = make_table(now=1_000.0)
    for time, message, state in story:
        before = table.state(0)
        if message:
            is_last = table.hear(Message(0, *message), 1_000 + time)
            assert is_last == (message[1] != ALIVE)
        else:
            lost = [silence for silence in table.expire(1_000 + time) if silence.is_lost]
            changed = table.state(0) is not before
            assert [(worker, former) for worker, _, former, _ in lost] == ([(0, before)] if changed else [])
        assert table.state(0) is state, (time, message)


# Steps that a ps could not answer in time were left behind, and may all arrive later, in any order: a heartbeat that
# comes after the last message of the same process must not make a worker that is done live again, and then be lost.
def test_a_heartbeat_that_was_overtaken_by_the_last_message_does_not_revive_a_worker():
    table = make_table()
    table.hear(Message(0, A, ALIVE), 1_000.0)
    table.hear(Message(0, A, 130), 1_001.0)
    table.hear(Message(0, A, ALIVE), 1_002.0)
    assert table.state(0) is DONE


def test_an_expired_worker_is_named_once_with_the_token_that_it_last_had():
    table = make_table(3)
    table.hear(Message(1, A, ALIVE), 1_000.0)
    table.hear(Message(2, B, ALIVE), 1_005.0)
    assert table.expire(1_010.0) == []
    assert table.expire(1_010.5) == [(1, A, LIVES, True)]
    assert table.expire(1_100.5) == [(0, 0, EXPECTED, True), (2, B, LIVES, True)]
    assert table.expire(2_000.0) == []


@pytest.mark.parametrize("code", [0, 1, 130])
def test_a_last_message_is_announced_that_of_a_process_before_too(code):
    table = make_table()
    assert not table.hear(Message(0, A, ALIVE), 1_000.0)
    assert not table.hear(Message(0, B, ALIVE), 1_002.0)
    assert table.hear(Message(0, A, code), 1_003.0)  # it may still be the member, as B may never have joined
    assert table.hear(Message(0, B, code), 1_003.0)


def test_a_process_that_was_killed_before_another_came_and_was_killed_is_named_as_well():
    table = make_table()
    table.hear(Message(0, A, ALIVE), 1_000.0)
    table.hear(Message(0, B, ALIVE), 1_005.0)
    assert table.expire(1_010.1) == [(0, A, LIVES, False)]
    assert table.expire(1_015.1) == [(0, B, LIVES, True)]
    assert table.expire(2_000.0) == []


@pytest.mark.parametrize("worker", [-1, 2, 99])
def test_workers_that_are_none_are_passed_over(worker):
    table = make_table(2)
    assert not table.hear(Message(worker, A, 1), 1_000.0)
    assert [table.state(index) for index in range(2)] == [EXPECTED, EXPECTED]


def test_it_is_over_once_everyone_is_done_or_lost():
    table = make_table(3)
    for worker, code in enumerate((130, 130, ALIVE)):
        assert not table.is_over(1_000.0)
        table.hear(Message(worker, A + worker, code), 1_000.0)
    assert (table.is_over(1_010.0), table.missing(), table.is_finished) == (False, [2], False)
    table.expire(1_010.1)
    assert (table.is_over(1_010.1), table.missing(), table.is_finished) == (True, [2], False)


def test_who_has_not_come_is_not_waited_for_long_once_the_chief_has_ended():
    table = make_table(2)
    table.hear(Message(0, A, 130), 1_000.0)
    assert not table.is_over(1_010.0)
    assert table.is_over(1_010.1) and table.missing() == [1]


def test_a_failed_worker_is_waited_for():
    table = make_table()
    table.hear(Message(0, A, 1), 1_000.0)
    assert not table.is_over(1_009.0)
    table.hear(Message(0, B, 0), 1_009.0)
    assert table.is_over(1_009.0)
    assert table.missing() == []


def test_others_have_a_moment_to_report_their_end_once_the_chief_has_finished():
    table = make_table(2)
    table.hear(Message(1, B, ALIVE), 1_000.0)
    table.hear(Message(0, A, 0), 1_001.0)
    assert table.is_finished
    assert not table.is_over(1_002.9)
    assert table.is_over(1_003.1)
    assert table.missing() == [1]


def test_reports_within_that_moment_end_it():
    table = make_table(2)
    table.hear(Message(0, A, 0), 1_001.0)
    table.hear(Message(1, B, 0), 1_001.5)
    assert table.is_over(1_001.5)
    assert table.missing() == []


@pytest.mark.parametrize(("worker", "code"), [(0, 130), (0, 1), (1, 0)])
def test_nobody_but_the_chief_and_nothing_but_its_end_finishes_the_run(worker, code):
    table = make_table(2)
    table.hear(Message(worker, A, code), 1_000.0)
    assert not table.is_finished
    assert not table.is_over(1_005.0)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 15),
            st.integers(0, 2),
            st.sampled_from([A, B, C]),
            st.sampled_from([ALIVE, ALIVE, ALIVE, 0, 1, 2, 130]),
        ),
        max_size=40,
    )
)
def test_whatever_is_heard_every_worker_comes_to_an_end(messages):
    now = 1_000.0
    table = make_table(3, now)
    for pause, worker, token, code in messages:
        now += pause
        table.hear(Message(worker, token, code), now)
        for silence in table.expire(now):
            assert silence.state not in (DONE, LOST)
            assert table.state(silence.worker) is LOST or not silence.is_lost
    later = now + START + 1
    table.expire(later)
    assert table.is_over(later)
    assert table.missing() == [worker for worker in range(3) if table.state(worker) is LOST]


def test_a_lost_chief_is_waited_for_as_it_may_come_back():
    table = LeaseTable(2, 10.0, 100.0, 0.0, chief_grace=60.0)
    table.hear(Message(0, 1, ALIVE), 1.0)
    table.hear(Message(1, 2, ALIVE), 1.0)
    assert [silence.worker for silence in table.expire(11.5)] == [0, 1]
    assert not table.is_over(1.0 + 10 + 60)
    assert table.is_over(1.5 + 10 + 60)
    table.hear(Message(0, 3, ALIVE), 50.0)  # started again
    assert not table.is_over(100.0)
    table.hear(Message(0, 3, 0), 60.0)
    assert table.is_over(60.0)  # worker 1 is lost, and nobody else could wait for it
