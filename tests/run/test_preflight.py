"""What is refused before anything starts."""

import re

import pytest

from async_dqn.agents.table import make_config
from async_dqn.base.errors import UserError
from async_dqn.run import preflight
from async_dqn.settings.config import Config
from async_dqn.system.memory import available_bytes

NATURE = make_config("dqn", "nature", {"num_workers": 4})


def test_replay_is_counted_for_the_workers_of_this_machine():
    text = preflight.check_replay_memory(NATURE, preflight.resolve(NATURE), 1)
    assert "250,000" in text and "1.77 GB" in text  # 7.07 GB for a million


def test_an_agent_without_replay_needs_no_memory_for_it():
    config = make_config("ppo", "pong", {})
    assert preflight.check_replay_memory(config, preflight.resolve(config), 1) == ""


def test_a_replay_that_does_not_fit_is_refused(monkeypatch):
    assert available_bytes() > 0
    monkeypatch.setattr(preflight, "available_bytes", lambda: 10**9)
    with pytest.raises(UserError, match="--replay_capacity=1000000 .*7.07 GB.*1.00 GB"):
        preflight.check_replay_memory(NATURE, preflight.resolve(NATURE), NATURE.num_workers)


@pytest.mark.parametrize(
    ("env", "network", "fitting"),
    [("pong", "mlp", "nips or nature"), ("CartPole-v1", "nips", "mlp"), ("CartPole-v1", "nature", "mlp")],
)
def test_a_network_that_does_not_fit_is_named(env, network, fitting):
    spec = preflight.resolve(Config(env=env))  # with the network auto, anything fits
    with pytest.raises(UserError, match=f"--network={network} .*{re.escape(spec.id)}.*{fitting}"):
        preflight.resolve(Config(env=env, network=network))
