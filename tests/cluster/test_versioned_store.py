"""Tests of async_dqn.cluster.versioned_store: real parameter servers, and workers in processes of their own."""

import itertools

import numpy as np
import pytest
from cluster_helpers import StoreCluster, store_cluster, tell, wait_until
from fakes import make_module

from async_dqn.cluster.done_queue import ALIVE
from async_dqn.cluster.quorum import Quorum
from async_dqn.nn import optimizers
from async_dqn.store.base import Counters, Stop, Update, saved_counters
from async_dqn.store.local import LocalParameterStore

pytestmark = pytest.mark.cluster

P = 7  # parameters: 4 + 3 on two ps
WORKERS = 3
BUDGET = 1_003
START = np.arange(P, dtype=np.float32)
SOCKETS = {"may_share_memory": False}
ONE = Counters(updates=1, minibatches=1)
SYNC = Quorum()


def _q(update, rate=0.1):
    return {"q": Update(np.asarray(update, np.float32), rate)}


def _gradients(seed, count):
    """[count, P] of whole numbers, so that sums of a few are exact."""
    return np.random.default_rng(seed).integers(-8, 8, (count, P)).astype(np.float32)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with store_cluster(tmp_path_factory.mktemp("store"), 2, WORKERS, total_steps=BUDGET) as cluster:
        cluster.opened_with = None
        yield cluster


@pytest.fixture
def opened(cluster):
    """Opens the store with a quorum, on parameters 0 ... P - 1; gives the workers, which have all joined."""

    def open_store(quorum, optimizer="add", num_workers=WORKERS, others=None, **options):
        modules = {"q": (optimizer, P), **(others or {})}
        if cluster.opened_with != (quorum, modules, options):
            cluster.open(modules, quorum=quorum, **options)
            cluster.opened_with = quorum, modules, options
        for client in cluster.clients:
            client("reconnect", 20.0)
        cluster.clients[0]("initialize", {name: _start(size) for name, (_, size) in modules.items()})
        for client in cluster.clients[:num_workers]:
            client("join")
        return cluster.clients[:num_workers]

    return open_store


def _start(size):
    return np.arange(size, dtype=np.float32)


def _local(optimizer, target_period=0):
    store = LocalParameterStore([make_module(P, optimizer=getattr(optimizers, optimizer)())], BUDGET, target_period)
    store.initialize({"q": START})
    return store


def _push_all(clients, gradients, computed_on):
    """One gradient of each worker, at once; gives what each of them pulled."""
    for client, gradient in zip(clients, gradients, strict=True):
        client.begin("push_pull", _q(gradient), ONE, computed_on)
    return [client.result()[1] for client in clients]


def _wait_for_gradients(client, number):
    """Until so many are in the open version."""
    wait_until(lambda: client("read_ledger").gradients == number, 20, f"{number} gradients")


