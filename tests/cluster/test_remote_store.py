"""Tests of async_dqn.cluster.remote_store: real parameter servers, and workers in processes of their own."""

import contextlib
import functools
import signal
import time

import numpy as np
import pytest
from cluster_helpers import START as SECONDS
from cluster_helpers import StoreCluster, num_unheard, store_cluster, tell, wait_until
from fakes import make_module

from async_dqn.cluster.done_queue import ALIVE
from async_dqn.cluster.remote_store import new_token
from async_dqn.cluster.shards import shard_sizes
from async_dqn.nn import optimizers
from async_dqn.store.base import Counters, EpisodeReport, MemberState, Stop, Update, WorkerStatus, saved_counters
from async_dqn.store.local import LocalParameterStore

P = 7  # parameters: 4 + 3 on two ps, 3 + 2 + 2 on three
BUDGET = 1_003
START = {"q": np.arange(P, dtype=np.float32)}
ONES = np.ones(P, np.float32)
SOCKETS = {"may_share_memory": False}
HALF = {"wire_dtype": "bfloat16"}


def _q(update, rate):
    """What is pushed to the one module that most tests have."""
    return {"q": Update(update, rate)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with store_cluster(tmp_path_factory.mktemp("store"), num_ps=2, num_workers=2, total_steps=BUDGET) as cluster:
        yield cluster


@pytest.fixture
def opened(cluster):
    """Opens the store with an optimizer, on parameters 0 ... P - 1, and gives both workers, which have joined."""

    def open_store(optimizer: str, **options):
        cluster.open({"q": (optimizer, P)}, **options)
        cluster.clients[0]("initialize", START)
        for client in cluster.clients:
            client("join")
        return cluster.clients

    return open_store


def _updates(seed: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 8, P).astype(np.float32) for _ in range(count)]


def _trained_state(count: int = 5) -> dict[str, np.ndarray]:
    """A state in which every array differs from its start."""
    store = LocalParameterStore([make_module(P, optimizer=optimizers.adam())], BUDGET, target_period=3 * count)
    store.initialize(START)
    for number, update in enumerate(_updates(1, count)):
        store.push(_q(update, 0.1), Counters(updates=1, minibatches=3, staleness_max=number), 0)
    assert store.pull().counters.target_refreshes == 1
    store.push(_q(ONES, 0.1), Counters(updates=1, env_steps=12, claimed_steps=20), 0)
    return store.state()


def _assert_equal(state, expected):
    assert sorted(state) == sorted(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)
        assert state[name].dtype == array.dtype, name


def _without_counters(state):
    return {name: array for name, array in state.items() if not name.startswith("counter/")}


@pytest.mark.parametrize(("parameters", "shards"), [(7, 1), (7, 2), (7, 3), (6, 3), (1_685_667, 64)])
def test_shards_are_nearly_equal(parameters, shards):
    sizes = shard_sizes(parameters, shards)
    assert (len(sizes), sum(sizes)) == (shards, parameters)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.cluster
def test_every_ps_holds_one_shard_of_every_vector(opened):
    devices = opened("adam")[0]("devices")
    for name in ("online", "target", "slot/m", "slot/v"):
        shards = [devices[f"q/{name}_{k}"] for k in range(2)]
        assert [size for _, size in shards] == [4, 3], name
        for k, (device, _) in enumerate(shards):
            assert f"/job:ps/task:{k}" in device or f"/job:ps/replica:0/task:{k}" in device, name
    assert "task:0" in devices["ledger_0"][0]
    assert all("/job:ps" in device for device, _ in devices.values())


@pytest.mark.cluster
def test_no_lock_is_held_while_something_is_on_its_way(opened):
    assert opened("adam")[0]("awaited_in_locks") == []


@pytest.mark.cluster
@pytest.mark.parametrize("method", ["push", "push_pull"])
def test_updates_of_two_processes_add_up_exactly(opened, method):
    clients = opened("add")
    pushes = [_updates(seed, 60) for seed in (2, 3)]
    for client, updates in zip(clients, pushes, strict=True):
        client.begin("each_at_once", method, [(_q(update, 0.1), Counters(updates=1), 0) for update in updates])
    answers = [client.result() for client in clients]
    if method == "push_pull":
        answers = [[before for before, _ in answer] for answer in answers]
    heard = [[before.updates for before in answer] for answer in answers]

    expected = np.arange(P) + np.sum([*pushes[0], *pushes[1]], axis=0)
    for client in clients:
        pulled = client("pull")
        np.testing.assert_array_equal(pulled.online["q"], expected)
        assert pulled.counters.updates == 120
    # Each push heard how many came before it: between them, two processes hear every number once.
    assert sorted(heard[0] + heard[1]) == list(range(120))
    np.testing.assert_array_equal(clients[1]("pull_target")["q"], np.arange(P))


@pytest.mark.cluster
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_pushes_equal_those_to_a_local_store(opened, optimizer):
    client, other = opened(optimizer, target_period=30)
    local = LocalParameterStore([make_module(P, optimizer=getattr(optimizers, optimizer)())], BUDGET, 30)
    local.initialize(START)
    pushes = [
        (_q(update, 0.1 / number), Counters(updates=1), 0) for number, update in enumerate(_updates(4, 20), start=1)
    ]
    client("each", "push", pushes)
    for push in pushes:
        local.push(*push)
    np.testing.assert_allclose(other("pull").online["q"], local.pull().online["q"], rtol=0, atol=1e-6)
    assert np.abs(local.pull().online["q"] - np.arange(P)).max() > 0.01  # they did move

    for store in (local.add_counts, functools.partial(client, "add_counts")):
        store(Counters(minibatches=31))
    np.testing.assert_allclose(other("pull_target")["q"], local.pull_target()["q"], rtol=0, atol=1e-6)
    assert other("pull").counters == local.pull().counters == Counters(updates=20, minibatches=31, target_refreshes=1)


