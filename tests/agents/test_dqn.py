"""The DQN agent: when it learns, from what, along which gradient, and that a seed decides everything."""

import copy
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from fakes import CountingEnv, delta_client, gradient_client, make_store

from async_dqn.agents.dqn import DQN, make_gradient
from async_dqn.base.errors import RunFailed
from async_dqn.base.schedules import constant
from async_dqn.base.types import Transition
from async_dqn.data.replay import Replay
from async_dqn.envs import registry
from async_dqn.envs.frame_stack import FrameStack
from async_dqn.nn.layout import Layout
from async_dqn.nn.networks import Head, make_network
from async_dqn.nn.optimizers import adam
from async_dqn.run import build
from async_dqn.run.loop import run_loop
from async_dqn.settings.config import make_config
from async_dqn.store.base import Counters
from async_dqn.store.local import LocalParameterStore


class Parts:
    """An agent on environments whose observation is one number, and what it is made of."""

    def __init__(
        self,
        *,
        num_envs=2,
        train_period=4,
        warmup_steps=10,
        clip_rewards=True,
        epsilon=1.0,
        total_steps=200,
        local_steps=0,
        max_nonfinite=10,
        gradient=None,
        prefetch=True,
    ):
        network = make_network("mlp", (1,), 1, {"q_values": Head(2)})
        layout = Layout(network.shapes)
        start = layout.flatten(network.init(np.random.default_rng(0)))
        options = {"rate": 1e-3, "max_nonfinite": max_nonfinite}
        self.store = make_store(start, optimizer=None if local_steps else adam(), total_steps=total_steps)
        self.client = (
            delta_client(self.store, local_steps=local_steps, optimizer=adam(), **options)
            if local_steps
            else gradient_client(self.store, **options)
        )
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
            gradient=gradient or make_gradient(network, layout, double=True, max_norm=0.0),
            batch_size=4,
            train_period=train_period,
            warmup_steps=warmup_steps,
            clip_rewards=clip_rewards,
            prefetch=prefetch,
            rng=np.random.default_rng(0),
        )

    def run(self, env, claim=4, overlap_steps=False):
        """The loop, on environments that begin."""
        self.agent.reset(env.reset())
        return run_loop(self.agent, env, self.client, claim=claim, overlap_steps=overlap_steps)

    def rewards_in_replay(self):
        env, index = self.replay.valid_starts()
        return self.replay.gather(env, index, self.replay.make_batch(len(env))).r_t


@pytest.mark.parametrize("overlap_steps", [False, True])
@pytest.mark.parametrize(("num_envs", "train_period"), [(1, 1), (1, 4), (2, 4), (3, 2), (8, 4), (5, 7)])
def test_learns_once_every_train_period_after_warm_up_and_never_before(num_envs, train_period, overlap_steps):
    warmup_steps = 3 * num_envs
    parts = Parts(num_envs=num_envs, train_period=train_period, warmup_steps=warmup_steps, total_steps=20 * num_envs)
    warm_steps = 0
    for tick in parts.run(CountingEnv(num_envs, length=100), overlap_steps=overlap_steps):
        if tick.num_steps:
            before = warm_steps
            warm_steps += tick.num_steps if len(parts.replay) >= warmup_steps else 0
            # With overlap, the minibatches for the newest step come with the next.
            assert parts.client.own_minibatches == (before if overlap_steps else warm_steps) // train_period
    parts.agent.learn()
    assert parts.client.own_minibatches == warm_steps // train_period
    # Without an end of an episode, the newest step of each environment cannot be sampled yet.
    assert warm_steps == (20 - 3) * num_envs
    assert parts.store.pull().counters.updates == (20 - 3) * num_envs // train_period


def test_steps_that_do_not_fill_a_period_are_owed():
    parts = Parts(num_envs=1, train_period=4, warmup_steps=2, total_steps=8)
    list(parts.run(CountingEnv(1), claim=8))
    for owed, minibatches, left in [(3, 0, 3), (4, 1, 0), (4 * 3 + 2, 3, 2)]:
        before = parts.client.own_minibatches
        parts.agent._owed_steps = owed
        parts.agent.learn()
        assert parts.client.own_minibatches == before + minibatches
        assert parts.agent.state()[1]["owed_steps"] == left