def _assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("optimizer", "options"), [("adam", {}), ("rmsprop", SOCKETS)])
def test_a_synchronous_run_is_one_with_the_mean_of_all_gradients(opened, optimizer, options):
    clients = opened(SYNC, optimizer, target_period=7, **options)
    local = _local(optimizer, target_period=7)
    for version in range(6):
        gradients = _gradients(version, WORKERS)
        pulled = _push_all(clients, gradients, version)
        local.push(_q(gradients.mean(0)), Counters(updates=1, minibatches=WORKERS), 0)
        expected = local.pull()
        for one in pulled:
            assert one.counters == expected.counters
            np.testing.assert_allclose(one.online["q"], expected.online["q"], rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(one.online["q"], pulled[0].online["q"])
        _assert_close(clients[1]("pull_target"), local.pull_target())
    _assert_close(clients[0]("state"), local.state())


def test_the_order_in_which_gradients_come_does_not_change_a_bit(opened):
    found = []
    for order in itertools.permutations(range(WORKERS)):
        clients = opened(SYNC, "adam", **SOCKETS)
        gradients = np.random.default_rng(3).standard_normal((WORKERS, P)).astype(np.float32)
        for number, worker in enumerate(order[:-1], start=1):
            clients[worker].begin("push_pull", _q(gradients[worker]), ONE, 0)
            _wait_for_gradients(clients[order[-1]], number)
        clients[order[-1]].begin("push_pull", _q(gradients[order[-1]]), ONE, 0)
        found += [client.result()[1].online["q"] for client in clients]
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


@pytest.mark.parametrize("quorum", [Quorum(max_norm=4.0), Quorum(accumulate=3, max_norm=4.0)])
def test_the_mean_of_all_shards_together_is_scaled_down(opened, quorum):
    clients = opened(quorum, others={"value": ("add", 5)})
    online, was_scaled = {"q": START, "value": _start(5)}, set()
    for version in range(6):
        rng = np.random.default_rng(version)
        gradients = {name: rng.normal(size=(3, len(one))).astype(np.float32) * version for name, one in online.items()}
        for worker, client in enumerate(clients):
            updates = {name: Update(rows[worker], 0.1) for name, rows in gradients.items()}
            client.begin("push_pull", updates, ONE, version)
        for client in clients:
            client.result()
        means = {name: rows.mean(0) for name, rows in gradients.items()}
        norm = np.sqrt(sum(float(mean @ mean) for mean in means.values()))
        was_scaled.add(norm > 4)
        online = {name: one + means[name] * min(1, 4 / max(norm, 1e-9)) for name, one in online.items()}
        _assert_close(clients[1]("pull").online, online)
    assert was_scaled == {False, True}


@pytest.mark.parametrize("optimizer", ["add", "adam"])
def test_accumulated_gradients_are_one_with_their_mean(opened, optimizer):
    clients = opened(Quorum(accumulate=4), optimizer, target_period=7)
    local = _local(optimizer, target_period=7)
    for version in range(5):
        gradients = _gradients(version, 4)
        for number, gradient in enumerate(gradients):
            before, pulled = clients[number % 2]("push_pull", _q(gradient), ONE, 0)  # whatever it was computed on
            assert (before.updates, pulled.counters.updates) == (version, version + (number == 3))
            if number < 3:
                np.testing.assert_allclose(pulled.online["q"], local.pull().online["q"], rtol=1e-5, atol=1e-6)
        local.push(_q(gradients.mean(0)), Counters(updates=1, minibatches=4), 0)
        np.testing.assert_allclose(pulled.online["q"], local.pull().online["q"], rtol=1e-5, atol=1e-6)
        _assert_close(clients[1]("pull_target"), local.pull_target())
    _assert_close(clients[0]("state"), local.state())


def test_the_mean_is_of_those_gradients_that_have_a_part_of_a_module(opened):
    first, second, _ = opened(SYNC, others={"WORLD": ("add", 3)})
    world = {"WORLD": Update(np.full(3, 5, np.float32), 0.1)}
    for worker, updates in ((first, _q(np.full(P, 8))), (second, _q(np.full(P, 4)) | world)):
        worker("push", updates, ONE, 0)
    clients = (first, second, _)
    clients[2]("push", world, ONE, 0)
    found = first("pull").online
    np.testing.assert_array_equal(found["q"], START + (8 + 4) / 2)
    np.testing.assert_array_equal(found["WORLD"], _start(3) + (5 + 5) / 2)


@pytest.mark.parametrize(
    ("quorum", "per_update"), [(SYNC, WORKERS), (Quorum(accumulate=2), 2), (Quorum(accumulate=5), 5)]
)
def test_many_gradients_at_once_are_all_applied_once(opened, quorum, per_update):
    clients = opened(quorum)
    gradients = [per_update * _gradients(seed, 50) for seed in range(WORKERS)]
    for client, own in zip(clients, gradients, strict=True):
        client.begin("train", list(own), True)
    pulled = [client.result() for client in clients]
    assert WORKERS * 50 % per_update == 0
    last = clients[0]("state")
    assert saved_counters(last) == Counters(updates=WORKERS * 50 // per_update, minibatches=WORKERS * 50)
    np.testing.assert_array_equal(last["q/online"], START + np.sum(gradients, (0, 1)) / per_update)
    if quorum == SYNC:
        for version in range(50 + 1):
            expected = START + np.sum([own[:version] for own in gradients], (0, 1)) / WORKERS
            for own in pulled:
                assert own[version].counters.updates == version
                np.testing.assert_array_equal(own[version].online["q"], expected)


def test_with_a_backup_worker_shards_agree_and_what_is_late_is_counted(opened):
    clients = opened(Quorum(backup_workers=1))
    for number, client in enumerate(clients):
        client.begin("train", [np.full(P, 2.0 * 4**number, np.float32)] * 40, True)
    pulled = [one for client in clients for one in client.result()]
    counters = clients[0]("state")["counter/updates"], clients[0]("state")["counter/dropped"]
    by_version = {}
    for one in pulled:
        moved = one.online["q"] - START
        np.testing.assert_array_equal(moved, moved[0])  # both shards have stepped the same versions
        assert by_version.setdefault(one.counters.updates, moved[0]) == moved[0]
    assert max(by_version) <= counters[0]
    # Two gradients make a version while all three are there; one or two after that.
    assert counters[0] + counters[1] <= WORKERS * 40 <= 2 * counters[0] + counters[1]


@pytest.mark.parametrize("shards", [[], [0], [1]], ids=str)
def test_a_gradient_whose_worker_died_on_the_way_is_on_every_shard_or_none(opened, shards):
    first, second, third = opened(SYNC)
    second("fault", "push_to_some", _q(np.full(P, 3)), ONE, shards)
    third("leave")
    _, pulled = first("push_pull", _q(np.full(P, 5)), ONE, 0)
    np.testing.assert_array_equal(pulled.online["q"], START + (3 + 5) / 2)


@pytest.mark.parametrize("quorum", [SYNC, Quorum(accumulate=2)])
@pytest.mark.parametrize("shard", [0, 1])
def test_a_version_whose_last_worker_died_on_the_way_is_applied_by_another(opened, quorum, shard):
    first, second = opened(quorum, num_workers=2)
    first.begin("push_pull", _q(np.full(P, 5)), ONE, 0)
    _wait_for_gradients(second, 1)
    push = second("fault", "push_to_some", _q(np.full(P, 3)), ONE, [shard])
    _, pulled = first.result()
    if quorum == SYNC:
        np.testing.assert_array_equal(pulled.online["q"], START + (3 + 5) / 2)
    state = first("state")
    np.testing.assert_array_equal(state["q/online"], START + (3 + 5) / 2)
    second("fault", "arrive_late", push, [1 - shard])
    np.testing.assert_array_equal(first("state")["q/online"], START + (3 + 5) / 2)


@pytest.mark.parametrize("arrives", [True, False], ids=["reply lost", "call lost"])
@pytest.mark.parametrize("options", [{}, SOCKETS], ids=["shared memory", "sockets"])
def test_a_step_that_was_lost_is_made_once(opened, arrives, options):
    first, second = opened(SYNC, num_workers=2, **options)
    for version in range(2):
        first.begin("push_pull", _q(np.full(P, 4)), ONE, version)
        _wait_for_gradients(second, 1)
        second("fault", "lose_next_step", arrives)
        _, pulled = second("push_pull", _q(np.full(P, 2)), ONE, version)
        for one in (pulled, first.result()[1]):
            np.testing.assert_array_equal(one.online["q"], START + 3 * (version + 1))
            assert one.counters == Counters(updates=version + 1, minibatches=2 * (version + 1))


def test_who_waits_goes_on_when_the_others_leave_or_are_out_of_steps(opened):
    first, second, third = opened(SYNC)
    first.begin("push_pull", _q(np.full(P, 5)), ONE, 0)
    _wait_for_gradients(second, 1)
    second("leave")
    assert third("claim_steps", BUDGET, Counters())[0] == BUDGET
    assert third("claim_steps", 1, Counters())[0] == 0
    _, pulled = first.result()
    assert (pulled.counters.updates, pulled.counters.dropped) == (1, 0)
    np.testing.assert_array_equal(pulled.online["q"], START + 5)


def test_who_waits_ends_when_the_run_does_and_its_later_gradients_are_dropped(opened):
    first, second = opened(SYNC, num_workers=2)
    first.begin("push_pull", _q(np.full(P, 5)), ONE, 0)
    _wait_for_gradients(second, 1)
    second("add_counts", Counters(stopped=Stop.INTERRUPTED))
    _, pulled = first.result()
    np.testing.assert_array_equal(pulled.online["q"], START)
    first("push_pull", _q(np.full(P, 99)), ONE, 0)
    _, pulled = second("push_pull", _q(np.full(P, 3)), ONE, 0)
    assert (pulled.counters.updates, pulled.counters.dropped) == (1, 1)
    np.testing.assert_array_equal(pulled.online["q"], START + (5 + 3) / 2)


def test_a_checkpoint_holds_whole_versions_and_counts_the_gradients_of_the_open_one_as_dropped(opened):
    first, second = opened(SYNC, "adam", num_workers=2)
    _push_all((first, second), _gradients(1, 2), 0)
    expected = first("state")
    second.begin("push_pull", _q(START), ONE, 1)
    _wait_for_gradients(first, 1)
    saved = first("state")
    changed = {"counter/minibatches": np.int64(3), "counter/dropped": np.int64(1)}
    _assert_close(saved, {**expected, **changed})
    _assert_close(first("copy", True), saved)
    first("push_pull", _q(START), ONE, 1)  # it goes on
    assert second.result()[1].counters == Counters(updates=2, minibatches=4)

    second.begin("push_pull", _q(START), ONE, 2)
    _wait_for_gradients(first, 1)
    first("restore", saved)
    with pytest.raises(RuntimeError, match="Outage: worker 0 has restored the parameters"):
        second.result()
    second("reconnect", 5.0)
    for client in (first, second):
        assert client("settle") is False
        client("join", False)
    assert saved_counters(first("state")) == Counters(updates=1, minibatches=3, dropped=1)
    pulled = _push_all((first, second), _gradients(2, 2), 1)
    local = _local("adam")
    for seed in (1, 2):
        local.push(_q(_gradients(seed, 2).mean(0)), Counters(), 0)
    np.testing.assert_allclose(pulled[0].online["q"], local.pull().online["q"], rtol=1e-5, atol=1e-6)


def test_a_worker_that_is_started_again_waits_for_the_gradient_of_the_process_before(opened, cluster):
    first, second = opened(SYNC, num_workers=2)
    second("push", _q(np.full(P, 3)), ONE, 0)
    again = cluster.clients[2]
    cluster.opened_with = None
    again("open_store", {"q": ("add", P)}, 1, {"quorum": SYNC})
    again("join")
    again.begin("pull")
    _, pulled = first("push_pull", _q(np.full(P, 5)), ONE, 0)
    for one in (pulled, again.result()):
        assert one.counters == Counters(updates=1, minibatches=2)
        np.testing.assert_array_equal(one.online["q"], START + (3 + 5) / 2)
    again("push", _q(np.full(P, 7)), ONE, 1)
    _, pulled = first("push_pull", _q(np.full(P, 1)), ONE, 1)
    np.testing.assert_array_equal(pulled.online["q"], START + (3 + 5) / 2 + (7 + 1) / 2)


def test_the_quorum_follows_the_leases(tmp_path):
    cluster = StoreCluster(tmp_path, 1, 2, total_steps=BUDGET, flags=("--lease=2", "--start_deadline=600"))
    try:
        cluster.wait_until_ready()
        cluster.open({"q": ("add", P)}, quorum=SYNC)
        first, second = cluster.clients
        first("initialize", {"q": START})
        first("join")
        token = second("open_store", {"q": ("add", P)}, 1, {"quorum": SYNC})
        second("join")
        tell(cluster.spec, 0, 1, token, ALIVE)
        second.kill()
        _, pulled = first("push_pull", _q(np.full(P, 5)), ONE, 0, deadline=20.0)
        assert (pulled.counters.updates, pulled.counters.dropped) == (1, 0)
        np.testing.assert_array_equal(pulled.online["q"], START + 5)
    finally:
        cluster.end(by_signal=False)