@pytest.mark.cluster
def test_with_half_the_bytes_updates_and_what_is_pulled_are_rounded_but_not_the_network(opened):
    client, _ = opened("add", target_period=1, **HALF)  # 8 significant bits: beyond 256 even numbers only
    client("push", _q(np.full(P, 257, np.float32), 0.0), Counters(updates=1), 0)
    client("push", _q(np.full(P, 1, np.float32), 0.0), Counters(updates=1), 0)
    exact = np.arange(P) + 256 + 1
    np.testing.assert_array_equal(client("state")["q/online"], exact)
    pulled = client("pull").online["q"]
    assert pulled.dtype == np.float32
    np.testing.assert_array_equal(pulled, [256, 258, 260, 260, 260, 262, 264])  # ties go to the even mantissa
    client("add_counts", Counters(minibatches=1))
    np.testing.assert_array_equal(client("pull_target")["q"], exact)


@pytest.mark.cluster
def test_means_that_are_not_trained_are_never_rounded(cluster):
    cluster.open({"q": ("add", P), "SEEN": ("average", P)}, **HALF)
    client, means = cluster.clients[0], np.full(P, 257, np.float32)
    client("initialize", START | {"SEEN": np.zeros(P, np.float32)})
    client("join")
    pulled = client("push_pull", {"SEEN": Update(means, 1.0)}, Counters(updates=1), 0)[1]
    for found in (pulled, client("pull")):
        np.testing.assert_array_equal(found.online["SEEN"], means)


@pytest.mark.cluster
def test_claims_of_two_processes_meet_the_budget_exactly(opened):
    clients = opened("add")
    for client, wanted in zip(clients, (7, 5), strict=True):
        # Each alone asks for more than there is, as it may be done before the other begins.
        client.begin("each_at_once", "claim_steps", [(wanted, Counters())] * (BUDGET // wanted + 2))
    answers = [client.result() for client in clients]
    granted = [[steps for steps, _ in answer] for answer in answers]
    assert sum(map(sum, granted)) == BUDGET
    assert max(counters.claimed_steps for answer in answers for _, counters in answer) == BUDGET
    for own, wanted in zip(granted, (7, 5), strict=True):
        partial = [steps for steps in own if steps not in (0, wanted)]
        assert len(partial) <= 1 and all(0 < steps < wanted for steps in partial)
        assert own[-1] == 0


@pytest.mark.cluster
def test_claimed_steps_that_were_given_back_can_be_claimed_again(opened):
    first, second = opened("add")
    assert first("claim_steps", BUDGET, Counters())[0] == BUDGET
    assert second("claim_steps", 10, Counters())[0] == 0
    first("add_counts", Counters(claimed_steps=-4))
    assert second("claim_steps", 10, Counters())[0] == 4
    second("add_counts", Counters(claimed_steps=-4, stopped=Stop.SOLVED))
    assert first("claim_steps", 10, Counters()) == (0, Counters(claimed_steps=BUDGET - 4, stopped=Stop.SOLVED))


@pytest.mark.cluster
def test_counters_add_up_and_the_largest_staleness_stays(opened):
    clients = opened("add")
    for client, stalenesses in zip(clients, ((1, 9, 2), (3, 5, 4)), strict=True):
        counts = [Counters(env_steps=2, bad_values=1, staleness_sum=s, staleness_max=s) for s in stalenesses]
        client.begin("each_at_once", "add_counts", [(count,) for count in counts])
    for client in clients:
        client.result()
    expected = Counters(env_steps=12, bad_values=6, staleness_sum=24, staleness_max=9)
    assert clients[0]("add_counts", Counters()) == expected
    assert clients[1]("pull").counters == expected


@pytest.mark.cluster
def test_episodes_arrive_once_and_whole(opened):
    chief, other = opened("add")
    assert chief("take_episodes") == []
    reports = [EpisodeReport(1, 195.5 + i, 200 + i, 1_000 * i, 1.7e9 + i / 8) for i in range(3)]
    other("report_episodes", reports[:1])
    chief("report_episodes", [])
    other("report_episodes", reports[1:])
    assert chief("take_episodes") == reports
    assert chief("take_episodes") == []


@pytest.mark.cluster
@pytest.mark.parametrize("arrives", [True, False], ids=["reply lost", "call lost"])
def test_episodes_that_were_sent_again_count_once(opened, arrives):
    chief, other = opened("add")
    reports = [EpisodeReport(1, -21.0, 800, 1_000, 1.7e9 + i / 8) for i in range(3)]
    other("fault", "lose_next_step", arrives)
    other("report_episodes", reports[:2])
    assert chief("take_episodes") == reports[:2]
    other("report_episodes", reports[1:])  # as after an outage between the first report and its answer
    assert chief("take_episodes") == reports[2:]


@pytest.mark.cluster
def test_state_equals_that_of_a_local_store(opened):
    client, other = opened("adam")
    expected = _trained_state()
    client("restore", expected)
    _assert_equal(other("state"), expected)


@pytest.mark.cluster
def test_a_state_of_another_network_or_optimizer_is_refused(opened):
    client = opened("adam")[0]
    state = client("state")
    without_slots = {name: array for name, array in state.items() if not name.startswith("q/slot/")}
    for wrong in ({}, without_slots, state | {"q/online": np.zeros(P + 1, np.float32)}):
        with pytest.raises(RuntimeError, match="ValueError: saved arrays .* are not those of these networks"):
            client("restore", wrong)
    _assert_equal(client("state"), state)


@pytest.mark.cluster
@pytest.mark.parametrize("num_ps", [1, 3])
def test_a_state_of_two_shards_restores_on_another_number(opened, tmp_path, num_ps):
    client = opened("adam")[0]
    client("restore", _trained_state())
    client("join")
    client("push", _q(_updates(5, 1)[0], 0.1), Counters(updates=1), 0)
    saved = client("state")

    with store_cluster(tmp_path, num_ps, num_workers=1, total_steps=BUDGET) as another:
        another.open({"q": ("adam", P)})
        restored = another.clients[0]
        assert restored("is_ready") is False
        with pytest.raises(RuntimeError, match="RunError: worker 0, the chief, has not initialised .* within 0 s"):
            restored("wait_until_ready", 0.2)

        restored("restore", saved)
        restored("wait_until_ready", 0.0)
        assert restored("is_ready") is True
        restored("join")
        _assert_equal(restored("state"), saved)
        push = (_q(_updates(6, 1)[0], 0.1), Counters(updates=1), 0)
        restored("push", *push)
        client("push", *push)
        np.testing.assert_allclose(restored("pull").online["q"], client("pull").online["q"], rtol=0, atol=1e-6)


@pytest.mark.cluster
@pytest.mark.parametrize("arrives", [True, False], ids=["reply lost", "call lost"])
def test_a_lost_step_is_noticed_and_counted_once(opened, arrives):
    first, second = opened("add")
    first("fault", "lose_next_step", arrives)
    granted, counters = first("claim_steps", 5, Counters(env_steps=2))
    assert (granted, counters.claimed_steps, counters.env_steps) == (5, 5, 2)
    first("fault", "lose_next_step", arrives)
    before = first("push", _q(ONES, 1.0), Counters(updates=1, minibatches=4), 0)
    online, counters = second("pull")
    assert (counters.updates, counters.minibatches) == (1, 4)
    assert before.claimed_steps == 5
    np.testing.assert_array_equal(online["q"], np.arange(P) + 1)  # sent again, and applied once
    first("fault", "lose_next_step", arrives)
    np.testing.assert_array_equal(first("pull").online["q"], online["q"])
    assert len(first.warnings) >= 3
    assert all("was lost (no answer within" in text for text in first.warnings)


@pytest.mark.cluster
@pytest.mark.parametrize("arrives", [True, False], ids=["reply lost", "call lost"])
def test_a_push_whose_answer_was_lost_is_told_the_counters_before_it(opened, arrives):
    # Were they those after it, the worker would add its own counts to them once more; its counters never fall, and it
    # might take the budget for spent while steps are left.
    first, second = opened("add")
    second("add_counts", Counters(env_steps=5))
    first("fault", "lose_next_step", arrives)
    before = first("push", _q(ONES, 1.0), Counters(updates=1, env_steps=4), 0)
    assert before == Counters(env_steps=5)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("add", {}),
        ("adam", {}),
        ("add", SOCKETS),
        ("adam", SOCKETS),
        ("add", HALF),
    ],
)
def test_a_push_pull_is_a_push_and_then_a_pull(opened, optimizer, options):
    first, second = opened(optimizer, **options)
    assert [bool(address) for address in first("share_memory")] == [not options] * 2
    store = LocalParameterStore([make_module(P, optimizer=getattr(optimizers, optimizer)())], BUDGET)
    store.initialize(START)
    for number, update in enumerate(_updates(2, 4)):
        counts = Counters(updates=1, minibatches=3)
        worker = (first, second)[number % 2]
        before, pulled = worker("push_pull", _q(update, 0.5), counts, number)
        expected_before, expected = store.push_pull(_q(update, 0.5), counts, number)
        assert (before, pulled.counters) == (expected_before, expected.counters)
        assert pulled.online["q"].dtype == np.float32
        tolerance = 1e-2 if options == HALF else 1e-6
        np.testing.assert_allclose(pulled.online["q"], expected.online["q"], rtol=tolerance, atol=1e-6)