@pytest.mark.parametrize(
    ("clip_rewards", "reward", "learned"),
    [(True, 5.0, 1.0), (True, -5.0, -1.0), (True, 0.5, 0.5), (False, 5.0, 5.0)],
)
def test_rewards_are_clipped_in_replay_and_never_in_episodes(clip_rewards, reward, learned):
    parts = Parts(clip_rewards=clip_rewards, warmup_steps=1_000, total_steps=2 * 6)
    ticks = list(parts.run(CountingEnv(2, length=3, reward=reward), claim=1))
    np.testing.assert_array_equal(parts.rewards_in_replay(), np.full(2 * 6, learned, np.float32))
    assert [episode.episode_return for tick in ticks for episode in tick.episodes] == [3 * reward] * 4


def test_mean_loss_is_that_since_the_last_call_and_nan_without_one():
    parts = Parts(total_steps=100)
    assert math.isnan(parts.agent.take_loss())
    list(parts.run(CountingEnv(2)))
    assert parts.agent.take_loss() > 0
    assert math.isnan(parts.agent.take_loss())


def test_acts_greedily_without_exploration_and_at_random_with_nothing_else():
    greedy, random = Parts(num_envs=50, epsilon=0.0), Parts(num_envs=50, epsilon=1.0)
    for parts in (greedy, random):
        parts.agent.reset(np.zeros((50, 1), np.float32))
    assert len(set(greedy.agent.act())) == 1  # all environments show the same
    assert set(random.agent.act()) == {0, 1}


def test_a_restored_agent_draws_what_the_saved_one_does_and_owes_nothing():
    saved, restored = Parts(num_envs=1), Parts(num_envs=1)
    list(saved.run(CountingEnv(1)))
    saved.agent._owed_steps = 2  # the other's replay may not be there to learn from
    restored.agent.restore(*saved.agent.state(), in_episode=False)
    values, expected = restored.agent.state()[1], saved.agent.state()[1]
    assert expected["has_learned"] and not values["has_learned"]  # others may have gone on: it pulls before it learns
    assert expected["owed_steps"]  # its replay may not be there to learn from
    assert values == expected | {"has_learned": False, "owed_steps": 0}
    for parts in (saved, restored):
        parts.agent.reset(np.zeros((1, 1), np.float32))
    actions = [[int(parts.agent.act()[0]) for _ in range(30)] for parts in (saved, restored)]
    assert actions[0] == actions[1]


def assert_same_state(agent, other):
    (arrays, values), (expected_arrays, expected_values) = other.state(), agent.state()
    assert values == expected_values
    assert arrays.keys() == expected_arrays.keys()
    for name, array in expected_arrays.items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


@pytest.mark.parametrize("local_steps", [0, 4])
@pytest.mark.parametrize("steps", [3, 33], ids=["in warm-up", "in training"])
def test_an_agent_restored_in_the_middle_of_its_games_goes_on_to_the_last_bit(local_steps, steps):
    settings = {"epsilon": 0.5, "local_steps": local_steps, "train_period": 3}
    saved, restored = Parts(**settings), Parts(**settings)
    env = CountingEnv(2, length=7)
    assert sum(tick.num_steps for tick in itertools.islice(saved.run(env), steps)) == 2 * steps
    saved.client.finish()

    restored.agent._replay = restored.replay = copy.deepcopy(saved.replay)
    restored.store.restore(saved.store.state())
    for parts in (saved, restored):
        parts.client.start()
    restored.agent.restore(*saved.agent.state(), in_episode=True)
    assert_same_state(saved.agent, restored.agent)

    seen = []
    for parts, its_env in ((saved, env), (restored, copy.deepcopy(env))):
        parts.agent.take_loss()
        actions, act = [], parts.agent.act
        parts.agent.act = lambda act=act, actions=actions: actions.append(act()) or actions[-1]
        ticks = [tick for tick in run_loop(parts.agent, its_env, parts.client, claim=4) if tick.num_steps]
        seen.append((np.array(actions).tolist(), ticks, parts.agent.take_loss()))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 100 - steps
    assert set(np.ravel(seen[0][0])) == {0, 1}
    assert_same_state(saved.agent, restored.agent)
    assert (saved.client.online.numpy() == restored.client.online.numpy()).all()
    state, expected = restored.store.state(), saved.store.state()
    for name in expected.keys() - {"counters"}:
        np.testing.assert_array_equal(state[name], expected[name], err_msg=name)
    assert restored.store.pull().counters.env_steps == 200


