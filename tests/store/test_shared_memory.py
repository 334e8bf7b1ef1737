"""The store in memory that processes share: with real processes, forked, each with a deadline."""

import errno
import os
import random
import signal
import time
import types

import numpy as np
import pytest
from cluster_helpers import wait_until
from fakes import heavy_ball, make_module, push
from shared_store_helpers import DEADLINE, MODULES, SIZE, Shared, assert_adds_up, wait

from async_dqn.base.errors import RunError, UserError
from async_dqn.nn import optimizers
from async_dqn.run import build
from async_dqn.store.base import Counters, EpisodeReport, Stop, Update
from async_dqn.store.hogwild_client import HogwildClient
from async_dqn.store.local import LocalParameterStore
from async_dqn.store.shared_memory import SharedMemoryStore, create


def test_every_count_of_many_processes_is_there():
    shared = Shared(target_period=10)
    before = shared.store.state()["q/online"]

    def work(store, worker):
        store.arrays["q/online"][worker] = 1  # nobody else writes it
        for _ in range(300):
            store.add_counts(Counters(minibatches=1, updates=1, staleness_sum=2, staleness_max=worker))

    shared.in_processes(work)
    assert shared.store.check().counters == Counters(
        minibatches=900, updates=900, staleness_sum=1_800, staleness_max=2, target_refreshes=90
    )
    assert_adds_up(shared.store)
    assert shared.store.pull_target().keys() == {"q"}
    np.testing.assert_array_equal(shared.store.pull_target()["q"][:3], [1, 1, 1])
    np.testing.assert_array_equal(shared.store.pull().online["q"][3:], before[3:])


def test_the_budget_is_met_exactly_by_many_processes():
    shared = Shared(total_steps=1_003)

    def work(store, worker):
        store.join()
        taken = 0
        while granted := store.claim_steps(7, Counters(env_steps=taken))[0]:
            taken = granted
        store.add_counts(Counters())
        store.leave()

    shared.in_processes(work)
    counters, workers = shared.store.check()
    assert counters.claimed_steps == counters.env_steps == 1_003
    assert [(worker.state, worker.starts) for worker in workers] == [("done", 1)] * 3
    assert_adds_up(shared.store)


@pytest.mark.parametrize("seed", range(3))
def test_whenever_a_process_is_killed_counts_are_whole_and_nobody_waits_for_it(seed):
    shared, rng = Shared(target_period=3, total_steps=10**9), random.Random(seed)

    def work(store, worker):
        while True:
            store.claim_steps(5, Counters(env_steps=5, minibatches=1))

    for start in range(1, 11):
        pid = shared.start(work, worker=1)
        enough = shared.store.check().counters.env_steps + rng.randrange(5, 500)
        wait_until(lambda enough=enough: shared.store.check().counters.env_steps > enough, DEADLINE, "it counts")
        os.kill(pid, signal.SIGKILL)
        assert wait(pid) == -signal.SIGKILL
        assert_adds_up(shared.store)
        counters = shared.store.check().counters
        assert counters.env_steps == 5 * counters.minibatches
        assert counters.target_refreshes == counters.minibatches // 3
        assert shared.store.add_counts(Counters(bad_values=1)).bad_values == start


def test_a_lock_whose_holder_was_killed_is_free():
    shared = Shared()

    def work(store, worker):
        with store._table.change() as rows:
            rows[:] = -1
            store.arrays["q/online"][0] = 1
            time.sleep(DEADLINE)

    pid = shared.start(work, worker=2)
    wait_until(lambda: shared.store.arrays["q/online"][0] == 1, DEADLINE, "it holds the lock")
    assert shared.store.starts(1) == 0  # what is read without it
    os.kill(pid, signal.SIGKILL)
    wait(pid)
    assert shared.store.check().counters == Counters()


