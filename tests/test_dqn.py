"""The DQN agent: when it learns, from what, along which gradient, and that a seed decides everything."""

import math

import numpy as np
import pytest
import tensorflow as tf
from fakes import CountingEnv, make_store

from async_dqn import environments
from async_dqn.agents.dqn import DQN, make_gradient
from async_dqn.config import make_config
from async_dqn.frame_stack import FrameStack
from async_dqn.networks import make_network
from async_dqn.optimizers import adam
from async_dqn.parameter_client import GradientClient
from async_dqn.parameters import Layout, LocalParameterStore
from async_dqn.replay import Replay
from async_dqn.roles import assemble
from async_dqn.run_loop import run_loop
from async_dqn.schedules import constant
from async_dqn.types import Transition


class Parts:
    """An agent on environments whose observation is one number, and what it is made of."""

    def __init__(self, *, num_envs=2, train_period=4, warmup_steps=10, clip_rewards=True, epsilon=1.0, total_steps=200):
        network = make_network("mlp", (1,), 1, 2)
        layout = Layout(network.shapes)
        start = layout.flatten(network.init(np.random.default_rng(0)))
        self.store = make_store(start, optimizer=adam(), total_steps=total_steps)
        self.client = GradientClient(self.store, constant(1e-3), push_period=1, pull_period=1, overlap=False)
        self.client.start()
        self.replay = Replay(
            num_envs=num_envs,
            capacity=num_envs * 500,
            observation_shape=(1,),
            observation_dtype=np.float32,
            stack=1,
            n_step=1,
            discount=0.9,
        )
        self.agent = DQN(
            network=network,
            layout=layout,
            client=self.client,
            replay=self.replay,
            frame_stack=FrameStack(num_envs, 1, (1,), np.float32),
            epsilon=constant(epsilon),
            gradient=make_gradient(network, layout, double=True, max_norm=0.0),
            batch_size=4,
            train_period=train_period,
            warmup_steps=warmup_steps,
            clip_rewards=clip_rewards,
            rng=np.random.default_rng(0),
        )

    def rewards_in_replay(self):
        env, index = self.replay.valid_starts()
        return self.replay.gather(env, index, self.replay.make_batch(len(env))).r_t


@pytest.mark.parametrize(("num_envs", "train_period"), [(1, 1), (1, 4), (2, 4), (3, 2), (8, 4), (5, 7)])
def test_learns_once_every_train_period_after_warm_up_and_never_before(num_envs, train_period):
    warmup_steps = 3 * num_envs
    parts = Parts(num_envs=num_envs, train_period=train_period, warmup_steps=warmup_steps, total_steps=20 * num_envs)
    warm_steps = 0
    for tick in run_loop(parts.agent, CountingEnv(num_envs, length=100), parts.client, claim=4):
        warm_steps += tick.num_steps if len(parts.replay) >= warmup_steps else 0
        assert parts.client.own_minibatches == warm_steps // train_period
    # Without an end of an episode, the newest step of each environment cannot be sampled yet.
    assert warm_steps == (20 - 3) * num_envs
    assert parts.store.pull().counters.updates == (20 - 3) * num_envs // train_period


def test_steps_that_do_not_fill_a_period_are_owed():
    parts = Parts(num_envs=1, train_period=4, warmup_steps=2, total_steps=8)
    list(run_loop(parts.agent, CountingEnv(1), parts.client, claim=8))
    before = parts.client.own_minibatches
    owed = parts.agent.state()[1]["owed_steps"]
    parts.agent.learn(4 - owed - 1)
    assert parts.client.own_minibatches == before
    parts.agent.learn(1)
    assert parts.client.own_minibatches == before + 1
    parts.agent.learn(3 * 4)
    assert parts.client.own_minibatches == before + 1 + 3


@pytest.mark.parametrize(
    ("clip_rewards", "reward", "learned"),
    [(True, 5.0, 1.0), (True, -5.0, -1.0), (True, 0.5, 0.5), (False, 5.0, 5.0)],
)
def test_rewards_are_clipped_in_replay_and_never_in_episodes(clip_rewards, reward, learned):
    parts = Parts(clip_rewards=clip_rewards, warmup_steps=1_000, total_steps=2 * 6)
    ticks = list(run_loop(parts.agent, CountingEnv(2, length=3, reward=reward), parts.client, claim=1))
    np.testing.assert_array_equal(parts.rewards_in_replay(), np.full(2 * 6, learned, np.float32))
    assert [episode.episode_return for tick in ticks for episode in tick.episodes] == [3 * reward] * 4


def test_mean_loss_is_that_since_the_last_call_and_nan_without_one():
    parts = Parts(total_steps=100)
    assert math.isnan(parts.agent.take_loss())
    list(run_loop(parts.agent, CountingEnv(2), parts.client, claim=4))
    assert parts.agent.take_loss() > 0
    assert math.isnan(parts.agent.take_loss())


def test_acts_greedily_without_exploration_and_at_random_with_nothing_else():
    greedy, random = Parts(num_envs=50, epsilon=0.0), Parts(num_envs=50, epsilon=1.0)
    for parts in (greedy, random):
        parts.agent.reset(np.zeros((50, 1), np.float32))
    assert len(set(greedy.agent.act())) == 1  # all environments show the same
    assert set(random.agent.act()) == {0, 1}


def test_a_restored_agent_draws_and_owes_what_the_saved_one_does():
    saved, restored = Parts(num_envs=1), Parts(num_envs=1)
    list(run_loop(saved.agent, CountingEnv(1), saved.client, claim=4))
    restored.agent.restore(*saved.agent.state())
    assert restored.agent.state() == saved.agent.state()
    for parts in (saved, restored):
        parts.agent.reset(np.zeros((1, 1), np.float32))
    actions = [[int(parts.agent.act()[0]) for _ in range(30)] for parts in (saved, restored)]
    assert actions[0] == actions[1]


