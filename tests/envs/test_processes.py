"""processes.py: environments in processes of their own, which crash and hang."""

import contextlib
import os
import subprocess
import sys

import numpy as np
import psutil
import pytest

from async_dqn.base.errors import RunFailed
from async_dqn.envs import processes, registry

pytestmark = pytest.mark.slow  # each process imports what it needs


@contextlib.contextmanager
def made(name, num_envs=2, timeout=60.0):
    spec = registry.resolve(name, "none")
    with contextlib.closing(registry.make_vector_env(spec, num_envs, seed=3, process_timeout=timeout)) as env:
        yield env


def test_processes_play_as_this_one_does():
    with made("CartPole-v1") as env, contextlib.closing(registry.make_vector_env(env.spec, 2, seed=3)) as twin:
        np.testing.assert_array_equal(env.reset(), twin.reset())
        for actions in np.random.default_rng(0).integers(2, size=(60, 2)):
            ours, theirs = env.step(actions), twin.step(actions)
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Dies", "the process of one ended with exit code 7"),
        ("Raises", "ValueError: no such level"),
        ("Hangs", "one took more than 5 seconds"),
    ],
)
def test_a_step_that_is_lost_ends_all_games_and_new_ones_begin(name, reason, monkeypatch):
    """These fail at action 1."""
    with made(f"faulty_environments:Faulty/{name}-v0") as env:
        env.reset()
        before = env.step(np.array([0, 0])).observation
        if name == "Hangs":
            monkeypatch.setattr(env._environments, "_timeout", 5.0)
        result = env.step(np.array([0, 1]))
        assert [(bad.environment, bad.value) for bad in result.bad_values] == [(0, None), (1, None)]
        assert reason in result.bad_values[0].described(env.spec.id)
        monkeypatch.undo()
        np.testing.assert_array_equal(result.spoilt(), [0, 1])
        assert not result.episodes and not result.terminated.any() and not result.truncated.any()
        np.testing.assert_array_equal(result.next_observation, before)  # the game ends before the step
        assert result.observation[:, 1].tolist() == [0, 0]
        after = env.step(np.array([0, 0]))
        assert after.observation[:, 1].tolist() == [1, 1] and not after.bad_values


def test_where_a_game_does_not_begin_those_of_the_others_end_with_the_next_step():
    with made("faulty_environments:Faulty/DiesInReset-v0") as env:
        env.reset()
        over = env.step(np.array([0, 1]))
        assert [episode.environment for episode in over.episodes] == [1] and not over.bad_values
        lost = env.step(np.array([0, 0]))
        np.testing.assert_array_equal(lost.spoilt(), [0, 1])
        assert "exit code 7" in lost.bad_values[0].described(env.spec.id) and not lost.episodes
        assert lost.observation[:, 1].tolist() == [0, 0]
        after = env.step(np.array([0, 0]))
        assert after.observation[:, 1].tolist() == [1, 1] and not after.bad_values


_HANGS = """
import numpy as np
from async_dqn.envs import registry
spec = registry.resolve("faulty_environments:Faulty/Hangs-v0", "none")
env = registry.make_vector_env(spec, 2, seed=3, process_timeout=600)
env.reset()
env.send(np.array([1, 0]))
print("sent", flush=True)
env.receive()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_processes_end_with_the_one_that_started_them_though_a_step_hangs():
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", _HANGS], stdout=subprocess.PIPE, text=True, env=environ) as parent:
        assert parent.stdout.readline() == "sent\n"
        children = psutil.Process(parent.pid).children()
        parent.kill()
    assert len(children) >= 2
    _, alive = psutil.wait_procs(children, timeout=60)
    for process in alive:
        process.kill()
    assert not alive


def test_too_many_restarts_end_the_run(monkeypatch):
    monkeypatch.setattr(processes, "_MOST_RESTARTS", 1)
    with made("faulty_environments:Faulty/Dies-v0", num_envs=1) as env:
        env.reset()
        env.step(np.array([1]))
        with pytest.raises(RunFailed, match="exit code 7.*restart 2 in"):
            env.step(np.array([1]))
