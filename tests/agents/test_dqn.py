"""DQN: its loss against backpropagation by hand, when its exploration falls, and its share of replay."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from async_dqn.agents.table import make_config
from async_dqn.base.errors import UserError
from async_dqn.base.types import Transition, WeightedTransition
from async_dqn.data.experience import Step
from async_dqn.data.prioritized import PrioritizedSampler, priority_bytes
from async_dqn.nn.module import initial_parameters
from async_dqn.run import build


def make_agent(worker=0, **overrides):
    """One whose network is plain enough to be written out by hand."""
    settings = {"env": "CartPole-v1", "layer_norm": False} | overrides
    return build.make_agent(make_config("dqn", "cartpole", settings), worker)


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


def loss_and_gradients(agent, online, target, batch, seed=(0, 0)):
    """The loss and its gradients by online and target parameters."""
    params, targets = ({name: tf.constant(array) for name, array in arrays.items()} for arrays in (online, target))
    with tf.GradientTape() as tape:
        tape.watch([params, targets])
        loss = agent.loss({"q": params}, {"q": targets}, Transition(*map(tf.constant, batch)), tf.constant(seed))
    assert loss.statistics.keys() == {"q_mean"}
    return (float(loss.value), *tape.gradient(loss.value, [params, targets]))


def make_batch():
    rng = np.random.default_rng(0)
    return Transition(
        s_tm1=rng.normal(size=(30, 1, 4)).astype(np.float32),
        a_tm1=rng.integers(2, size=30).astype(np.int32),
        r_t=rng.normal(size=30).astype(np.float32),
        discount_t=np.tile(np.float32([0.9, 0.9, 0.0, 0.81, 0.9]), 6),
        s_t=rng.normal(size=(30, 1, 4)).astype(np.float32),
    )


@pytest.mark.parametrize("double", [False, True])
def test_loss_and_gradient_are_those_of_backpropagation_by_hand(double):
    agent = make_agent(double=double)
    module = agent.modules[0]
    online, target = (module.init(np.random.default_rng(seed)) for seed in (1, 2))
    loss, gradient, of_target = loss_and_gradients(agent, online, target, make_batch())
    expected, named = loss_and_gradient_by_hand(online, target, make_batch(), double)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert expected != loss_and_gradient_by_hand(online, target, make_batch(), not double)[0]
    for name, one in named.items():
        np.testing.assert_allclose(gradient[name], one, rtol=1e-3, atol=1e-6, err_msg=name)
    assert set(of_target.values()) == {None}


def test_the_one_module_has_a_target_and_the_rate_of_the_settings():
    agent = make_agent(learning_rate=0.5, final_learning_rate=0.1, learning_rate_steps=100, target_period=70)
    (module,) = agent.modules
    assert (module.name, module.has_target, agent.target_period) == ("q", True, 70)
    assert [module.rate(step) for step in (0, 50, 100, 900)] == pytest.approx([0.5, 0.3, 0.1, 0.1])
    assert initial_parameters(agent.modules, seed=3)["q"].shape == (module.size,)


def test_workers_share_out_replay_and_warm_up():
    agent = make_agent(num_workers=4, envs_per_worker=2, replay_capacity=4_000, warmup_steps=400, train_period=1)
    experience = agent.make_experience(2, evaluate=None)
    ring = experience.ring
    observation, none, sizes = np.zeros((2, 4), np.float32), np.zeros(2, bool), []
    for _ in range(1_000):
        step = Step(observation, observation[:, None], none.astype(np.int32), {}, none, none, none, observation)
        experience.add(step, 2)
        sizes.append((len(ring), experience.due() > 0))
    assert all(is_due == (size >= 400 // 4) for size, is_due in sizes)
    assert 4_000 // 4 - 2 * 8 <= len(ring) <= 4_000 // 4


def test_shared_exploration_begins_to_fall_after_warm_up_and_is_the_same_for_all_workers():
    settings = {"warmup_steps": 1_000, "epsilon_steps": 2_000, "epsilon_final": 0.1, "num_workers": 2}
    agents = [make_agent(worker, **settings) for worker in (0, 1)]
    for step, value in [(0, 1.0), (1_000, 1.0), (2_000, 1 - 0.9 / 2), (3_000, 0.1), (9_000, 0.1)]:
        assert [agent.schedules(step) for agent in agents] == [{"epsilon": pytest.approx(value)}] * 2


def with_weights(weight):
    return WeightedTransition(*make_batch(), weight=np.float32(weight))


def test_prioritized_losses_are_weighted_and_their_errors_handed_back():
    agent = make_agent(prioritized=True)
    online, target = (agent.modules[0].init(np.random.default_rng(seed)) for seed in (1, 2))

    def found(weight):
        batch = WeightedTransition(*map(tf.constant, with_weights(weight)))
        return agent.loss({"q": online}, {"q": target}, batch, tf.constant([0, 0]))

    errors = found(np.ones(30)).per_item.numpy()
    huber = np.where(np.abs(errors) <= 1, 0.5 * errors**2, np.abs(errors) - 0.5)
    weight = np.random.default_rng(3).random(30)
    assert float(found(weight).value) == pytest.approx((weight * huber).mean(), rel=1e-5)
    plain, _, _ = loss_and_gradients(make_agent(), online, target, make_batch())
    assert float(found(np.ones(30)).value) == pytest.approx(plain, rel=1e-6)
    batch = Transition(*map(tf.constant, make_batch()))
    assert make_agent().loss({"q": online}, {"q": target}, batch, tf.constant([0, 0])).per_item is None


def test_prioritized_replay_has_its_settings_and_counts_its_memory():
    agent = make_agent(prioritized=True, priority_exponent=0.5, importance_exponent=0.2, total_steps=1_000)
    experience = agent.make_experience(4, evaluate=None)
    sampler = experience._sampler
    assert isinstance(sampler, PrioritizedSampler) and isinstance(experience.batch, WeightedTransition)
    assert sampler._priority_exponent == 0.5
    assert [sampler._importance_exponent(step) for step in (0, 500, 1_000)] == pytest.approx([0.2, 0.6, 1.0])
    config = agent.config
    share = config.replay_capacity // config.num_workers
    assert agent.experience_bytes(config, agent.spec) == (
        make_agent().experience_bytes(make_agent().config, agent.spec) + priority_bytes(config.envs_per_worker, share)
    )


def noisy_outputs(**overrides):
    """A function seed -> loss of a noisy agent."""
    agent = make_agent(noisy=True, **overrides)
    online, target = (agent.modules[0].init(np.random.default_rng(seed)) for seed in (1, 2))
    return agent, online, lambda *seed: loss_and_gradients(agent, online, target, make_batch(), seed)


@pytest.mark.parametrize("options", [{}, {"double": False}, {"dueling": True}], ids=str)
def test_noise_is_new_for_every_minibatch_and_its_scale_is_learned(options):
    _, _, loss = noisy_outputs(**options)
    (first, gradient, of_target), (same, *_), (other, *_) = loss(1, 2), loss(1, 2), loss(1, 3)
    assert first == same != other
    assert all(gradient[name].numpy().any() for name in gradient if name.endswith("_sigma"))
    assert set(of_target.values()) == {None}


def test_each_pass_of_the_network_has_noise_of_its_own():
    """With one network as online and target, and one observation, all passes would give the same else."""
    agent, online, _ = noisy_outputs()
    batch = make_batch()
    batch = Transition(*map(tf.constant, batch._replace(s_t=batch.s_tm1)))
    online = {name: tf.constant(array) for name, array in online.items()}
    outputs_tm1, outputs_t, selector = agent._outputs({"q": online}, {"q": online}, batch, tf.constant([0, 0]))
    for one, two in itertools.combinations([outputs_tm1["q_values"], outputs_t["q_values"], selector], 2):
        assert np.abs(one - two).max() > 1e-3


def test_noise_replaces_epsilon_and_is_off_in_greedy_play():
    agent, online, _ = noisy_outputs()
    assert agent.has_noise and not make_agent().has_noise
    assert agent.schedules(0) == {"epsilon": 0.0}
    variables = {"q": tf.Variable(agent.modules[0].layout.flatten(online))}
    stacked = np.random.default_rng(5).normal(size=(3, 1, 4)).astype(np.float32)
    explore = build.make_evaluate(agent, variables, noise=np.random.default_rng(0))
    noisy = [explore(stacked)["q_values"] for _ in range(3)]  # a new one each step
    evaluate = build.make_evaluate(agent, variables)
    means = [evaluate(stacked)["q_values"] for _ in range(2)]
    np.testing.assert_array_equal(*means)
    np.testing.assert_allclose(means[0], forward(online, stacked[:, 0])[2], rtol=1e-4, atol=1e-6)
    for one, two in itertools.combinations([*noisy, means[0]], 2):
        assert np.abs(one - two).max() > 1e-3
    explore = build.make_evaluate(agent, variables, noise=np.random.default_rng(0))
    np.testing.assert_array_equal(explore(stacked)["q_values"], noisy[0])


def test_noise_and_ape_x_exploration_do_not_go_together():
    with pytest.raises(UserError, match="--exploration=ape_x: with --noisy"):
        make_agent(noisy=True, exploration="ape_x")
