"""The store in this process."""

import threading

import numpy as np
import pytest
from fakes import descent, global_online, make_module, make_store, push

from async_dqn.nn import optimizers
from async_dqn.store.base import Counters, EpisodeReport, Standing, Update, WorkerStatus
from async_dqn.store.local import LocalParameterStore


def target(store):
    return store.pull_target()["q"].tolist()


def test_initialize_sets_online_and_target_and_starts_counting_again():
    store = make_store([1, 2], optimizer=optimizers.adam(), target_period=1)
    push(store, 1, 1, rate=0.1, minibatches=1)
    store.initialize({"q": np.array([3, 4], np.float32)})
    assert global_online(store) == target(store) == [3, 4]
    assert store.pull().counters == Counters()
    np.testing.assert_array_equal(store.state()["q/slot/m"], [0, 0])


def test_pushes_add_up_and_tell_the_counters_before_each():
    store = make_store([1, 2])
    assert push(store, 1, 0, env_steps=4) == Counters()
    assert push(store, 0, 10, env_steps=6) == Counters(updates=1, env_steps=4)
    assert global_online(store) == [1 + 1, 2 + 10]
    assert store.pull().counters == Counters(updates=1 + 1, env_steps=4 + 6)


def test_push_steps_with_the_optimizer_and_the_learning_rate():
    store = make_store([1, 2], optimizer=descent())
    push(store, 4, -8, rate=0.25)
    assert global_online(store) == [1 - 0.25 * 4, 2 + 0.25 * 8]


def test_each_module_has_its_own_optimizer_rate_and_target_or_none():
    modules = [
        make_module(2, "actor", optimizer=descent(), has_target=False),
        make_module(3, "critic", optimizer=optimizers.adam()),
    ]
    store = LocalParameterStore(modules, total_steps=100, target_period=2)
    store.initialize({"actor": np.array([10, 20], np.float32), "critic": np.zeros(3, np.float32)})
    actor, critic = np.array([1, 2], np.float32), np.array([4, -4, 0], np.float32)

    def assert_is(actor, critic, target):
        pulled = store.pull().online
        assert pulled["actor"].tolist() == actor
        np.testing.assert_allclose(pulled["critic"], critic, rtol=1e-5)
        assert store.pull_target().keys() == {"critic"}
        np.testing.assert_allclose(store.pull_target()["critic"], target, rtol=1e-5)

    both = {"actor": Update(actor, 0.5), "critic": Update(critic, 0.25)}
    store.push(both, Counters(updates=1, minibatches=1), 0)
    first = [-0.25, 0.25, 0]  # Adam's first step is the rate, along the sign
    assert_is([10 - 0.5 * 1, 20 - 0.5 * 2], first, [0, 0, 0])
    before, pulled = store.push_pull({"actor": Update(actor, 1.0)}, Counters(updates=1, minibatches=1), 0)
    assert (before.updates, pulled.counters.updates, pulled.counters.target_refreshes) == (1, 2, 1)
    assert {name: value.tolist() for name, value in pulled.online.items()} == {"actor": [9.5 - 1, 19 - 2]}
    assert_is([8.5, 17], first, first)
    store.push({"critic": Update(critic, 0.25)}, Counters(updates=1), 0)
    assert_is([8.5, 17], [-0.5, 0.5, 0], first)
    assert {name for name in store.state() if not name.startswith("counter/")} == {
        *("actor/online", "critic/online", "critic/target"),
        *("critic/slot/m", "critic/slot/v", "critic/slot/beta_powers"),
    }
    restored = LocalParameterStore(modules, total_steps=100, target_period=2)
    restored.restore(store.state())
    np.testing.assert_equal(restored.state(), store.state())


def test_what_was_pulled_does_not_change_with_later_pushes():
    store = make_store([1, 2], target_period=1)
    pulled, target, state = store.pull().online, store.pull_target(), store.state()
    push(store, 1, 1, minibatches=1)
    for array in (pulled["q"], target["q"], state["q/online"], state["q/target"]):
        np.testing.assert_array_equal(array, [1, 2])


