"""Tests of async_dqn.cluster.remote_store: real parameter servers, and workers in processes of their own."""

import numpy as np
import pytest
from cluster_helpers import store_cluster

from async_dqn import optimizers
from async_dqn.cluster.remote_store import shard_sizes
from async_dqn.parameters import Counters, EpisodeReport, LocalParameterStore

P = 7  # parameters: 4 + 3 on two ps, 3 + 2 + 2 on three
BUDGET = 1_003


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with store_cluster(tmp_path_factory.mktemp("store"), num_ps=2, num_workers=2, total_steps=BUDGET) as cluster:
        yield cluster


@pytest.fixture
def opened(cluster):
    """Opens the store with an optimizer, on parameters 0 ... P - 1, and gives both workers."""

    def open_store(optimizer: str):
        cluster.open(optimizer, P)
        cluster.clients[0]("initialize", np.arange(P, dtype=np.float32))
        return cluster.clients

    return open_store


def _updates(seed: int, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-8, 8, P).astype(np.float32) for _ in range(count)]


def _trained_state(count: int = 5) -> dict[str, np.ndarray]:
    """A state in which every array differs from its start."""
    store = LocalParameterStore(P, optimizers.adam(), BUDGET)
    store.initialize(np.arange(P, dtype=np.float32))
    for number, update in enumerate(_updates(1, count)):
        store.push(update, 0.1, Counters(updates=1, minibatches=3, staleness_max=number))
    store.refresh_target()
    store.push(np.ones(P, np.float32), 0.1, Counters(updates=1, env_steps=12, claimed_steps=20))
    return store.state()


def _assert_equal(state, expected):
    assert sorted(state) == sorted(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)
        assert state[name].dtype == array.dtype, name


@pytest.mark.parametrize(("parameters", "shards"), [(7, 1), (7, 2), (7, 3), (6, 3), (1_685_667, 64)])
def test_shards_are_nearly_equal(parameters, shards):
    sizes = shard_sizes(parameters, shards)
    assert (len(sizes), sum(sizes)) == (shards, parameters)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.cluster
def test_every_ps_holds_one_shard_of_every_vector(opened):
    devices = opened("adam")[0]("devices")
    for name in ("online", "target", "m", "v"):
        shards = [devices[f"{name}_{k}"] for k in range(2)]
        assert [size for _, size in shards] == [4, 3], name
        for k, (device, _) in enumerate(shards):
            assert f"/job:ps/task:{k}" in device or f"/job:ps/replica:0/task:{k}" in device, name
    assert "task:0" in devices["ledger_0"][0]
    assert all("/job:ps" in device for device, _ in devices.values())


@pytest.mark.cluster
def test_updates_of_two_processes_add_up_exactly(opened):
    clients = opened("add")
    pushes = [_updates(seed, 60) for seed in (2, 3)]
    for client, updates in zip(clients, pushes, strict=True):
        client.begin("each_at_once", "push", [(update, 0.1, Counters(updates=1)) for update in updates])
    heard = [[counters.updates for counters in client.result()] for client in clients]

    expected = np.arange(P) + np.sum([*pushes[0], *pushes[1]], axis=0)
    for client in clients:
        pulled = client("pull")
        np.testing.assert_array_equal(pulled.online, expected)
        assert pulled.counters.updates == 120
    # Each push heard how many came before it: between them, two processes hear every number once.
    assert sorted(heard[0] + heard[1]) == list(range(120))
    np.testing.assert_array_equal(clients[1]("pull_target"), np.arange(P))


@pytest.mark.cluster
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_pushes_equal_those_to_a_local_store(opened, optimizer):
    client, other = opened(optimizer)
    local = LocalParameterStore(P, getattr(optimizers, optimizer)(), BUDGET)
    local.initialize(np.arange(P, dtype=np.float32))
    pushes = [(update, 0.1 / number, Counters(updates=1)) for number, update in enumerate(_updates(4, 20), start=1)]
    client("each", "push", pushes)
    for push in pushes:
        local.push(*push)
    np.testing.assert_allclose(other("pull").online, local.pull().online, rtol=0, atol=1e-6)
    assert np.abs(local.pull().online - np.arange(P)).max() > 0.01  # they did move

    client("refresh_target")
    local.refresh_target()
    np.testing.assert_allclose(other("pull_target"), local.pull_target(), rtol=0, atol=1e-6)
    assert other("pull").counters == local.pull().counters == Counters(updates=20, target_refreshes=1)


