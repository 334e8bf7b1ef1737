"""What all clients of a store share, and the client of a store in the same process.

Parameters and updates are small whole numbers, so that sums are exact in float32.
"""

import numpy as np
import pytest
import tensorflow as tf
from fakes import (
    FragileStore,
    delta_client,
    descent,
    direct_client,
    global_online,
    gradient_client,
    make_module,
    make_store,
    minibatch,
    online,
    push,
)

from async_dqn.base.errors import Outage, RunFailed
from async_dqn.base.schedules import linear
from async_dqn.nn import optimizers
from async_dqn.store.base import Counters, EpisodeReport
from async_dqn.store.client import DirectClient
from async_dqn.store.delta_client import DeltaClient
from async_dqn.store.gradient_client import GradientClient
from async_dqn.store.local import LocalParameterStore

EVERY_CLIENT = pytest.mark.parametrize("make", [direct_client, gradient_client, delta_client])


@EVERY_CLIENT
def test_start_takes_both_networks_and_the_counters(make):
    store = make_store([1, 2])
    push(store, 10, 10, env_steps=7)
    client = make(store)
    assert online(client) == [1 + 10, 2 + 10]
    assert client.target["q"].numpy().tolist() == [1, 2]
    assert client.counters == Counters(env_steps=7, updates=1)
    assert client.env_steps == 7
    client.finish()


@EVERY_CLIENT
def test_claims_come_out_of_the_global_budget_and_report_what_was_counted(make):
    store = make_store(total_steps=20)
    a, b = make(store), make(store)
    assert (a.claim_steps(16), b.claim_steps(16), a.claim_steps(16)) == (16, 20 - 16, 0)
    a.count(env_steps=16, bad_values=1)
    b.count(env_steps=4)
    assert (a.env_steps, b.env_steps) == (16, 4)
    a.claim_steps(1)
    b.claim_steps(1)
    assert b.env_steps == 16 + 4
    assert store.pull().counters == Counters(claimed_steps=20, env_steps=20, bad_values=1)


@EVERY_CLIENT
def test_it_is_over_once_all_workers_together_have_taken_the_budget(make):
    store = make_store(total_steps=20)
    client = make(store)
    assert client.claim_steps(12) == 12
    store.claim_steps(8, Counters())
    client.count(env_steps=12)
    assert client.claim_steps(16) == 0
    assert not client.is_over  # another one holds the rest
    store.add_counts(Counters(env_steps=8))
    assert not client.is_over  # not heard of yet
    assert client.claim_steps(16) == 0
    assert client.is_over


@EVERY_CLIENT
@pytest.mark.parametrize("stopped", [1, 2, 3])
def test_it_is_over_once_the_run_was_stopped(make, stopped):
    store = make_store(total_steps=20)
    client = make(store)
    store.add_counts(Counters(stopped=stopped))
    assert client.claim_steps(16) == 0
    assert client.is_over
    assert client.counters.stopped == stopped


@EVERY_CLIENT
def test_unused_steps_are_given_back_at_the_end(make):
    store = make_store(total_steps=20)
    client = make(store)
    assert client.claim_steps(20) == 20
    client.count(claimed_steps=-5)
    client.finish()
    assert store.claim_steps(20, Counters())[0] == 5


@EVERY_CLIENT
def test_episodes_reach_the_store(make):
    store = make_store()
    game = EpisodeReport(1, 21.0, 800, 5_000, 0.5)
    make(store).report_episodes([game])
    assert store.take_episodes() == [game]


@EVERY_CLIENT
def test_rejected_minibatches_are_counted_and_change_nothing(make):
    store = make_store([1, 2])
    client = make(store, max_nonfinite=4)
    for _ in range(3):
        client.reject_minibatch()
    client.finish()
    assert store.pull().counters == Counters(minibatches=3, nonfinite=3)
    assert client.own_minibatches == 3
    assert client.stalenesses == []
    assert global_online(store) == [1, 2]


@EVERY_CLIENT
@pytest.mark.parametrize("allowed", [1, 3])
def test_one_rejected_minibatch_too_many_in_a_row_ends_the_run(make, allowed):
    client = make(make_store(), max_nonfinite=allowed)
    for _ in range(allowed - 1):
        client.reject_minibatch()
    with pytest.raises(RunFailed, match=f"^{allowed} minibatches .*--learning_rate"):
        client.reject_minibatch()


@pytest.mark.parametrize(
    ("make", "options"),
    [(direct_client, {}), (gradient_client, {}), (delta_client, {}), (delta_client, {"local_steps": 8})],
    ids=["direct", "gradient", "delta", "delta between two pushes"],
)
def test_a_finite_minibatch_ends_a_row_of_others(make, options):
    store = make_store([0, 0])
    client = make(store, max_nonfinite=3, **options)
    for _ in range(4):
        client.reject_minibatch()
        client.reject_minibatch()
        minibatch(client, 1, 0)
    client.reject_minibatch()
    client.reject_minibatch()
    with pytest.raises(RunFailed):
        client.reject_minibatch()
    client.finish()
    counters = store.pull().counters
    assert (counters.minibatches, counters.nonfinite) == (4 * 3 + 3, 4 * 2 + 3)
    assert global_online(store) == [4, 0]


