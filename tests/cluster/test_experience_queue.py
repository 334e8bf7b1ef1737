"""The queue on a real ps, and whole runs whose experience crosses it, with processes that are killed meanwhile."""

import os
import signal

import numpy as np
import pytest
from cluster_helpers import commands, store_cluster
from local_run_helpers import RUN, kill, summary_of, wait_until_at

from async_dqn.run.csv_log import rows
from async_dqn.run.directory import RunDirectory

pytestmark = pytest.mark.cluster

SIZE = 3
START_AT = {"q": np.zeros(3, np.float32)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with store_cluster(tmp_path_factory.mktemp("queue"), num_ps=1, num_workers=3) as cluster:
        cluster.open({"q": ("add", 3)})
        yield cluster


@pytest.fixture
def opened(cluster):
    """A receiver and two senders, each of which has just joined; the queue is empty."""
    cluster.clients[0]("initialize", START_AT)
    for client in cluster.clients:
        client("join")
        client("open_queue", SIZE)
    while cluster.clients[0]("queue_size"):
        cluster.clients[0]("take")
    return cluster.clients


def test_items_come_out_in_order_and_the_queue_is_bounded(opened):
    receiver, one, other = opened
    assert receiver("take") is None
    assert one("put", 0, 5, 6) and other("put", 0, 7) and one("put", 1)
    assert not one("put", 2, 8) and not other("put", 1, 9)
    assert receiver("queue_size") == SIZE
    assert receiver("take") == (1, 0, [5, 6])
    assert other("put", 1, 9) and not one("put", 2, 8)
    assert [receiver("take") for _ in range(4)] == [(2, 0, [7]), (1, 1, []), (2, 1, [9]), None]


def test_an_item_that_is_sent_again_is_there_once(opened):
    receiver, one, _ = opened
    assert one("put", 0, 1) and one("put", 0, 1)
    assert one("put_and_lose_the_answer", 1, 2)
    assert one("put", 2, 3)
    assert [receiver("take") for _ in range(4)] == [(1, 0, [1]), (1, 1, [2]), (1, 2, [3]), None]


def test_a_process_that_was_replaced_neither_puts_nor_takes_any_more(opened):
    receiver, one, other = opened
    assert one("put", 0, 1)
    old = other("open_store", {"q": ("add", 3)}, 1)  # another process in the name of worker 1
    assert old
    other("join")
    other("open_queue_as", 1, SIZE)
    assert other("put", 0, 2)
    assert one("put", 1, 3)  # nothing to wait for, and nothing put in
    assert [receiver("take") for _ in range(3)] == [(1, 0, [1]), (1, 0, [2]), None]
    other("open_store", {"q": ("add", 3)}, 2)


def test_what_was_put_in_before_a_restore_is_left_out(opened):
    receiver, one, _ = opened
    assert one("put", 0, 1)
    receiver("initialize", START_AT)
    receiver("join")
    assert receiver("take") is None
    one("join")
    assert one("put", 0, 2)
    assert receiver("take") == (1, 0, [2])


def test_senders_at_once_wait_for_room_and_nothing_is_lost_or_doubled(opened):
    receiver, one, other = opened
    receiver.begin("take_all", 200)
    for client in (one, other):
        client.begin("put_until_room", [(number, number) for number in range(100)])
    found = receiver.result()
    assert one.result() + other.result() > 0
    for worker in (1, 2):
        assert [item[1:] for item in found if item[0] == worker] == [(number, [number]) for number in range(100)]


# Whole runs.

TOTAL = 8_003
SMALL = ["local", "--env=CartPole-v1", "--num_workers=3", "--ps_deadline=120", f"--total_steps={TOTAL}", "--lease=20"]
ENDLESS = [*SMALL, "--total_steps=10_000_000"]
REPLAY = ["--agent=dqn", "--replay=global", "--checkpoint_period=2"]
ROLLOUTS = ["--agent=ppo", "--parallelism=data", "--checkpoint_period=2"]
SHARED = [*REPLAY, "--store=shared_memory"]
VTRACE = ["--agent=a3c", "--parallelism=data", "--rollouts_per_batch=2"]


def total_of(flags):
    """Steps of a run that is not over before its last worker has come."""
    return 40_003 if "--parallelism=data" in flags else TOTAL


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flags", [REPLAY, SHARED, ROLLOUTS, VTRACE], ids=["dqn", "shared-dqn", "ppo", "a3c"])
def test_every_step_of_a_run_crosses_and_counts_once(tmp_path, flags):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        local = start("local", *SMALL, *flags, f"--total_steps={total_of(flags)}", f"--logdir={run.path}")
        assert local.wait(RUN) == 0, local.out + local.err
        summary = summary_of(run)
    assert summary["env_steps"] == summary["steps_received"] == total_of(flags)
    assert summary["exit_reason"] == "finished"
    learner, *actors = summary["workers"]
    assert (learner["env_steps"], learner["minibatches"]) == (0, summary["minibatches"])
    assert sum(actor["env_steps"] for actor in actors) == total_of(flags) and all(
        actor["env_steps"] for actor in actors
    )
    assert [actor["minibatches"] for actor in actors] == [0, 0]
    assert summary["staleness_max"] == 0 and summary["data_age_mean"] > 0
    exchanged = [float(rows(run.worker(i) / "metrics.csv", 1)[0]["megabytes_exchanged"]) for i in range(3)]
    if flags == SHARED:  # where the learner steps the parameters in place, it fetches experience alone
        assert TOTAL * 4 * 4 / 1e6 < exchanged[0] < sum(exchanged[1:])  # four float32 an observation
    if flags in (REPLAY, SHARED):  # one for two steps of all actors together, once it is warm
        assert (TOTAL - 700) // 2 <= summary["minibatches"] <= TOTAL // 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flags", [REPLAY, SHARED, ROLLOUTS], ids=["dqn", "shared-dqn", "ppo"])
@pytest.mark.parametrize("victim", [0, 1], ids=["learner", "actor"])
def test_a_process_that_is_killed_loses_no_more_than_it_had_in_hand(tmp_path, flags, victim):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        more = [f"--total_steps={total_of(flags)}", "--log_period=0.1", f"--logdir={run.path}"]
        local = start("local", *SMALL, *flags, *more)
        for steps in (1_500, 4_000):
            wait_until_at(run, steps)
            kill(local, victim)
        assert local.wait(RUN) == 0, local.out + local.err
        summary = summary_of(run)
    assert (summary["env_steps"], summary["exit_reason"]) == (total_of(flags), "finished")
    # The run does not end without its learner, but an actor may not be back before the others are through.
    assert summary["worker_restarts"] in ((0, 1, 2) if victim else (2,))
    lost = summary["env_steps"] - summary["steps_received"]
    block = 32 * 8 if flags is ROLLOUTS else 16 * 4
    assert 0 <= lost <= 2 * 3 * block
    if victim:
        assert lost <= 2 * block


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_was_interrupted_goes_on_with_its_replay(tmp_path):
    run = RunDirectory(tmp_path / "run")
    with commands(tmp_path) as start:
        local = start("local", *ENDLESS, *REPLAY, f"--logdir={run.path}")
        wait_until_at(run, 3_000)
        os.kill(local.process.pid, signal.SIGINT)
        assert local.wait(40) == 130, local.out + local.err
        before = summary_of(run)
        assert before["exit_reason"] == "interrupted"
        total = before["env_steps"] + 2_001
        again = start("again", "local", "--resume", f"--total_steps={total}", f"--logdir={run.path}")
        assert again.wait(RUN) == 0, again.out + again.err
        after = summary_of(run)
    assert after["env_steps"] == total
    assert "replay is there again" in (run.logs / "worker-0.log").read_text()
    lost = before["env_steps"] - before["steps_received"]
    assert after["env_steps"] - after["steps_received"] == lost  # what was in the queue when it was interrupted
    assert 0 <= lost <= (4 + 3) * 16 * 4