@pytest.mark.cluster
def test_a_push_pull_whose_update_is_too_stale_pulls_all_the_same(opened):
    first, second = opened("add", max_staleness=1)
    for _ in range(3):
        second("push", _q(ONES, 0.0), Counters(updates=1), 99)
    before, pulled = first("push_pull", _q(np.full(P, 100, np.float32), 0.0), Counters(updates=1), 0)
    assert (before.updates, pulled.counters) == (3, Counters(updates=3, dropped=1))
    np.testing.assert_array_equal(pulled.online["q"], np.arange(P) + 3)


@pytest.mark.cluster
@pytest.mark.parametrize("arrives", [True, False], ids=["reply lost", "call lost"])
@pytest.mark.parametrize("options", [{}, SOCKETS], ids=["shared memory", "sockets"])
def test_a_push_pull_that_was_lost_is_counted_once_and_pulls_again(opened, arrives, options):
    first, _ = opened("add", **options)
    segments = first("share_memory")
    first("fault", "lose_next_step", arrives)
    before, pulled = first("push_pull", _q(ONES, 1.0), Counters(updates=1, env_steps=4), 0)
    assert (before, pulled.counters) == (Counters(), Counters(updates=1, env_steps=4))
    np.testing.assert_array_equal(pulled.online["q"], np.arange(P) + 1)

    before, pulled = first("push_pull", _q(np.full(P, 10, np.float32), 1.0), Counters(updates=1), 0)
    np.testing.assert_array_equal(pulled.online["q"], np.arange(P) + 11)
    # What was lost might still read or write the old ones.
    assert options or not set(segments) & set(first("share_memory"))


@pytest.mark.cluster
@pytest.mark.parametrize("elsewhere", [0, 1])
def test_a_ps_on_another_host_is_reached_over_the_network_and_one_beside_it_is_not(tmp_path, elsewhere):
    with store_cluster(tmp_path, num_ps=2, num_workers=1, total_steps=BUDGET) as cluster:
        (worker,) = cluster.clients
        worker("be_elsewhere", elsewhere)
        cluster.open({"q": ("add", P)})
        worker("initialize", START)
        worker("join")
        assert [bool(address) for address in worker("share_memory")] == [elsewhere != 0, elsewhere != 1]
        assert [line.partition(":")[0] for line in worker.warnings] == [f"no memory is shared with ps {elsewhere}"]
        for number in range(1, 4):
            _, pulled = worker("push_pull", _q(ONES, 0.5), Counters(updates=1), 0)
            np.testing.assert_array_equal(pulled.online["q"], np.arange(P) + number)


@pytest.mark.cluster
def test_a_worker_whose_system_refuses_memory_goes_over_the_network(tmp_path):
    with store_cluster(tmp_path, num_ps=2, num_workers=1, total_steps=BUDGET) as cluster:
        (worker,) = cluster.clients
        worker("be_without_memory")
        cluster.open({"q": ("add", P)})
        worker("initialize", START)
        worker("join")
        for number in range(1, 4):
            _, pulled = worker("push_pull", _q(ONES, 0.5), Counters(updates=1), 0)
            np.testing.assert_array_equal(pulled.online["q"], np.arange(P) + number)
        assert worker("share_memory") == ["", ""]
        assert worker.warnings == ["no memory is shared (Operation not permitted): parameters go over the network"]


