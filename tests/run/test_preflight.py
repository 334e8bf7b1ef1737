"""What is refused before anything starts, and that it takes no TensorFlow to refuse it."""

import subprocess
import sys

import psutil
import pytest

from async_dqn.base.errors import UserError
from async_dqn.run import preflight
from async_dqn.settings.config import Config, make_config


def test_replay_is_counted_for_the_workers_of_this_machine():
    config = make_config("nature", {"num_workers": 4})
    spec, _ = preflight.resolve(config)
    text = preflight.check_replay_memory(config, spec, 1)
    assert "250,000 transitions" in text
    assert "1.77 GB" in text  # 7.07 GB for a million


def test_available_memory_is_positive_and_no_more_than_the_machine_has():
    assert 0 < preflight.available_bytes() <= psutil.virtual_memory().total


def test_a_replay_that_does_not_fit_is_refused(monkeypatch):
    config = make_config("nature", {})
    spec, _ = preflight.resolve(config)
    monkeypatch.setattr(preflight, "available_bytes", lambda: 10**9)
    with pytest.raises(UserError, match="--replay_capacity=1000000 needs 7.07 GB of memory, but 1.00 GB is available"):
        preflight.check_replay_memory(config, spec, config.num_workers)


@pytest.mark.parametrize(("env", "network", "name"), [("pong", "auto", "nips"), ("CartPole-v1", "auto", "mlp")])
def test_the_network_follows_the_environment(env, network, name):
    assert preflight.resolve(Config(env=env, network=network))[1] == name


def test_a_launcher_imports_no_tensorflow():
    code = "import sys, async_dqn.__main__, async_dqn.roles.local, async_dqn.run.preflight, async_dqn.system.signals"
    done = subprocess.run([sys.executable, "-c", f"{code}; print('tensorflow' in sys.modules)"], capture_output=True)
    assert done.stdout.decode().strip() == "False", done.stderr.decode()