def test_the_state_of_an_agent_with_another_optimizer_is_refused_and_changes_nothing():
    parts, other = Parts(local_steps=4), Parts()
    before = parts.agent.state()[1]
    list(other.run(CountingEnv(2)))
    with pytest.raises(ValueError, match="it holds the slots of another optimizer or network"):
        parts.agent.restore(*other.agent.state(), in_episode=True)
    assert parts.agent.state()[1] == before


@pytest.mark.parametrize("local_steps", [0, 4])
@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_never_applied_and_ends_the_run(local_steps, reward):
    parts = Parts(clip_rewards=False, local_steps=local_steps, max_nonfinite=3)
    start, slots = parts.store.pull().online, parts.client.slots()
    with pytest.raises(RunFailed, match="^3 minibatches in a row"):
        list(parts.run(CountingEnv(2, reward=reward)))
    np.testing.assert_array_equal(parts.client.online, start)
    for name, slot in parts.client.slots().items():
        np.testing.assert_array_equal(slot, slots[name])
    assert math.isnan(parts.agent.take_loss())  # none that counts
    parts.client.finish()
    assert parts.store.pull().counters._replace(env_steps=0, claimed_steps=0) == Counters(minibatches=3, nonfinite=3)
    np.testing.assert_array_equal(parts.store.pull().online, start)


def test_parameters_that_are_not_finite_give_nothing_to_apply():
    parts = Parts(max_nonfinite=2)
    for _ in itertools.islice(parts.run(CountingEnv(2)), 10):
        pass
    before = parts.store.pull()
    parts.client.online.assign(np.full(parts.store.num_parameters, np.nan, np.float32))
    parts.agent._has_learned = True  # so that it does not pull
    parts.agent._owed_steps = 2 * parts.agent._train_period
    with pytest.raises(RunFailed):
        parts.agent.learn()
    np.testing.assert_array_equal(parts.store.pull().online, before.online)
    assert parts.store.pull().counters.updates == before.counters.updates


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_not_applied_though_its_loss_is(bad):
    def gradient(online, target, batch):
        return tf.constant(1.0), tf.concat([[bad], tf.zeros_like(online)[1:]], 0)

    parts = Parts(gradient=gradient, max_nonfinite=2)
    start = parts.store.pull().online
    with pytest.raises(RunFailed):
        list(parts.run(CountingEnv(2)))
    np.testing.assert_array_equal(parts.store.pull().online, start)