@pytest.fixture
def two_modules(cluster):
    """Both workers on a store of a module "q" that has a target, and a larger one "WORLD" that has none."""
    cluster.open({"q": ("add", P), "WORLD": ("adam", 2 * P)}, target_period=4)
    start = START | {"WORLD": np.full(2 * P, 5, np.float32)}
    cluster.clients[0]("initialize", start)
    for client in cluster.clients:
        client("join")
    return cluster.clients


def _both(number: int) -> dict[str, Update]:
    return _q(ONES * number, 0.5) | {"WORLD": Update(np.arange(2 * P, dtype=np.float32) - number, 0.1)}


@pytest.mark.cluster
@pytest.mark.parametrize("method", ["push", "push_pull"])
def test_two_modules_on_two_ps_are_what_they_are_in_one_process(two_modules, method):
    modules = [make_module(P), make_module(2 * P, "WORLD", optimizer=optimizers.adam(), has_target=False)]
    local = LocalParameterStore(modules, BUDGET, 4)
    local.initialize(START | {"WORLD": np.full(2 * P, 5, np.float32)})
    counts = Counters(updates=1, minibatches=3)
    pushed = [_both(1), _both(2), {"WORLD": _both(3)["WORLD"]}, {"q": _both(4)["q"]}, _both(5)]
    for number, updates in enumerate(pushed):
        found = two_modules[number % 2](method, updates, counts, number)
        expected = getattr(local, method)(updates, counts, number)
        if method == "push":
            assert found == expected
        else:
            assert (found[0], found[1].counters) == (expected[0], expected[1].counters)
            assert found[1].online.keys() == updates.keys()
            for name in updates:
                np.testing.assert_allclose(found[1].online[name], expected[1].online[name], rtol=1e-6)
    found, expected = two_modules[0]("state"), local.state()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, err_msg=name)
    np.testing.assert_array_equal(two_modules[1]("pull_target")["q"], local.pull_target()["q"])


@pytest.mark.cluster
def test_targets_are_refreshed_once_a_period_when_two_workers_counts_cross_it(opened):
    clients = opened("add", target_period=10)
    for client in clients:
        pushes = [(_q(ONES, 0.1), Counters(updates=1, minibatches=3), 0)] * 40
        client.begin("each_at_once", "push_pull", pushes)
    seen = sorted(pulled.counters for client in clients for _, pulled in client.result())
    by_minibatches = {counters.minibatches: counters.target_refreshes for counters in seen}
    assert by_minibatches == {3 * number: 3 * number // 10 for number in range(1, 81)}


@pytest.mark.cluster
@pytest.mark.parametrize("method", ["push", "push_pull", "add_counts"])
@pytest.mark.parametrize("arrives", [True, False], ids=["reply lost", "call lost"])
def test_a_refresh_in_a_step_that_was_lost_happens_once(opened, arrives, method):
    first, second = opened("add", target_period=10)
    second("push", _q(ONES, 1.0), Counters(updates=1, minibatches=9), 0)
    np.testing.assert_array_equal(second("pull_target")["q"], START["q"])
    first("fault", "lose_next_step", arrives)
    if method == "add_counts":
        first(method, Counters(minibatches=3))
    else:
        first(method, _q(ONES, 1.0), Counters(updates=1, minibatches=3), 0)
    online, counters = second("pull")
    assert (counters.minibatches, counters.target_refreshes) == (12, 1)
    np.testing.assert_array_equal(second("pull_target")["q"], online["q"])
    second("push", _q(ONES, 1.0), Counters(updates=1, minibatches=7), 0)  # short of 20
    first("add_counts", Counters())
    np.testing.assert_array_equal(first("pull_target")["q"], online["q"])
    assert first("pull").counters.target_refreshes == 1


@pytest.mark.cluster
def test_a_target_is_pulled_with_the_refresh_that_is_counted_but_has_not_reached_every_shard(opened):
    first, second = opened("add", target_period=10)
    second("push", _q(ONES, 1.0), Counters(updates=1, minibatches=9), 0)
    first("fault", "push_to_some", _q(ONES, 1.0), Counters(updates=1, minibatches=1), [0])
    online, counters = second("pull")
    assert counters.target_refreshes == 1 and set(online["q"] - START["q"]) == {1, 2}
    np.testing.assert_array_equal(second("pull_target")["q"], online["q"])


@pytest.mark.cluster
def test_counts_without_a_push_refresh_targets_too(opened):
    first, second = opened("add", target_period=10)
    first("push", _q(ONES, 1.0), Counters(updates=1), 0)
    second("add_counts", Counters(minibatches=9))
    np.testing.assert_array_equal(second("pull_target")["q"], START["q"])
    assert first("claim_steps", 5, Counters(minibatches=1))[1].target_refreshes == 1
    np.testing.assert_array_equal(second("pull_target")["q"], START["q"] + 1)


@pytest.mark.cluster
def test_a_join_whose_answer_was_lost_is_one_start(opened):
    first, _ = opened("add")
    first("leave")
    first("fault", "lose_next_step", True)
    assert first("join").members[0].starts == 2


@pytest.mark.cluster
def test_workers_join_and_leave(opened):
    first, second = opened("add")
    first("claim_steps", 10, Counters())
    first("add_counts", Counters(env_steps=4, minibatches=2))
    own = Counters(claimed_steps=10, env_steps=4, minibatches=2)
    assert second("check").workers == [WorkerStatus("active", 1, own), WorkerStatus("active", 1, Counters())]
    ledger = second("read_ledger")
    assert [member.outstanding for member in ledger.members] == [10 - 4, 0]
    assert ledger.generation > 0
    first("leave")
    first("leave")  # once more changes nothing
    assert second("check").workers[0] == WorkerStatus("done", 1, own._replace(claimed_steps=4))
    assert second("add_counts", Counters()) == own._replace(claimed_steps=4)
    ledger = first("join")
    assert (ledger.members[0].state, ledger.members[0].starts) == (MemberState.ACTIVE, 2)
    assert first("claim_steps", BUDGET, Counters())[0] == BUDGET - 4


@pytest.mark.cluster
def test_a_process_whose_place_another_has_taken_is_refused_and_changes_nothing(opened):
    first, second = opened("adam")
    assert first("claim_steps", 100, Counters())[0] == 100
    first("add_counts", Counters(env_steps=30))
    second("open_store", {"q": ("adam", P)}, 0)  # another process as worker 0
    ledger = second("join")
    assert (ledger.members[0].starts, ledger.counters.claimed_steps) == (2, 30)
    before = second("state")
    refusal = "RunError: worker 0: another process has taken its place while it stood still; the run has gone on"
    for call in (
        ("claim_steps", 5, Counters()),
        ("add_counts", Counters(env_steps=70, stopped=1)),
        ("push", _q(ONES, 0.1), Counters(updates=1), 0),
    ):
        with pytest.raises(RuntimeError, match=refusal):
            first(*call)
    first("leave")  # it has nothing to leave
    _assert_equal(second("state"), before)
    assert second("claim_steps", BUDGET, Counters())[0] == BUDGET - 30


@pytest.mark.cluster
@pytest.mark.parametrize("optimizer", ["add", "adam", "rmsprop"])
def test_an_update_that_is_too_stale_changes_no_bit_on_any_ps(opened, optimizer):
    client, other = opened(optimizer, max_staleness=1)
    for number, update in enumerate(_updates(7, 3)):
        assert client("push", _q(update, 0.1), Counters(updates=1), number).updates == number
    before = other("state")
    counts = Counters(updates=1, minibatches=4, env_steps=0)
    assert other("push", _q(ONES, 0.1), counts, 1).updates == 3  # 2 behind
    after = other("state")
    assert saved_counters(after) == Counters(updates=3, dropped=1, minibatches=4)
    _assert_equal(_without_counters(after), _without_counters(before))
    assert other("push", _q(ONES, 0.1), counts, 2).updates == 3  # 1 behind
    moved = other("state")
    assert (moved["q/online"] != before["q/online"]).all()
    for name in _without_counters(before).keys() - {"q/online", "q/target", "q/slot/mom"}:
        assert (moved[name] != before[name]).any(), name
    assert other("add_counts", Counters()) == Counters(updates=4, dropped=1, minibatches=8)


@pytest.mark.cluster
def test_after_a_restore_everyone_joins_again_and_nothing_of_before_is_counted(opened):
    chief, other = opened("adam")
    assert other("claim_steps", 100, Counters())[0] == 100
    saved = _trained_state()
    generation = other("read_ledger").generation
    chief("check")  # as with every row of metrics
    chief("restore", saved)
    assert other("read_ledger").generation not in (0, generation)
    outage = "Outage: worker 0 has restored the parameters"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=outage):
            other("push", _q(ONES, 0.1), Counters(updates=1, env_steps=50), 0)
    for call in (("pull",), ("pull_target",), ("state",), ("check",), ("add_counts", Counters()), ("take_episodes",)):
        with pytest.raises(RuntimeError, match=outage):
            other(*call)
    other("reconnect", 5.0)
    _assert_equal(other("state"), saved)
    assert other("settle") is False
    ledger = other("join", False)
    assert [member.starts for member in ledger.members] == [1, 1]  # counted on, and no new process
    counters = saved_counters(saved)
    assert other("claim_steps", 5, Counters()) == (5, counters._replace(claimed_steps=counters.claimed_steps + 5))
    assert chief("settle") is False