@EVERY_CLIENT
def test_an_outage_reaches_the_caller(make):
    store = FragileStore([0, 0])
    client = make(store)
    store.is_out = True
    for call in (lambda: client.claim_steps(4), lambda: minibatch(client, 1, 0), client.finish):
        with pytest.raises(Outage):
            call()


def make_clients(modules, **options):
    """A client of each kind, each with a store of its own."""
    for kind in (DirectClient, GradientClient, DeltaClient):
        held = [one._replace(optimizer=optimizers.add()) for one in modules] if kind is DeltaClient else modules
        store = LocalParameterStore(held, total_steps=1_000, **options)
        store.initialize({module.name: np.zeros(module.size, np.float32) for module in modules})
        limits = {"max_nonfinite": 3}
        if kind is not DirectClient:
            limits |= {"overlap": False, "max_staleness": 0}
        if kind is DeltaClient:
            limits |= {"trained": modules, "local_steps": 1}
        client = kind(store, **limits)
        client.start()
        yield store, client


def test_rates_follow_the_agent_steps_of_all_workers():
    falling = make_module()._replace(rate=linear(1.0, 0.0, begin=0, steps=100))
    for store, client in make_clients([falling, make_module(3, "v", rate=0.5)]):
        assert client.rates().tolist() == [1.0, 0.5]
        store.add_counts(Counters(env_steps=30))  # another worker's
        client.claim_steps(1)
        client.count(env_steps=20)
        assert client.rates().tolist() == [1 - (30 + 20) / 100, 0.5]


def test_the_direct_client_computes_on_the_store_itself():
    store = make_store([0, 0], optimizer=descent(), rate=0.5)
    client = direct_client(store)
    assert client.online is store.online
    assert client.target is store.target
    for gradient, expected in [([4, 0], [-2, 0]), ([0, 8], [-2, -4]), ([2, 2], [-3, -5])]:
        minibatch(client, *gradient)
        assert online(client) == global_online(store) == expected
    assert client.stalenesses == [0, 0, 0]
    assert client.counters == store.pull().counters == Counters(minibatches=3, updates=3)
    assert client.clock.seconds()["waiting"] == 0
    assert client.slots() == {}


@EVERY_CLIENT
def test_the_target_is_refreshed_at_the_very_minibatch_that_passes_the_period(make):
    client = make(make_store([0, 0], target_period=3))
    targets = []
    for number in range(7):  # of one vector step: nothing is claimed or reported between them
        if number == 4:
            client.reject_minibatch()  # it counts too
        else:
            minibatch(client, 1, 0)
        targets.append(client.target["q"].numpy()[0])
    assert targets[:5] == [0, 0, 3, 3, 3]
    assert client.counters.target_refreshes == (7 // 3)
    assert targets[5:] == [5, 5]


@pytest.mark.parametrize("optimizer", [optimizers.adam(), optimizers.rmsprop(), descent()], ids=lambda o: o.name)
def test_all_clients_give_the_same_numbers(optimizer):
    modules = [
        make_module(3, optimizer=optimizer)._replace(rate=linear(0.5, 0.1, begin=0, steps=20)),
        make_module(2, "v", optimizer=descent(), rate=0.25, has_target=False),
    ]
    seen = []
    for store, client in make_clients(modules, target_period=4):
        rng, copies = np.random.default_rng(0), []
        for number in range(12):
            client.count(env_steps=2)
            client.claim_steps(2)
            gradients = [rng.normal(size=size).astype(np.float32) for size in (3, 2)]
            if number % 5 == 3:
                client.reject_minibatch()
            else:
                client.consume(gradients, client.rates())
                client.after_minibatch()
            copies.append(np.concatenate([client.online["q"], client.online["v"]]))
        client.finish()
        pulled, slots = store.pull(), {name: value for name, value in store.state().items() if "/slot/" in name}
        slots = slots or {name.replace("/", "/slot/", 1): value for name, value in client.slots().items()}
        assert client.stalenesses == [0] * 10
        assert client.counters == pulled.counters
        assert client.own_minibatches == 12
        seen.append((np.array(copies), store.pull_target()["q"], slots, pulled.counters))
    (copies, target, slots, counters), gradient, delta = seen
    for other, tolerance in ((gradient, 0), (delta, 1e-6)):
        np.testing.assert_allclose(other[0], copies, atol=tolerance, rtol=0)
        np.testing.assert_allclose(other[1], target, atol=tolerance, rtol=0)
        np.testing.assert_equal(other[2], slots)
        assert other[3] == counters
    assert counters == Counters(24, 24, 12, updates=10, nonfinite=2, target_refreshes=3)


def test_an_optimizer_rests_where_a_minibatch_says_nothing_of_its_module():
    modules = [make_module(3, optimizer=optimizers.adam()), make_module(2, "v", optimizer=descent(), has_target=False)]
    for store, client in make_clients(modules, target_period=4):
        found = []
        for first in ([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]):
            client.consume([tf.constant(first), tf.ones(2)], tf.constant(client.rates()))
            client.after_minibatch()
            slots = client.slots() or {
                name.replace("/slot/", "/"): value for name, value in store.state().items() if "/slot/" in name
            }
            found.append({name: np.copy(value) for name, value in slots.items() if name.startswith("q/")})
            found[-1] |= {name: value.numpy() for name, value in client.online.items()}
        client.finish()
        before, after = found
        assert len(before) > 3
        for name in before.keys() - {"v"}:
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
        assert (after["v"] < before["v"]).all()
