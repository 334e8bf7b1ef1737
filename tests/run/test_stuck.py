"""stuck.py: the end of a run whose environments do not come back."""

import json
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from cluster_helpers import commands
from fakes import CountingEnv

from async_dqn.run import checkpoints, stuck
from async_dqn.run.directory import RunDirectory

DEADLINE = 30.0


class Waiting(CountingEnv):
    """Comes back when it is told to."""

    def __init__(self):
        super().__init__(2)
        self.may_return, self.is_inside = threading.Event(), threading.Event()

    def receive(self):
        self.is_inside.set()
        assert self.may_return.wait(DEADLINE)
        return super().receive()


def step(gate, env):

    gate.send(np.zeros(2, int))
    return gate.receive()


def test_a_gate_is_shut_only_where_somebody_waits():
    env = Waiting()
    gate = stuck.Gate(env)
    assert not gate.shut()
    came_back = threading.Event()

    def play():
        step(gate, env)
        came_back.set()

    threading.Thread(target=play, daemon=True).start()
    assert env.is_inside.wait(DEADLINE)
    assert gate.shut()
    env.may_return.set()
    assert not came_back.wait(0.2)


def test_an_environment_that_comes_back_in_time_needs_no_rescue(monkeypatch):
    monkeypatch.setattr(stuck, "_PATIENCE", 0.2)
    env = Waiting()
    env.may_return.set()
    gate = stuck.Gate(env)
    rescued = threading.Event()
    with stuck.rescued(gate, lambda: True, rescued.set):
        for _ in range(20):
            step(gate, env)
        assert not rescued.wait(0.6)


def test_an_environment_that_does_not_come_back_is_left_behind(monkeypatch):
    monkeypatch.setattr(stuck, "_PATIENCE", 0.2)
    env = Waiting()
    gate = stuck.Gate(env)
    rescued = threading.Event()
    with stuck.rescued(gate, env.is_inside.is_set, rescued.set):
        threading.Thread(target=step, args=(gate, env), daemon=True).start()
        assert rescued.wait(DEADLINE)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["baseline", pytest.param("local", marks=pytest.mark.cluster)])
def test_what_was_shown_is_saved_though_a_game_does_not_begin(tmp_path, command):
    run = RunDirectory(tmp_path / "run")
    environ = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parents[1])])}
    flags = [
        "--env=faulty_environments:Faulty/StuckReset-v0",
        "--total_steps=100000",
        "--log_period=0.2",
        "--threads=1",
    ]
    with commands(tmp_path) as start:
        started = start(command, command, *flags, f"--logdir={run.path}", "--progress=plain", environ=environ)
        started.wait_for_output(" steps/s |")
        started.process.send_signal(signal.SIGTERM)
        assert started.wait(DEADLINE) == 130, started.out + started.err
    summary = json.loads(run.summary.read_text())
    assert summary["exit_reason"] == "interrupted" and summary["env_steps"] > 0
    assert checkpoints.numbers(run.checkpoints)[-1] == summary["env_steps"]