def train_cartpole(seed, **settings):
    """The store's state after 480 agent steps in CartPole."""
    overrides = {"env": "CartPole-v1", "seed": seed, "total_steps": 480, "warmup_steps": 100, "threads": 1}
    config = make_config("cartpole", overrides | {"num_workers": 1, "batch_size": 16} | settings)
    problem = assemble.make_problem(config)
    store = LocalParameterStore(
        problem.layout.num_parameters, assemble.make_store_optimizer(config), config.total_steps
    )
    store.initialize(assemble.initial_parameters(config, problem))
    client = assemble.make_client(config, store, overlap=False)
    client.start()
    agent_seeds, env_seed = assemble.make_seeds(config, 0, 0)
    agent = assemble.make_agent(config, problem, client, worker=0, seeds=agent_seeds)
    env = environments.make_vector_env(problem.spec, config.envs_per_worker, env_seed, 1)
    for _ in run_loop(agent, env, client, claim=16):
        pass
    client.finish()
    env.close()
    return store.state()


@pytest.mark.parametrize("local_steps", [0, 4])
def test_same_seed_same_parameters_to_the_last_bit(local_steps):
    first, second, other = (train_cartpole(seed, local_steps=local_steps) for seed in (3, 3, 4))
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    assert (first["online"] != first["target"]).any()  # it learned something
    assert (first["online"] != other["online"]).mean() > 0.5


def forward(arrays, x):
    """Activations of the mlp, layer by layer, in float64."""
    hidden0 = np.maximum(x @ arrays["hidden0/w"] + arrays["hidden0/b"], 0)
    hidden1 = np.maximum(hidden0 @ arrays["q_hidden/w"] + arrays["q_hidden/b"], 0)
    return hidden0, hidden1, hidden1 @ arrays["q/w"] + arrays["q/b"]


def loss_and_gradient_by_hand(online, target, batch, double):
    """Backpropagation of the mean Huber loss, written out."""
    rows, x = np.arange(len(batch.a_tm1)), batch.s_tm1[:, 0].astype(np.float64)
    q_t, selector = (forward(arrays, batch.s_t[:, 0])[2] for arrays in (target, online if double else target))
    hidden0, hidden1, q_tm1 = forward(online, x)
    error = batch.r_t + batch.discount_t * q_t[rows, selector.argmax(axis=1)] - q_tm1[rows, batch.a_tm1]
    loss = np.where(np.abs(error) <= 1, 0.5 * error**2, np.abs(error) - 0.5).mean()
    of_q = np.zeros_like(q_tm1)
    of_q[rows, batch.a_tm1] = -np.clip(error, -1, 1) / len(rows)
    of_hidden1 = of_q @ online["q/w"].T * (hidden1 > 0)
    of_hidden0 = of_hidden1 @ online["q_hidden/w"].T * (hidden0 > 0)
    return loss, {
        "hidden0/w": x.T @ of_hidden0,
        "hidden0/b": of_hidden0.sum(axis=0),
        "q_hidden/w": hidden0.T @ of_hidden1,
        "q_hidden/b": of_hidden1.sum(axis=0),
        "q/w": hidden1.T @ of_q,
        "q/b": of_q.sum(axis=0),
    }


def tensors(batch):
    return Transition(*map(tf.constant, batch))


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("max_norm", [0.0, 0.05])
def test_gradient_is_that_of_backpropagation_by_hand(double, max_norm):
    network = make_network("mlp", (3,), 1, 4)
    layout = Layout(network.shapes)
    online, target = (network.init(np.random.default_rng(seed)) for seed in (1, 2))
    rng = np.random.default_rng(0)
    batch = Transition(
        s_tm1=rng.normal(size=(6, 1, 3)).astype(np.float32),
        a_tm1=rng.integers(4, size=6).astype(np.int32),
        r_t=(3 * rng.normal(size=6)).astype(np.float32),
        discount_t=np.array([0.9, 0.9, 0.0, 0.81, 0.9, 0.0], np.float32),
        s_t=rng.normal(size=(6, 1, 3)).astype(np.float32),
    )
    gradient_fn = make_gradient(network, layout, double=double, max_norm=max_norm)
    flat_online, flat_target = (tf.constant(layout.flatten(arrays)) for arrays in (online, target))
    loss, gradient = gradient_fn(flat_online, flat_target, tensors(batch))
    expected_loss, named = loss_and_gradient_by_hand(online, target, batch, double)
    expected = layout.flatten(named)
    norm = np.linalg.norm(expected)
    assert norm > 0.05
    expected *= max_norm / norm if max_norm else 1
    assert float(loss) == pytest.approx(expected_loss, rel=1e-5)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-6)


def test_double_q_learning_changes_the_gradient():
    network = make_network("mlp", (3,), 1, 4)
    layout = Layout(network.shapes)
    online, target = (tf.constant(layout.flatten(network.init(np.random.default_rng(seed)))) for seed in (1, 2))
    rng = np.random.default_rng(0)
    s_tm1, s_t = rng.normal(size=(2, 6, 1, 3)).astype(np.float32)
    batch = Transition(s_tm1, np.zeros(6, np.int32), np.zeros(6, np.float32), np.ones(6, np.float32), s_t)
    plain, double = (
        make_gradient(network, layout, double=double, max_norm=0.0)(online, target, tensors(batch))[1].numpy()
        for double in (False, True)
    )
    assert np.abs(plain - double).max() > 1e-4