@pytest.mark.cluster
def test_claims_of_two_processes_meet_the_budget_exactly(opened):
    clients = opened("add")
    for client, wanted in zip(clients, (7, 5), strict=True):
        client.begin("each_at_once", "claim_steps", [(wanted, Counters())] * 150)
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
    first("add_counts", Counters(claimed_steps=-4, stopped=1))
    assert second("claim_steps", 10, Counters())[0] == 0


@pytest.mark.cluster
def test_counters_add_up_and_the_largest_staleness_stays(opened):
    clients = opened("add")
    for client, stalenesses in zip(clients, ((1, 9, 2), (3, 5, 4)), strict=True):
        counts = [Counters(env_steps=2, episodes=1, staleness_sum=s, staleness_max=s) for s in stalenesses]
        client.begin("each_at_once", "add_counts", [(count,) for count in counts])
    for client in clients:
        client.result()
    expected = Counters(env_steps=12, episodes=6, staleness_sum=24, staleness_max=9)
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
def test_state_equals_that_of_a_local_store(opened):
    client, other = opened("adam")
    expected = _trained_state()
    client("restore", expected)
    _assert_equal(other("state"), expected)


@pytest.mark.cluster
def test_a_state_of_another_network_or_optimizer_is_refused(opened):
    client = opened("adam")[0]
    state = client("state")
    without_slots = {name: array for name, array in state.items() if not name.startswith("slot/")}
    for wrong in ({}, without_slots, state | {"online": np.zeros(P + 1, np.float32)}):
        with pytest.raises(RuntimeError, match="ValueError: saved arrays .* are not those of this network"):
            client("restore", wrong)
    _assert_equal(client("state"), state)


@pytest.mark.cluster
@pytest.mark.parametrize("num_ps", [1, 3])
def test_a_state_of_two_shards_restores_on_another_number(opened, tmp_path, num_ps):
    client = opened("adam")[0]
    client("restore", _trained_state())
    client("push", _updates(5, 1)[0], 0.1, Counters(updates=1))
    saved = client("state")

    with store_cluster(tmp_path, num_ps, num_workers=1, total_steps=BUDGET) as another:
        another.open("adam", P)
        restored = another.clients[0]
        assert restored("is_initialized") is False
        with pytest.raises(RuntimeError, match="RunError: worker 0, the chief, has not initialised .* within 0 s"):
            restored("wait_until_initialized", 0.2)

        restored("restore", saved)
        restored("wait_until_initialized", 0.0)
        _assert_equal(restored("state"), saved)
        push = (_updates(6, 1)[0], 0.1, Counters(updates=1))
        restored("push", *push)
        client("push", *push)
        np.testing.assert_allclose(restored("pull").online, client("pull").online, rtol=0, atol=1e-6)


@pytest.mark.cluster
@pytest.mark.parametrize("arrives", [True, False], ids=["reply lost", "call lost"])
def test_a_lost_step_is_noticed_and_counted_once(opened, arrives):
    first, second = opened("add")
    first("lose_next_step", arrives)
    granted, counters = first("claim_steps", 5, Counters(env_steps=2))
    assert (granted, counters.claimed_steps, counters.env_steps) == (5, 5, 2)
    first("lose_next_step", arrives)
    before = first("push", np.ones(P, np.float32), 1.0, Counters(updates=1, minibatches=4))
    online, counters = second("pull")
    assert (counters.updates, counters.minibatches) == (1, 4)
    assert before.claimed_steps == 5
    # The update itself is not sent twice, so the one that never arrived is gone.
    np.testing.assert_array_equal(online, np.arange(P) + (1 if arrives else 0))
    first("lose_next_step", arrives)
    np.testing.assert_array_equal(first("pull").online, online)
