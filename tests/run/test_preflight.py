"""What is refused before anything starts."""

import re

import gymnasium
import numpy as np
import pytest

from async_dqn.agents.table import make_config
from async_dqn.base.errors import UserError
from async_dqn.run import build, preflight
from async_dqn.settings.config import Config
from async_dqn.system.memory import available_bytes

NATURE = make_config("dqn", "nature", {"num_workers": 4})


def test_experience_is_counted_for_the_workers_of_this_machine():
    assert "1.77 GB" in preflight.check_memory(NATURE, preflight.resolve(NATURE), [3])  # a quarter of 7.07
    ppo = make_config("ppo", "pong", {"rollout_length": 100, "envs_per_worker": 10})
    rollout = 100 * 10 * 4 * 84 * 84
    assert preflight.experience_bytes(ppo, preflight.resolve(ppo), [0, 1]) == 2 * rollout
    nstep_q = make_config("nstep_q", "atari", {"env": "pong", "t_max": 100, "envs_per_worker": 10})
    assert preflight.experience_bytes(nstep_q, preflight.resolve(nstep_q), [0]) == 4 * rollout  # two are copies
    by_data = {"parallelism": "data", "rollouts_per_batch": 50, "store": "ps"}
    ppo = make_config("ppo", "pong", {"rollout_length": 100, "envs_per_worker": 10, "num_workers": 4} | by_data)
    assert preflight.experience_bytes(ppo, preflight.resolve(ppo), range(4)) == 50 * rollout  # worker 0 alone learns
    assert preflight.experience_bytes(ppo, preflight.resolve(ppo), [1, 2, 3]) == 0


@pytest.mark.parametrize(
    ("config", "flag", "fits"),
    [
        (NATURE, "--replay_capacity=1000000", 141_482),
        (make_config("ppo", "pong", {"rollout_length": 10_000, "num_workers": 4}), "--rollout_length=10000", 553),
    ],
)
def test_experience_that_does_not_fit_is_refused(monkeypatch, config, flag, fits):
    assert available_bytes() > 0
    spec = preflight.resolve(config)
    needed = preflight.experience_bytes(config, spec, range(4))
    monkeypatch.setattr(preflight, "available_bytes", lambda: needed)
    assert preflight.check_memory(config, spec, range(4))
    monkeypatch.setattr(preflight, "available_bytes", lambda: 10**9)
    with pytest.raises(UserError, match=rf"{flag} .*{needed / 1e9:.2f} GB.*1.00 GB.* {fits} "):
        preflight.check_memory(config, spec, range(4))


@pytest.mark.parametrize(
    ("settings", "arrays"),
    [
        ({}, 2 + 2),  # online, target, and two averages of Adam
        ({"local_steps": 1}, 2),  # which the workers have then
        ({"update_mode": "sync"}, 2 + 2 + 50),
        ({"update_mode": "accumulate", "accumulate": 3}, 2 + 2 + 50 + 1),  # and the sum so far
        ({"store": "shared_memory"}, 0),
    ],
)
def test_what_parameter_servers_hold_is_counted(monkeypatch, settings, arrays):
    given = {"env": "CartPole-v1", "num_workers": 50, "envs_per_worker": 1, "local_steps": 0} | settings
    config = make_config("dqn", "cartpole", given)
    agent = build.make_agent(config)
    held = build.server_bytes(agent)
    assert divmod(held, 4 * agent.modules[0].size) in [(arrays, 0), (arrays, 2 * 4)]  # Adam has two numbers more
    needed = preflight.experience_bytes(config, agent.spec, range(50))
    monkeypatch.setattr(preflight, "available_bytes", lambda: needed + held)
    assert preflight.check_memory(config, agent.spec, range(50), held)
    with pytest.raises(UserError, match=rf"--num_workers=50 .*--update_mode={config.mode} .*is available"):
        preflight.check_memory(config, agent.spec, range(50), held + 1)


@pytest.mark.parametrize(
    ("env", "network", "fitting"),
    [
        ("pong", "mlp", "nature or nips or small or impala"),
        ("CartPole-v1", "nips", "mlp"),
        ("CartPole-v1", "small", "mlp"),
    ],
)
def test_a_network_that_does_not_fit_is_named(env, network, fitting):
    spec = preflight.resolve(Config(env=env))  # with the network auto, anything fits
    with pytest.raises(UserError, match=f"--network={network} .*{re.escape(spec.id)}.*{fitting}"):
        preflight.resolve(Config(env=env, network=network))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "pong", "env_processes": True}, "^--env_processes=True: .*Atari.*ALE/Pong-v5"),
        ({"env": "CartPole-v1", "protocol": "machado"}, "^--protocol=machado: .*Atari.*CartPole-v1"),
    ],
)
def test_what_is_for_atari_or_for_all_but_atari_is_refused_elsewhere(settings, message):
    with pytest.raises(UserError, match=message):
        preflight.resolve(Config(**settings))


def test_continuous_actions_are_refused_by_agents_that_need_discrete_ones():
    with pytest.raises(UserError, match=r"^--env=Pendulum-v1: has continuous actions; --agent=dqn .* ppo.* can$"):
        preflight.resolve(Config(env="Pendulum-v1"))
    assert preflight.resolve(make_config("ppo", "pendulum", {"env": "Pendulum-v1"})).is_continuous


class Camera(gymnasium.Env):
    """Never played."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(0, 255, (210, 160, 3), np.uint8)


def test_pictures_take_a_byte_for_each_of_their_numbers(monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Camera-v0", gymnasium.envs.registration.EnvSpec("Camera-v0", Camera))
    config = make_config("dqn", "pictures", {"env": "Camera-v0", "replay_capacity": 30_000, "num_workers": 1})
    needed = preflight.experience_bytes(config, preflight.resolve(config), [0])
    assert 1 <= needed / (30_000 * 210 * 160 * 3) < 1.001