@pytest.mark.parametrize("pulls", [True, False])
def test_pushes_of_many_processes_are_those_of_one_that_makes_them_in_the_same_order(tmp_path, pulls):
    modules = [make_module(SIZE, "q", optimizer=optimizers.adam()), make_module(SIZE, "V", optimizer=heavy_ball())]
    shared = Shared(modules)

    def updates(worker, number):
        values = np.random.default_rng([worker, number]).normal(size=(2, SIZE)).astype(np.float32)
        return {name: Update(value, 0.01) for name, value in zip("qV", values, strict=True)}

    def work(store, worker):
        with open(tmp_path / str(worker), "w") as file:
            for number in range(100):
                arguments = (updates(worker, number), Counters(updates=1), 0)
                if pulls:
                    before, pulled = store.push_pull(*arguments)
                    assert pulled.counters.updates == before.updates + 1
                else:
                    before = store.push(*arguments)
                file.write(f"{before.updates} {worker} {number}\n")

    shared.in_processes(work)
    order = sorted([*map(int, line.split())] for path in tmp_path.iterdir() for line in path.read_text().splitlines())
    assert [place for place, *_ in order] == [*range(300)]
    serial = LocalParameterStore(modules, 1_000)
    serial.initialize({name: np.zeros(SIZE, np.float32) for name in "qV"})
    for _, worker, number in order:
        serial.push(updates(worker, number), Counters(updates=1), 0)
    np.testing.assert_equal(shared.store.state(), serial.state())


def test_updates_that_are_too_stale_are_dropped_and_counted():
    shared = Shared(max_staleness=1)
    for _ in range(3):
        push(shared.store, *[1.0] * SIZE)
    assert shared.store.pull().online["q"][0] == 2
    assert shared.store.check().counters[:5] == Counters(updates=2, dropped=1)[:5]


def test_a_client_reads_and_steps_the_memory_itself():
    shared = Shared()
    client = HogwildClient(shared.open(1), max_nonfinite=3)
    client.start()
    other = shared.open(2)
    other.arrays["q/online"][:] = 3
    other.arrays["q/target"][:] = 4
    assert (client.online["q"].read_value().numpy() == 3).all()
    assert (client.target["q"].read_value().numpy() == 4).all()
    minibatch(client)
    assert (other.arrays["q/online"] == 3 + 1).all()  # "q" adds
    np.testing.assert_allclose(other.arrays["V/online"], -1.0, rtol=1e-4)  # Adam's first step is the rate
    assert (client.online["q"].read_value().numpy() == 4).all()
    other.arrays["q/online"][:] = 5
    assert (client.online["q"].read_value().numpy() == 5).all()


def test_an_optimizer_rests_where_a_minibatch_says_nothing_of_its_module():
    shared = Shared()
    client = HogwildClient(shared.open(1), max_nonfinite=3)
    client.start()
    minibatch(client)
    before = {name: one.copy() for name, one in shared.store.arrays.items() if name.startswith("V/")}
    assert len(before) > 2
    minibatch(client, silent="V")
    for name, array in before.items():
        np.testing.assert_array_equal(shared.store.arrays[name], array, err_msg=name)
    assert (shared.store.arrays["q/online"] == 2).all()


def minibatch(client, meanwhile=lambda: None, silent=""):
    """A gradient of ones for every module, and of zeros for the one that it says nothing of."""
    import tensorflow as tf

    client.before_minibatch()
    meanwhile()
    gradients = [tf.fill([module.size], float(module.name != silent)) for module in client.modules]
    client.consume(gradients, tf.constant(client.rates()))
    client.after_minibatch()


@pytest.mark.parametrize(("max_staleness", "is_dropped"), [(0, False), (3, False), (2, True)])
def test_the_staleness_of_an_update_is_that_of_others_counted_meanwhile(max_staleness, is_dropped):
    shared = Shared(max_staleness=max_staleness)
    client = HogwildClient(shared.open(1), max_nonfinite=3)
    other = shared.open(2)
    other.add_counts(Counters(updates=5))
    client.start()
    minibatch(client, lambda: [other.add_counts(Counters(updates=1)) for _ in range(3)])
    minibatch(client)
    counters = shared.store.check().counters
    assert counters.dropped == int(is_dropped)
    assert counters.updates == 5 + 3 + 2 - int(is_dropped)
    assert client.stalenesses == ([0] if is_dropped else [3, 0])
    assert (counters.staleness_sum, counters.staleness_max) == ((0, 0) if is_dropped else (3, 3))
    assert (shared.store.arrays["q/online"] == 2 - int(is_dropped)).all()