REPORTS = {
    "push": lambda store, counts: store.push({}, counts, 0),
    "push_pull": lambda store, counts: store.push_pull({}, counts, 0),
    "claim_steps": lambda store, counts: store.claim_steps(4, counts),
    "add_counts": lambda store, counts: store.add_counts(counts),
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_target_is_refreshed_once_by_whoever_reports_that_the_minibatches_passed_a_multiple_of_the_period(report):
    store = make_store([0, 0], target_period=10)
    # minibatches reported: the global count is 9, 10, 10, 19, 21, 46, 49, 50
    counts = [9, 1, 0, 9, 2, 25, 3, 1]
    is_refreshed = [False, True, False, False, True, True, False, True]
    copied = 0
    for number, (minibatches, due) in enumerate(zip(counts, is_refreshed, strict=True), 1):
        push(store, 1, 0)  # so that online is `number`
        report(store, Counters(minibatches=minibatches))
        copied = number if due else copied
        assert target(store) == [copied, 0]
        assert store.pull().counters.target_refreshes == sum(is_refreshed[:number])


def test_a_refreshed_target_has_the_update_in_it_that_came_with_the_minibatches():
    store = make_store([0, 0], target_period=2)
    push(store, 1, 0, minibatches=1)
    assert target(store) == [0, 0]
    push(store, 2, 0, minibatches=1)
    push(store, 4, 0, minibatches=1)
    assert (target(store), global_online(store)) == ([1 + 2, 0], [1 + 2 + 4, 0])


def test_without_a_target_period_the_target_stays():
    store = make_store([0, 0])
    push(store, 1, 0, minibatches=1_000_000)
    assert (target(store), store.pull().counters.target_refreshes) == ([0, 0], 0)


def test_claims_end_exactly_with_the_budget():
    store = make_store(total_steps=20)
    grants = [store.claim_steps(8, Counters(minibatches=1)) for _ in range(4)]
    assert [granted for granted, _ in grants] == [8, 8, 20 - 2 * 8, 0]
    assert [counters.claimed_steps for _, counters in grants] == [8, 16, 20, 20]
    assert grants[-1][1].minibatches == 4


def test_check_gives_the_counters_and_the_one_worker():
    store = make_store(total_steps=20)
    store.claim_steps(8, Counters(env_steps=5))
    counters = Counters(claimed_steps=8, env_steps=5)
    assert store.check() == Standing(counters, [WorkerStatus("active", 1, counters)])


def test_a_store_in_this_process_drops_nothing_however_stale():
    store = make_store([1, 2])
    assert [push(store, 1, 1, computed_on=0).updates for _ in range(50)] == list(range(50))
    assert global_online(store) == [1 + 50, 2 + 50]
    assert store.pull().counters == Counters(updates=50)


def test_steps_given_back_by_a_push_are_granted_again():
    store = make_store(total_steps=20)
    assert store.claim_steps(20, Counters())[0] == 20
    push(store, 0, 0, claimed_steps=-5)
    assert store.claim_steps(20, Counters())[0] == 5


@pytest.mark.parametrize(
    ("given_back", "wanted", "stopped", "granted"),
    [(5, 0, 0, 0), (5, 3, 0, 3), (5, 10, 0, 5), (0, 10, 0, 0), (6, 4, 1, 0)],
)
def test_steps_given_back_by_a_claim_can_be_claimed_by_the_same(given_back, wanted, stopped, granted):
    store = make_store(total_steps=20)
    store.claim_steps(20, Counters(stopped=0))
    store.add_counts(Counters(stopped=stopped))
    now, counters = store.claim_steps(wanted, Counters(claimed_steps=-given_back))
    assert (now, counters.claimed_steps) == (granted, 20 - given_back + granted)


def test_claims_and_pushes_of_many_threads_are_exact():
    num_threads, budget, period = 8, 1_003, 5
    store = make_store([0, 0], total_steps=budget, target_period=period)
    barrier = threading.Barrier(num_threads)
    granted = [0] * num_threads
    befores: list[list[int]] = [[] for _ in range(num_threads)]

    def work(index):
        barrier.wait(30)
        while now := store.claim_steps(7, Counters())[0]:
            granted[index] += now
            before = push(store, now, 1, env_steps=now, minibatches=1)
            befores[index].append(before.updates)

    threads = [threading.Thread(target=work, args=[index]) for index in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    pushes = -(-budget // 7)
    assert sum(granted) == budget
    assert sorted(sum(befores, [])) == list(range(pushes))  # no two pushes saw the same counters
    assert global_online(store) == [budget, pushes]
    assert store.pull().counters == Counters(
        claimed_steps=budget,
        env_steps=budget,
        updates=pushes,
        minibatches=pushes,
        target_refreshes=pushes // period,
    )
    assert target(store)[1] == pushes // period * period


OPTIMIZERS = [optimizers.add(), optimizers.adam(), optimizers.rmsprop(), optimizers.rmsprop(centered=False)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_a_restored_store_goes_on_as_the_saved_one_would_have(optimizer):
    saved, restored = (make_store([1, 2, 3], optimizer=optimizer, target_period=3) for _ in range(2))
    gradients = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for gradient in gradients[:4]:
        push(saved, *gradient, rate=0.1, env_steps=4, minibatches=1)
    restored.restore(saved.state())
    for store in (saved, restored):
        push(store, *gradients[4], rate=0.1)
    np.testing.assert_equal(restored.state(), saved.state())
    assert restored.pull().counters == Counters(updates=5, env_steps=16, minibatches=4, target_refreshes=1)


def test_counters_are_restored_by_name_whatever_counters_the_saving_version_had():
    saved, restored = make_store(), make_store()
    push(saved, 1, 2, env_steps=4, bad_values=3)
    push(restored, 0, 0, bad_values=9)
    state = saved.state() | {"counter/moons": np.int64(7)}
    del state["counter/bad_values"]
    restored.restore(state)
    assert global_online(restored) == [1, 2]
    assert restored.pull().counters == Counters(updates=1, env_steps=4)


@pytest.mark.parametrize("missing", ["q/online", "q/target", "q/slot/m", "q/slot/beta_powers"])
def test_restore_names_what_a_state_lacks(missing):
    store = make_store(optimizer=optimizers.adam())
    state = {name: array for name, array in store.state().items() if name != missing}
    with pytest.raises(ValueError, match=missing):
        store.restore(state)


OTHERS = {
    "another size": make_module(3, optimizer=optimizers.adam()),
    "another name": make_module(2, "v", optimizer=optimizers.adam()),
    "without slots": make_module(2),
    "without a target": make_module(2, optimizer=optimizers.adam(), has_target=False),
    "another optimizer": make_module(2, optimizer=optimizers.rmsprop()),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_restore_refuses_the_state_of_other_modules_and_changes_nothing(other):
    store = make_store([1, 2], optimizer=optimizers.adam())
    push(store, 0, 0)
    with pytest.raises(ValueError, match="q/online"):
        store.restore(LocalParameterStore([other], 100).state())
    assert (global_online(store), store.pull().counters.updates) == ([1, 2], 1)


def test_reported_episodes_are_taken_once_and_in_order():
    store = make_store()
    games = [EpisodeReport(worker, -21.0 + worker, 800, 1_000 * worker, 0.5) for worker in range(3)]
    store.report_episodes(games[:2])
    store.report_episodes([])
    store.report_episodes(games[2:])
    assert store.take_episodes() == games
    assert store.take_episodes() == []