@pytest.mark.cluster
@pytest.mark.parametrize("arrives", [True, False], ids=["reply lost", "call lost"])
def test_after_an_outage_without_loss_counts_arrive_once_and_unheard_grants_go_back(opened, arrives):
    first, second = opened("add")
    assert first("claim_steps", 10, Counters())[0] == 10
    first("fault", "lose_next_step", arrives, True)
    with pytest.raises(RuntimeError, match="Outage: the parameter server has ended"):
        first("claim_steps", 7, Counters(env_steps=4))
    assert second("add_counts", Counters()).env_steps == (4 if arrives else 0)
    first("reconnect", 5.0)
    for _ in range(2):  # once more changes nothing
        assert first("settle") is True
        assert second("add_counts", Counters()) == Counters(claimed_steps=10, env_steps=4)
    assert second("read_ledger").members[0].outstanding == 10 - 4
    assert first("claim_steps", 7, Counters())[0] == 7


@pytest.mark.cluster
@pytest.mark.parametrize("arrives", [True, False], ids=["reply lost", "call lost"])
@pytest.mark.parametrize("options", [{}, SOCKETS], ids=["shared memory", "sockets"])
def test_counts_of_several_calls_during_an_outage_all_arrive_once(opened, arrives, options):
    # To give an unheard grant back takes a request. It must not be newer than those that still wait to be settled, as
    # their counts would then be taken for ones that came before.
    first, second = opened("add", **options)
    first("fault", "lose_next_step", arrives, True)
    for call in (
        # With shared memory what is lost here is not the trip, but the question whether the ps finds the segment.
        ("push_pull", _q(ONES, 1.0), Counters(updates=1, minibatches=7), 0),
        ("claim_steps", 7, Counters(env_steps=0)),
        ("add_counts", Counters(minibatches=3)),
        ("push", _q(ONES, 1.0), Counters(updates=1, minibatches=5), 0),
        ("claim_steps", 7, Counters(bad_values=2)),
    ):
        with pytest.raises(RuntimeError, match="Outage: the parameter server has ended"):
            first(*call)
    first("reconnect", 5.0)
    assert first("settle") is True
    applied = int(arrives and bool(options))  # of the updates the first, where its call came through
    expected = Counters(minibatches=7 + 3 + 5, updates=applied, dropped=2 - applied, bad_values=2)
    assert second("add_counts", Counters()) == expected
    np.testing.assert_array_equal(second("pull").online["q"], np.arange(P) + applied)


