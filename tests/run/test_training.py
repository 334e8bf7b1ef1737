"""A worker's part of a run across an outage."""

import threading

import pytest

from async_dqn.agents.table import make_config
from async_dqn.base.errors import Outage
from async_dqn.nn.module import initial_parameters
from async_dqn.run import build
from async_dqn.run.directory import RunDirectory
from async_dqn.run.training import Training


def test_what_an_outage_cut_short_is_learned_before_the_next_step_takes_the_place_of_its_rollout(tmp_path, monkeypatch):
    sizes = {"envs_per_worker": 2, "rollout_length": 8, "batch_size": 4, "epochs": 2, "total_steps": 64, "threads": 1}
    config = make_config("ppo", "cartpole", {"env": "CartPole-v1", "num_workers": 1, "num_ps": 1, **sizes})
    agent, run = build.make_agent(config), RunDirectory(tmp_path / "run")
    run.create()
    store = build.make_local_store(agent)
    store.initialize(initial_parameters(agent.modules, 0))
    client = build.make_direct_client(config, store)
    client.start()
    training = Training(agent, run, client, run_id=1, num_threads=1, say=lambda line: None)
    after_minibatch, calls = client.after_minibatch, []

    def cut_off_once():
        calls.append(1)
        if len(calls) == 2:
            raise Outage("ps 0 is out of reach")
        after_minibatch()

    monkeypatch.setattr(client, "after_minibatch", cut_off_once)
    with pytest.raises(Outage):
        training.run(lambda: None, threading.Event())
    training.run(lambda: None, threading.Event())
    training.close()
    assert len(calls) == 4 * 2 * 16 / 4  # rollouts x epochs x steps / minibatch
    assert client.env_steps == 64