def test_what_a_lost_worker_had_claimed_may_be_claimed_again():
    shared = Shared(total_steps=100)
    first, second = shared.open(1), shared.open(2)
    assert first.join().run_id == 7
    second.join()
    assert first.claim_steps(90, Counters())[0] == 90
    first.add_counts(Counters(env_steps=30))
    assert second.claim_steps(50, Counters())[0] == 10
    assert shared.store.starts(1) == 1
    shared.store.lose(1, 0)  # it is of the process before
    assert second.claim_steps(50, Counters())[0] == 0
    shared.store.lose(1, 1)
    assert shared.store.starts(1) is None
    assert [worker.state for worker in shared.store.check().workers] == ["expected", "lost", "active"]
    assert second.claim_steps(50, Counters())[0] == 50
    first.join()
    assert second.claim_steps(50, Counters(claimed_steps=-5))[0] == 10 + 5
    first.leave()
    assert shared.store.starts(1) is None
    assert shared.store.check().workers[1][:2] == ("done", 2)
    assert_adds_up(shared.store)


def test_after_a_stop_nothing_is_granted():
    shared = Shared()
    shared.store.add_counts(Counters(stopped=Stop.SOLVED))
    assert shared.open(1).claim_steps(5, Counters(env_steps=0)) == (0, Counters(stopped=Stop.SOLVED))


def test_games_of_many_processes_arrive_once_and_whole():
    shared = Shared()

    def work(store, worker):
        for number in range(50):
            store.report_episodes([EpisodeReport(worker, 1.5, number, 3, 0.25)] * 2)

    taken = []
    for _ in range(3):
        shared.in_processes(work)
        taken += shared.store.take_episodes()
    assert sorted(taken) == sorted([EpisodeReport(w, 1.5, n, 3, 0.25) for w in range(3) for n in range(50)] * 6)
    assert shared.store.take_episodes() == []


def test_games_beyond_what_there_is_room_for_are_passed_over(monkeypatch):
    monkeypatch.setattr("async_dqn.store.shared_memory._MAX_EPISODES", 4)
    shared = Shared()
    games = [EpisodeReport(0, 1.0, number, 0, 0.0) for number in range(12)]
    shared.store.report_episodes(games[:3])
    assert shared.store.take_episodes() == games[:3]
    shared.store.report_episodes(games[3:9])
    assert shared.store.take_episodes() == games[3:7]  # around the end of the ring


def test_a_worker_waits_for_the_chief():
    shared = Shared.__new__(Shared)
    shared.modules, shared.options = MODULES, {"num_workers": 3, "total_steps": 10}
    shared.descriptor = create(SharedMemoryStore.required_bytes(MODULES, 3))
    store = shared.open(1)
    assert not store.is_ready()
    with pytest.raises(RunError, match="worker 0, the chief"):
        store.wait_until_ready(0.05, lambda: False)
    store.wait_until_ready(DEADLINE, lambda: True)
    shared.open(0).initialize({module.name: np.ones(module.size, np.float32) for module in MODULES})
    store.wait_until_ready(DEADLINE, lambda: False)
    assert store.is_ready()


def test_a_state_of_another_network_is_refused():
    shared = Shared()
    state = shared.store.state()
    with pytest.raises(ValueError, match="q/online"):
        shared.store.restore(state | {"q/online": np.zeros(SIZE + 1, np.float32)})
    shared.store.restore(state | {"counter/env_steps": np.int64(5)})
    assert shared.store.check().counters == Counters(env_steps=5)


def agent_of(num_workers=2):
    config = types.SimpleNamespace(num_workers=num_workers, mode="hogwild")
    return types.SimpleNamespace(modules=MODULES, config=config)


def test_too_little_memory_is_said_before_anything_starts(monkeypatch):
    monkeypatch.setattr(build, "available_bytes", lambda: 1_000_000)
    with pytest.raises(UserError, match="^--store=shared_memory needs 0.01 GB .* 0.00 GB is available"):
        build.create_shared_memory(agent_of())

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.undo()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match="No space left on device.*--store=ps"):
        build.create_shared_memory(agent_of())


@pytest.mark.parametrize("descriptor", [-1, 10_000, 0])
def test_a_descriptor_of_something_else_is_refused(descriptor):
    with pytest.raises(UserError, match=f"^--memory={descriptor}: "):
        build.make_shared_store(agent_of(), descriptor)
