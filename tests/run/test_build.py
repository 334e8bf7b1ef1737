"""Building the parts of a run from its settings."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from fakes import DroppingStore, make_store, minibatch, push

from async_dqn.agents.table import TABLE, make_config
from async_dqn.base.errors import RunFailed
from async_dqn.nn.module import initial_parameters
from async_dqn.run import build
from async_dqn.settings.config import Config
from async_dqn.store.client import DirectClient
from async_dqn.store.delta_client import DeltaClient
from async_dqn.store.gradient_client import GradientClient


def make_agent(name="dqn", worker=0, **settings):
    """An agent for CartPole."""
    return build.make_agent(make_config(name, "cartpole", {"env": "CartPole-v1"} | settings), worker)


def initialized(agent):
    """The baseline's store of an agent, at its start."""
    store = build.make_local_store(agent)
    store.initialize(initial_parameters(agent.modules, agent.config.seed))
    return store


@pytest.mark.parametrize("name", TABLE)
def test_an_agent_gets_its_settings_its_environment_and_its_place(name):
    agent = make_agent(name, worker=2, num_workers=3)
    assert (agent.config.agent, agent.spec.id, agent.worker) == (name, "CartPole-v1", 2)
    store = initialized(agent)
    assert [module.name for module in store.modules] == [module.name for module in agent.modules]
    assert store.total_steps == agent.config.total_steps


def test_workers_draw_seeds_of_their_own_and_a_resumed_run_new_ones():
    seeds = {build.make_seeds(Config(seed=3), worker, step)[1] for worker in (0, 1) for step in (0, 500)}
    assert len(seeds) == 4
    assert build.make_seeds(Config(seed=3), 1, 0)[1] == build.make_seeds(Config(seed=3), 1, 0)[1]


@pytest.mark.parametrize(
    ("local_steps", "kind", "at_the_store"), [(0, GradientClient, "centered_rmsprop"), (4, DeltaClient, "add")]
)
def test_local_steps_decide_where_the_optimizer_is(local_steps, kind, at_the_store):
    agent = make_agent(optimizer="centered_rmsprop", local_steps=local_steps)
    assert type(build.make_client(agent, initialized(agent))) is kind
    (module,) = build.store_modules(agent)
    assert module.optimizer.name == at_the_store
    assert agent.modules[0].optimizer.name == "centered_rmsprop"


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "centered_rmsprop"])
def test_shared_averages_of_two_workers_forget_together_as_fast_as_one_optimizer_s(optimizer):
    settings = {"optimizer": optimizer, "local_steps": 4}
    workers = [make_agent(worker=i, num_workers=2, averages="shared", **settings) for i in range(2)]
    clients = [build.make_client(agent, initialized(agent)) for agent in workers]
    single = make_agent(num_workers=1, **settings)
    alone = build.make_direct_client(single.config, store := initialized(single))
    gradient, rates = [tf.fill([single.modules[0].size], 2.0)], tf.ones(1)
    for _ in range(5):  # all see the same gradient, one after the other
        for client in clients:
            client.consume(gradient, rates)
            alone.consume(gradient, rates)
    averages = {f"q/{name}" for name in ("m", "v", "ms", "mg")} & clients[0].slots().keys()
    assert averages
    for client, name in itertools.product(clients, averages):
        expected = store.state()[name.replace("q/", "q/slot/")]
        np.testing.assert_allclose(client.slots()[name], expected, rtol=1e-4)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("local_steps", [0, 2])
def test_a_worker_s_client_has_the_limits_of_the_settings(overlap, local_steps):
    agent = make_agent(overlap=overlap, max_nonfinite=2, max_staleness=1, local_steps=local_steps)
    store = DroppingStore([0, 0], max_staleness=1)
    agent.modules = store.modules
    client = build.make_client(agent, store)
    client.start()
    for _ in range(2):
        push(store, 1, 1, computed_on=store.pull().counters.updates)
    for _ in range(local_steps or 1):
        minibatch(client, 1, 0)
    client.reject_minibatch()
    with pytest.raises(RunFailed):
        client.reject_minibatch()
    client.finish()
    assert client.stalenesses == []
    assert (client.counters.updates, client.counters.dropped, client.counters.nonfinite) == (2, 1, 2)


def test_the_baseline_s_client_works_on_the_store_itself():
    store = make_store()
    client = build.make_direct_client(Config(max_nonfinite=1, local_steps=4), store)
    assert type(client) is DirectClient
    minibatch(client, 1, 2)
    assert store.pull().online["q"].tolist() == [1, 2]
    with pytest.raises(RunFailed):
        client.reject_minibatch()


def test_an_agent_s_settings_name_what_it_computes_in_so_that_a_resumed_run_keeps_it(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setattr(build.devices.processor, "flags", lambda: ["amx_bf16"])
    saved = make_agent(env="pong").config
    assert saved.compute_dtype == "bfloat16"
    monkeypatch.setattr(build.devices.processor, "flags", list)  # another machine
    assert build.make_agent(saved).config.compute_dtype == "bfloat16"
    assert make_agent(env="pong").config.compute_dtype == "float32"