@pytest.mark.cluster
def test_a_membership_lost_during_an_outage_is_noticed_when_it_settles(opened):
    first, second = opened("add")
    first("fault", "lose_next_step", False, True)
    with pytest.raises(RuntimeError, match="Outage"):
        first("add_counts", Counters(env_steps=4))
    second("open_store", {"q": ("add", P)}, 0)
    second("join")
    first("reconnect", 5.0)
    with pytest.raises(RuntimeError, match="RunError: worker 0: another process has taken its place"):
        first("settle")
    assert second("add_counts", Counters()) == Counters()


def _wait_for_hold(client):
    wait_until(lambda: client("read_ledger").hold, SECONDS, "a hold is on")


@pytest.mark.cluster
@pytest.mark.parametrize("shards", [(0, 1), (1, 0)])
def test_an_update_that_was_admitted_before_a_restore_is_never_applied_after_it(opened, shards):
    chief, other = opened("adam", target_period=1)
    saved = _trained_state()
    push = other("fault", "push_to_some", _q(ONES, 0.1), Counters(updates=1, minibatches=1), [shards[0]])
    chief("restore", saved)
    other("fault", "arrive_late", push, [shards[1]])
    other("fault", "arrive_late", push, [shards[0]])
    _assert_equal(chief("state"), saved)


@pytest.mark.cluster
def test_a_restore_that_arrives_late_changes_nothing(opened):
    chief, other = opened("adam")
    first = chief("read_ledger").generation
    saved = _trained_state()
    chief("restore", saved)
    second = chief("read_ledger").generation
    for late in (first, second):
        assert other("fault", "write_again", saved | {"q/online": -START["q"]}, late) == [second] * 2
    _assert_equal(chief("state"), saved)


@pytest.mark.cluster
def test_a_restore_that_broke_off_is_made_up_for_even_if_the_clock_was_set_back_meanwhile(opened):
    chief, other = opened("adam")
    saved = _trained_state()
    other("fault", "begin_a_restore", time.time_ns() + 10**15)
    chief("restore", saved)
    _assert_equal(chief("state"), saved)


