"""A replay to plan from, and a model that is known exactly: states are one number each."""

import numpy as np

from async_dqn.data.experience import Step
from async_dqn.data.planning import DynaExperience, Imagined
from async_dqn.data.replay import Replay

DISCOUNT = 0.9
NUM_ACTIONS = 2


def evaluate(stacked):
    """Values by hand: action 1 is worth ten times the state, action 0 nothing. States are one number each."""
    x = np.asarray(stacked, np.float32)[:, -1, 0]
    return {"q_values": np.stack([0 * x, 10 * x], axis=1)}


def imagine(outputs, observation):
    """The truth: action a adds a + 1, pays the state, and ends the episode with probability 0.25 (a = 0) or never."""
    x = observation[:, -1]  # [N, 1]
    following = np.stack([x + 1, x + 2], axis=1)  # [N, A, 1]
    return Imagined(following, np.repeat(x, 2, axis=1), np.tile([0.25, 0.0], (len(x), 1)))


def make(num_steps=60, imagine=imagine, n_step=1, **settings):
    replay = Replay(
        num_envs=1,
        capacity=200,
        observation_shape=(1,),
        observation_dtype=np.float32,
        stack=1,
        n_step=n_step,
        discount=DISCOUNT,
    )
    options = {"simulated_ratio": 1.0, "depth": 1, "sweeping": "uniform", "max_model_error": 0.1} | settings
    experience = DynaExperience(
        replay, discount=DISCOUNT, num_actions=NUM_ACTIONS, imagine=imagine, evaluate=evaluate, batch_size=8,
        train_period=1, warmup_steps=10,
        **options,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    state = np.zeros((1, 1), np.float32)
    for _ in range(num_steps):
        action = rng.integers(NUM_ACTIONS, size=1).astype(np.int32)
        following = state + 1 + action
        ended = np.array([following[0, 0] > 12])
        no = np.zeros(1, bool)
        reward = state[:, 0]
        experience.add(Step(state, state[:, None], action, evaluate(state[:, None]), reward, ended, no, following), 1)
        state = np.zeros((1, 1), np.float32) if ended else following.astype(np.float32)
    return experience
