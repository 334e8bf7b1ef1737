"""Trains an agent of Stable-Baselines3 on Pong until it is told to end; says how far it is, a JSON object a line.

Takes a work of `async_dqn.tools.bench.work`, the number of environments, and for DQN the transitions in replay and the
agent steps before training. Both works have the network of Mnih et al. 2015. "nature" is DQN with one minibatch of 32
for every four agent steps, "a2c" is A2C with rollouts of 5 steps. Whatever that leaves open is as Stable-Baselines3
has it.
"""

import json
import os
import signal
import sys
import time
from typing import Any

import ale_py
import gymnasium
import torch
from stable_baselines3 import A2C, DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

_TRAIN_PERIOD = 4  # agent steps per minibatch
_SAY_PERIOD = 0.5  # seconds


class Progress(BaseCallback):
    """Says what was done: steps that the environments have made, and steps that the optimizer really took."""

    def __init__(self) -> None:
        super().__init__()
        self._minibatches = 0
        self._begin = self._said_at = time.monotonic()

    def _on_training_start(self) -> None:
        self.model.policy.optimizer.register_step_post_hook(self._count)

    def _count(self, *arguments: Any) -> None:
        self._minibatches += 1

    def _on_step(self) -> bool:
        now = time.monotonic()
        if now - self._said_at >= _SAY_PERIOD:
            self._said_at = now
            row = {"wall_seconds": now - self._begin, "env_steps": self.num_timesteps}
            print(json.dumps(row | {"minibatches": self._minibatches, "updates": self._minibatches}), flush=True)
        return True


def make_envs(num_envs: int) -> VecFrameStack:
    """Pong, four frames on one another."""
    envs = make_atari_env(
        "ALE/Pong-v5",  # as NoFrameskip-v4 was: its wrapper skips the frames
        n_envs=num_envs,
        seed=0,
        env_kwargs={"frameskip": 1, "repeat_action_probability": 0.0},
        wrapper_kwargs={"noop_max": 30, "frame_skip": 4, "terminal_on_life_loss": True, "clip_reward": True},
    )
    return VecFrameStack(envs, 4)


def make_dqn(num_envs: int, replay_capacity: int, warmup_steps: int) -> DQN:
    """The agent and its environments, at exactly one minibatch per four agent steps."""
    vector_steps, minibatches = max(1, _TRAIN_PERIOD // num_envs), max(1, num_envs // _TRAIN_PERIOD)
    assert vector_steps * num_envs == _TRAIN_PERIOD * minibatches, f"{num_envs} environments do not divide evenly"
    return DQN(
        "CnnPolicy",
        make_envs(num_envs),
        learning_rate=2.5e-4,
        buffer_size=replay_capacity,
        learning_starts=warmup_steps,
        batch_size=32,
        gamma=0.99,
        train_freq=(vector_steps, "step"),
        gradient_steps=minibatches,
        target_update_interval=4_000,
        exploration_fraction=1e-6,  # over before learning starts: a random action is drawn without a prediction
        exploration_final_eps=0.01,
        seed=0,
        device="cpu",
    )


def make_a2c(num_envs: int) -> A2C:
    """The agent and its environments."""
    return A2C(
        "CnnPolicy",
        make_envs(num_envs),
        learning_rate=7e-4,
        n_steps=5,
        gamma=0.99,
        gae_lambda=1.0,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        rms_prop_eps=1e-5,
        seed=0,
        device="cpu",
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(130))
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    gymnasium.register_envs(ale_py)
    make_model: Any = {"nature": make_dqn, "a2c": make_a2c}[sys.argv[1]]
    make_model(*map(int, sys.argv[2:])).learn(10**9, callback=Progress())