@pytest.mark.cluster
@pytest.mark.parametrize("shards", [(0, 1), (1, 0)])
def test_a_state_waits_for_updates_under_way_and_has_them_on_every_shard(opened, shards):
    chief, other = opened("adam", target_period=1)
    push = other("fault", "push_to_some", _q(ONES, 0.1), Counters(updates=1, minibatches=1), [shards[0]])
    chief("set_seconds", "saved_state", "_DRAIN_DEADLINE", SECONDS)
    chief.begin("state")
    _wait_for_hold(other)
    other("fault", "arrive_late", push, [shards[1]])
    local = LocalParameterStore([make_module(P, optimizer=optimizers.adam())], BUDGET, 1)
    local.initialize(START)
    local.push(_q(ONES, 0.1), Counters(updates=1, minibatches=1), 0)
    state, expected = chief.result(), local.state()
    assert saved_counters(state) == saved_counters(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(state[name], array, rtol=1e-6, err_msg=name)
    assert other("read_ledger").hold == 0


@pytest.mark.cluster
def test_an_update_that_a_state_did_not_wait_for_is_never_applied_and_others_go_on(opened):
    chief, other = opened("add")
    push = other("fault", "push_to_some", _q(ONES, 0.1), Counters(updates=1), [0])
    other("set_seconds", "channel", "_LONGEST_HOLD", SECONDS)
    other("fault", "hold", 77)  # which that of the chief takes the place of
    other.begin("push_pull", _q(ONES * 10, 0.1), Counters(updates=1), 0)
    state = chief("state")
    assert saved_counters(state) == Counters(updates=1)
    half = START["q"] + [1, 1, 1, 1, 0, 0, 0]
    np.testing.assert_array_equal(state["q/online"], half)
    before, pulled = other.result()
    assert before.updates == 1
    np.testing.assert_array_equal(pulled.online["q"], half + 10)
    other("fault", "arrive_late", push, [1])
    np.testing.assert_array_equal(chief("pull").online["q"], half + 10)


@pytest.mark.cluster
def test_states_are_whole_while_others_push(opened):
    chief, other = opened("add", target_period=7)
    chief("set_seconds", "saved_state", "_DRAIN_DEADLINE", SECONDS)
    updates = [0]
    for number in range(300, 3_001, 300):
        other.begin("each", "push_pull", [(_q(ONES, 0.1), Counters(updates=1, minibatches=1), 0)] * 300)
        while updates[-1] < number:
            state = chief("state")
            counters = saved_counters(state)
            np.testing.assert_array_equal(state["q/online"], START["q"] + counters.updates)
            np.testing.assert_array_equal(state["q/target"], START["q"] + 7 * (counters.updates // 7))
            updates.append(counters.updates)
        other.result()
        if len(set(updates)) > 4:
            return
    pytest.fail(f"states were not read meanwhile: {updates}")


@pytest.mark.cluster
@pytest.mark.parametrize("whole", [False, True])
def test_copies_are_of_one_moment_while_others_push(opened, whole):
    chief, other = opened("add", target_period=7)
    other.begin("each", "push_pull", [(_q(ONES, 0.1), Counters(updates=1, minibatches=1), 0)] * 300)
    updates = []
    while not updates or updates[-1] < 300:
        state = chief("copy", whole)
        if state is None:
            continue
        counters = saved_counters(state)
        np.testing.assert_array_equal(state["q/online"], START["q"] + counters.updates)
        assert ("q/target" in state) == whole
        if whole:
            np.testing.assert_array_equal(state["q/target"], START["q"] + 7 * (counters.updates // 7))
        updates.append(counters.updates)
    other.result()
    _assert_equal(chief("copy", True), chief("state"))


@pytest.mark.cluster
@pytest.mark.parametrize("shards", [(0, 1), (1, 0)])
def test_there_is_no_copy_while_an_update_is_on_some_shards_only(opened, shards):
    chief, other = opened("adam", target_period=2)
    assert chief("copy", True) is not None
    push = other("fault", "push_to_some", _q(ONES, 0.1), Counters(updates=1, minibatches=1), [shards[0]])
    assert chief("copy", False) is None and chief("copy", True) is None
    other("fault", "arrive_late", push, [shards[1]])
    _assert_equal(chief("copy", True), chief("state"))

    other("fault", "push_to_some", _q(ONES, 0.1), Counters(updates=1, minibatches=1), [shards[0]])
    sealed = chief("state")  # from now on the other shard refuses it
    _assert_equal(chief("copy", True), sealed)
    chief("restore", sealed)
    _assert_equal(chief("copy", True), sealed)


@pytest.mark.cluster
@pytest.mark.parametrize("end", ["alone", "join"])
def test_a_hold_whose_chief_died_stops_nobody_for_long(opened, end):
    chief, other = opened("add")
    chief("fault", "hold", 77)
    assert other("claim_steps", 3, Counters())[0] == 3  # claims go on
    if end == "join":
        other("set_seconds", "channel", "_LONGEST_HOLD", 10 * SECONDS)
    begin = time.monotonic()
    other.begin("push_pull", _q(ONES, 0.1), Counters(updates=1), 0)
    if end == "join":
        chief("join")
    before, pulled = other.result()
    assert end == "join" or time.monotonic() - begin > 4.0
    assert (before.updates, pulled.counters.updates) == (0, 1)
    np.testing.assert_array_equal(pulled.online["q"], START["q"] + 1)


@pytest.mark.cluster
def test_a_hold_ends_before_what_was_read_is_on_its_way(opened):
    chief, other = opened("adam")
    chief("restore", _trained_state())
    for client in (chief, other):
        client("join")
    other("push", _q(ONES, 0.1), Counters(updates=1), 0)
    state, holds = chief("fault", "hold_after_reading")
    assert holds == [0]
    _assert_equal(state, chief("state"))


@pytest.mark.cluster
def test_of_two_restores_at_once_one_gives_up_and_nobody_joins_before_there_was_a_whole_one(opened):
    chief, other = opened("adam")
    saved = _trained_state()
    with pytest.raises(RuntimeError, match="Outage: another process restores the parameters at the same time"):
        chief("fault", "restore_beside_another", saved, time.time_ns() + 10**15)
    with pytest.raises(RuntimeError, match="Outage: the parameters are being restored"):
        other("join")
    assert other("is_ready") is False
    chief("restore", saved)
    for client in (chief, other):
        client("join")
    _assert_equal(other("state"), saved)


@pytest.mark.cluster
def test_an_update_that_arrives_after_a_state_that_did_not_wait_for_it_is_refused(opened):
    chief, other = opened("add")
    push = other("fault", "push_to_some", _q(ONES, 0.1), Counters(updates=1), [0])
    state = chief("state")
    other("fault", "arrive_late", push, [1])
    _assert_equal(chief("state"), state)


@pytest.mark.cluster
def test_a_state_whose_hold_was_ended_meanwhile_is_read_again(opened):
    chief, other = opened("add")
    first = other("fault", "push_to_some", _q(ONES, 0.1), Counters(updates=1), [0])
    chief("set_seconds", "saved_state", "_DRAIN_DEADLINE", SECONDS)
    chief.begin("state")
    _wait_for_hold(other)
    other("_release", other("read_ledger").hold)
    second = other("fault", "push_to_some", _q(ONES, 0.1), Counters(updates=1), [0])
    other("fault", "arrive_late", first, [1])  # now the first is everywhere, and the second on one shard
    _wait_for_hold(other)
    other("fault", "arrive_late", second, [1])
    state = chief.result()
    assert saved_counters(state) == Counters(updates=2)
    np.testing.assert_array_equal(state["q/online"], START["q"] + 2)


@pytest.mark.cluster
def test_a_claim_does_not_wait_for_a_round_trip(opened):
    first, second = opened("add")
    first("set_seconds", "channel", "_LONGEST_HOLD", SECONDS)
    second("fault", "hold", 77)  # so that no push comes back
    claimed = first("fault", "claim_beside_a_push", _q(ONES, 0.1), Counters(updates=1))
    assert claimed == (5, True)  # while the push was still under way
    second("fault", "hold", 0)
    assert second("pull").counters.claimed_steps == 5


@contextlib.contextmanager
def _cluster_to_harm(folder, num_ps=2, flags=("--lease=600", "--start_deadline=600")):
    """A cluster of two workers on an initialised store, which need not end well."""
    cluster = StoreCluster(folder, num_ps, num_workers=2, total_steps=BUDGET, flags=flags)
    try:
        cluster.wait_until_ready()
        cluster.open({"q": ("adam", P)})
        cluster.clients[0]("initialize", START)
        for client in cluster.clients:
            client("join")
        yield cluster
    finally:
        cluster.end(by_signal=False)


@pytest.mark.cluster
@pytest.mark.parametrize("victim", [0, 1])
def test_a_ps_that_was_killed_is_an_outage_until_the_chief_has_restored(tmp_path, victim):
    with _cluster_to_harm(tmp_path) as cluster:
        chief, other = cluster.clients
        chief("push_pull", _q(ONES, 0.1), Counters(updates=1, minibatches=1), 0)
        saved = chief("state")
        chief("check")  # as with every row of metrics
        other("claim_steps", 10, Counters())
        chief("push", _q(ONES, 0.1), Counters(updates=1, minibatches=1), 1)
        cluster.ps[victim].process.kill()
        cluster.ps[victim].wait(5)
        address = cluster.spec.ps[victim]
        for client in (chief, other):
            with pytest.raises(RuntimeError, match=f"Outage: the parameter server at {address} has ended"):
                client("push", _q(ONES, 0.1), Counters(updates=1), 2)
            client("ask_nobody", True)
            for call in [("pull",), ("claim_steps", 5, Counters()), ("state",), ("check",), ("is_ready",)]:
                with pytest.raises(RuntimeError, match=f"Outage: the parameter server at {address} has ended"):
                    client(*call)
            client("ask_nobody", False)
        with pytest.raises(RuntimeError, match=f"RunError: no parameter server answered at {address} within 0 s"):
            other("reconnect", 0.2)

        cluster.start_ps_again(victim)
        for client in (chief, other):
            client("reconnect", 10.0)
        assert chief("is_ready") is other("is_ready") is False
        with pytest.raises(RuntimeError, match="Outage: a parameter server was restarted and has lost its variables"):
            other("check")
        other("reconnect", 10.0)
        chief("restore", saved)
        other("wait_until_ready", 0.0)
        for client in (chief, other):
            assert client("settle") is False
            ledger = client("join", False)
        assert [member.starts for member in ledger.members] == [1, 1]
        _assert_equal(other("state"), saved)
        assert other("claim_steps", BUDGET, Counters())[0] == BUDGET
        before, pulled = chief("push_pull", _q(ONES, 0.1), Counters(updates=1), 1)
        assert before == Counters(updates=1, minibatches=1, claimed_steps=BUDGET)
        np.testing.assert_array_equal(pulled.online["q"], other("pull").online["q"])
        assert (pulled.online["q"] != saved["q/online"]).all()
        assert all(chief("share_memory"))


@pytest.mark.cluster
def test_after_a_ps_stood_still_everything_is_counted_once(tmp_path):
    with _cluster_to_harm(tmp_path) as cluster:
        first, second = cluster.clients
        pushed = 0
        for ps, call in [
            (0, ("claim_steps", 7, Counters(env_steps=0, minibatches=1))),
            (0, ("push", _q(ONES, 0.1), Counters(updates=1, minibatches=1), 0)),
            (1, ("push", _q(ONES, 0.1), Counters(updates=1, minibatches=1), 0)),
            (0, ("add_counts", Counters(env_steps=7, minibatches=1))),
        ]:
            cluster.ps[ps].process.send_signal(signal.SIGSTOP)
            first("be_patient", 0.5, 2)
            first.begin(*call)
            for _ in range(2):
                assert "was lost (no answer within" in first.wait_for_warning()
            cluster.ps[ps].process.send_signal(signal.SIGCONT)
            first.result()
            pushed += call[0] == "push"
        expected = Counters(claimed_steps=7, env_steps=7, minibatches=4, updates=pushed)
        assert second("add_counts", Counters()) == expected
        # Whatever was left behind has arrived by now, or will change nothing.
        first("each", "add_counts", [(Counters(bad_values=1),)] * 50)
        assert second("add_counts", Counters()) == expected._replace(bad_values=50)
        assert second("check").workers[0].counters == expected._replace(bad_values=50)


@pytest.mark.cluster
def test_without_an_answer_for_too_long_the_worker_ends(tmp_path):
    with _cluster_to_harm(tmp_path, num_ps=1) as cluster:
        first, second = cluster.clients
        first("open_store", {"q": ("adam", P)}, 0, {"deadline": 2.0})
        first("be_patient", SECONDS)
        first("join")
        first("be_patient", 2.0)
        cluster.ps[0].process.send_signal(signal.SIGSTOP)
        with pytest.raises(
            RuntimeError, match=rf"NoAnswer: no answer from .* {cluster.spec.ps[0]} within 2 s \(--ps_deadline\)"
        ):
            first("pull")


@pytest.mark.cluster
def test_a_worker_that_joined_and_was_never_heard_of_is_evicted(tmp_path):
    with _cluster_to_harm(tmp_path, num_ps=1) as cluster:
        first, second = cluster.clients
        saved = first("state")
        second("fault", "begin_a_restore", time.time_ns() + 10**15)  # before the clock was set back
        first("restore", saved)
        before = first("join", False).generation
        cluster.ps[0].process.kill()
        cluster.ps[0].wait(5)
        cluster._flags[-1] = "--start_deadline=20"  # counted from when it is there again
        cluster.start_ps_again(0)
        tell(cluster.spec, 0, 0, new_token(), ALIVE)  # worker 0 is heard of
        for client in cluster.clients:
            client("reconnect", 10.0)
        first("restore", saved)
        assert first("read_ledger").generation > before  # of which no ps knows any more
        for client in (second, first):
            assert client("settle") is False
            client("join", False)
        assert second("claim_steps", 700, Counters())[0] == 700
        wait_until(lambda: first("check").workers[1].state == "lost", 90, "worker 1 was expected for long enough")
        assert first("claim_steps", BUDGET, Counters())[0] == BUDGET


@pytest.mark.cluster
def test_a_worker_that_is_lost_is_evicted(tmp_path):
    with _cluster_to_harm(tmp_path, flags=("--lease=2", "--start_deadline=600")) as cluster:
        first, second = cluster.clients
        token = second("open_store", {"q": ("adam", P)})
        second("join")
        assert second("claim_steps", 700, Counters())[0] == 700
        second("add_counts", Counters(env_steps=100))
        tell(cluster.spec, 0, 1, token, ALIVE)
        tell(cluster.spec, 0, 1, new_token(), ALIVE)  # another one, which is killed before it joins
        wait_until(lambda: first("check").workers[1].state == "lost", SECONDS, "the lease of worker 1 has run out")
        assert first("claim_steps", BUDGET, Counters()) == (
            BUDGET - 100,
            Counters(claimed_steps=BUDGET, env_steps=100),
        )
        with pytest.raises(
            RuntimeError,
            match="RunError: worker 1: it was silent for longer than --lease while it stood still; the run ",
        ):
            second("push", _q(ONES, 0.1), Counters(env_steps=600), 0)


@pytest.mark.cluster
def test_a_worker_that_fails_is_evicted_at_once(tmp_path):
    with _cluster_to_harm(tmp_path) as cluster:  # a lease is longer than anything is waited for
        first, second = cluster.clients
        assert first("claim_steps", BUDGET - 50, Counters())[0] == BUDGET - 50
        token = second("open_store", {"q": ("adam", P)})
        assert second("join").members[1].starts == 2
        assert second("claim_steps", 40, Counters())[0] == 40
        tell(cluster.spec, 0, 1, token, ALIVE)
        tell(cluster.spec, 0, 1, new_token(), 1)  # another one, which never was the member, fails
        wait_until(lambda: num_unheard(cluster.spec, 0) == 0, SECONDS, "that was heard")
        assert second("claim_steps", 40, Counters())[0] == 10

        token = second("open_store", {"q": ("adam", P)})
        second("join")
        assert second("claim_steps", 50, Counters())[0] == 50
        tell(cluster.spec, 0, 1, token, 1)
        wait_until(lambda: first("check").workers[1].state == "lost", SECONDS, "worker 1 is evicted")
        assert first("claim_steps", 60, Counters())[0] == 50