@pytest.mark.parametrize("local_steps", [0, 1, 4])
def test_now_and_then_a_bad_minibatch_is_passed_over(local_steps):
    turns = tf.Variable(0)

    def gradient(online, target, batch):
        turn = turns.assign_add(1)
        return tf.where(turn % 3 == 0, 1.0, np.nan), tf.ones_like(online)

    parts = Parts(gradient=gradient, local_steps=local_steps, train_period=1, total_steps=150, max_nonfinite=20)
    list(parts.run(CountingEnv(2)))
    parts.client.finish()
    counters = parts.store.pull().counters
    good = counters.minibatches // 3
    assert counters.nonfinite == counters.minibatches - good > 60
    assert counters.updates == -(-good // max(local_steps, 1))
    assert parts.agent.take_loss() == 1.0
    assert np.isfinite(parts.store.pull().online).all()
    # Adam steps by nearly its learning rate along a gradient that is always the same.
    moved = parts.store.pull().online - Parts().store.pull().online
    np.testing.assert_allclose(moved, -1e-3 * good, rtol=1e-3)


def train_cartpole(seed, **settings):
    """The store's state after 480 agent steps in CartPole."""
    overrides = {"env": "CartPole-v1", "seed": seed, "total_steps": 480, "warmup_steps": 100, "threads": 1}
    config = make_config("cartpole", overrides | {"num_workers": 1, "batch_size": 16, "overlap": False} | settings)
    problem = build.make_problem(config)
    store = LocalParameterStore(problem.layout.num_parameters, build.make_store_optimizer(config), config.total_steps)
    store.initialize(build.initial_parameters(config, problem))
    client = build.make_client(config, store)
    client.start()
    agent_seeds, env_seed = build.make_seeds(config, 0, 0)
    memory = build.make_replay(config, problem)
    agent = build.make_agent(config, problem, client, memory, worker=0, seeds=agent_seeds)
    env = registry.make_vector_env(problem.spec, config.envs_per_worker, env_seed, 1)
    agent.reset(env.reset())
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
    hidden1 = np.maximum(hidden0 @ arrays["hidden1/w"] + arrays["hidden1/b"], 0)
    return hidden0, hidden1, hidden1 @ arrays["q_values/w"] + arrays["q_values/b"]


def loss_and_gradient_by_hand(online, target, batch, double):
    """Backpropagation of the mean Huber loss, written out."""
    rows, x = np.arange(len(batch.a_tm1)), batch.s_tm1[:, 0].astype(np.float64)
    q_t, selector = (forward(arrays, batch.s_t[:, 0])[2] for arrays in (target, online if double else target))
    hidden0, hidden1, q_tm1 = forward(online, x)
    error = batch.r_t + batch.discount_t * q_t[rows, selector.argmax(axis=1)] - q_tm1[rows, batch.a_tm1]
    loss = np.where(np.abs(error) <= 1, 0.5 * error**2, np.abs(error) - 0.5).mean()
    of_q = np.zeros_like(q_tm1)
    of_q[rows, batch.a_tm1] = -np.clip(error, -1, 1) / len(rows)
    of_hidden1 = of_q @ online["q_values/w"].T * (hidden1 > 0)
    of_hidden0 = of_hidden1 @ online["hidden1/w"].T * (hidden0 > 0)
    return loss, {
        "hidden0/w": x.T @ of_hidden0,
        "hidden0/b": of_hidden0.sum(axis=0),
        "hidden1/w": hidden0.T @ of_hidden1,
        "hidden1/b": of_hidden1.sum(axis=0),
        "q_values/w": hidden1.T @ of_q,
        "q_values/b": of_q.sum(axis=0),
    }


def tensors(batch):
    return Transition(*map(tf.constant, batch))


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("max_norm", [0.0, 0.05])
def test_gradient_is_that_of_backpropagation_by_hand(double, max_norm):
    network = make_network("mlp", (3,), 1, {"q_values": Head(4)})
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
    network = make_network("mlp", (3,), 1, {"q_values": Head(4)})
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


@pytest.mark.parametrize("local_steps", [0, 4])
def test_everything_is_traced_once_and_before_the_first_step(local_steps):
    traced = []

    def gradient(online, target, batch):
        traced.append(batch)
        return tf.reduce_mean(batch.r_t), tf.zeros_like(online)

    parts = Parts(num_envs=3, local_steps=local_steps, total_steps=199, gradient=gradient)
    assert len(traced) == 1
    functions = [parts.agent._q_values]
    if local_steps:
        functions += [parts.client._take_delta, parts.client._rebase]
    assert all(isinstance(function, tf.types.experimental.ConcreteFunction) for function in functions)
    list(parts.run(CountingEnv(3, length=7)))
    parts.client.finish()
    assert parts.client.own_minibatches > 2 * max(local_steps, 1)
    assert len(traced) == 1
