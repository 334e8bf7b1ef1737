"""C51 and Rainbow: values are means of distributions, the loss is that of the paper, and what Rainbow is made of."""

import numpy as np
import pytest
import tensorflow as tf

from async_dqn.agents.rainbow import Rainbow
from async_dqn.agents.table import make_config
from async_dqn.base.errors import UserError
from async_dqn.base.types import Transition, WeightedTransition
from async_dqn.data.prioritized import PrioritizedSampler
from async_dqn.nn import losses
from async_dqn.run import build

SUPPORT = np.linspace(-2, 4, 7)


def make_agent(name="c51", **overrides):
    settings = {"env": "CartPole-v1", "num_atoms": 7, "v_min": -2.0, "v_max": 4.0}
    return build.make_agent(make_config(name, "cartpole", settings | overrides))


def params_of(agent, seed):
    return {"q": {name: tf.constant(a) for name, a in agent.modules[0].init(np.random.default_rng(seed)).items()}}


def make_batch():
    rng = np.random.default_rng(0)
    return Transition(
        s_tm1=rng.normal(size=(20, 1, 4)).astype(np.float32),
        a_tm1=rng.integers(2, size=20).astype(np.int32),
        r_t=rng.normal(size=20).astype(np.float32),
        discount_t=np.tile(np.float32([0.9, 0.0]), 10),
        s_t=rng.normal(size=(20, 1, 4)).astype(np.float32),
    )


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("dueling", [False, True])
def test_values_are_the_means_of_the_distributions(dueling):
    agent = make_agent(dueling=dueling)
    outputs = agent.apply(params_of(agent, 0), tf.constant(make_batch().s_t))
    outputs = {name: one.numpy() for name, one in outputs.items()}
    assert outputs.keys() == agent.network_outputs.keys()
    assert outputs["atom_logits"].shape == (20, 2, 7)
    np.testing.assert_allclose(outputs["q_values"], softmax(outputs["atom_logits"]) @ SUPPORT, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(agent.greedy(outputs), outputs["q_values"].argmax(axis=1))
    np.testing.assert_array_equal(agent.values(outputs), outputs["q_values"])


@pytest.mark.parametrize("double", [False, True])
def test_loss_is_the_mean_divergence_from_the_update_of_the_target(double):
    agent, batch = make_agent(double=double), make_batch()
    online, target = params_of(agent, 1), params_of(agent, 2)
    with tf.GradientTape() as tape:
        tape.watch([online, target])
        loss = agent.loss(online, target, Transition(*map(tf.constant, batch)), tf.constant([0, 0]))
    of_online, of_target = tape.gradient(loss.value, [online["q"], target["q"]])
    assert set(of_target.values()) == {None} and all(one.numpy().any() for one in of_online.values())
    assert loss.per_item is None and loss.statistics.keys() == {"outside_support", "q_mean"}
    chooser = online if double else target
    a_t = agent.apply(chooser, batch.s_t)["q_values"].numpy().argmax(axis=1)
    rows = np.arange(20)
    p_t = softmax(agent.apply(target, batch.s_t)["atom_logits"].numpy())[rows, a_t]
    p_tm1 = softmax(agent.apply(online, batch.s_tm1)["atom_logits"].numpy())[rows, batch.a_tm1]
    expected = []
    for row in rows:
        place = np.clip(batch.r_t[row] + batch.discount_t[row] * SUPPORT, -2, 4) + 2  # in atoms from the first
        projected = sum(p * np.maximum(0, 1 - np.abs(np.arange(7) - at)) for p, at in zip(p_t[row], place, strict=True))
        used = projected > 0
        expected.append((projected[used] * np.log(projected[used] / p_tm1[row, used])).sum())
    assert float(loss.value) == pytest.approx(np.mean(expected), rel=1e-3)


def test_the_share_of_targets_outside_the_support_by_hand():
    agent, ones = make_agent(), np.ones(5, np.float32)
    chosen, other = np.array([3, 3, -1, 3, 4]), np.array([4, 0, 0, 0, 0])  # values of two actions at s_t
    logits = 50 * np.eye(7, dtype=np.float32)[np.stack([chosen, other], axis=1) + 2]  # all on one atom
    said = {"atom_logits": tf.constant(logits), "q_values": tf.constant(np.stack([chosen, other], 1), tf.float32)}
    agent._outputs = lambda *_: (said, said, tf.constant(np.stack([ones, 0 * ones], axis=1)))
    r_t, discount_t = np.float32([1, 2, -1.5, -2.5, 4]), np.float32([0.9, 0.9, 0.9, 0, 0])
    batch = Transition(None, tf.zeros([5], tf.int32), tf.constant(r_t), tf.constant(discount_t), None)
    found = agent.loss({}, {}, batch, tf.constant([0, 0])).statistics["outside_support"]
    # 1 + 0.9 * 3 = 3.7 and 4 are inside; 2 + 0.9 * 3 = 4.7, -1.5 - 0.9 * 1 = -2.4 and -2.5 are not within -2 to 4.
    assert float(found) == pytest.approx(3 / 5)


def test_prioritized_losses_are_weighted_and_divergences_handed_back():
    agent = make_agent(prioritized=True)
    weight = np.random.default_rng(3).random(20).astype(np.float32)
    batch = WeightedTransition(*map(tf.constant, make_batch()), tf.constant(weight))
    loss = agent.loss(params_of(agent, 1), params_of(agent, 2), batch, tf.constant([0, 0]))
    divergences = loss.per_item.numpy()
    assert divergences.shape == (20,) and (divergences > 0).all()
    assert float(loss.value) == pytest.approx((weight * divergences).mean(), rel=1e-5)


def test_the_fixed_point_has_no_loss():
    """Where every distribution is all at 0 and rewards are 0, nothing is left to learn."""
    logits = tf.constant(np.where(SUPPORT == 0, 50.0, 0.0).astype(np.float32)) + tf.zeros([3, 2, 7])
    zeros = tf.zeros([3])
    args = logits, tf.zeros([3], tf.int32), zeros, zeros + 0.9, logits, tf.zeros([3, 2])
    found = losses.categorical_q_learning(*args, tf.constant(SUPPORT, tf.float32))
    np.testing.assert_allclose(found, 0, atol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, -2.0)])
def test_the_support_has_a_length(low, high):
    with pytest.raises(UserError, match=f"^--v_min={low}: must be less than --v_max={high}"):
        make_agent(v_min=low, v_max=high)


@pytest.mark.parametrize("preset", Rainbow.presets)
def test_rainbow_is_c51_with_every_part_of_it(preset):
    config = make_config("rainbow", preset, {})
    assert config.double and config.dueling and config.noisy and config.prioritized
    assert (config.priority_exponent, config.importance_exponent) == (0.5, 0.4)
    assert config.n_step == (10 if preset == "pong-fast" else 3)


def test_the_settings_of_the_paper():
    config = make_config("rainbow", "paper", {})
    assert config.target_period * config.train_period * 4 == 32_000  # frames
    assert config.warmup_steps * 4 == 80_000
    assert (config.optimizer, config.learning_rate, config.optimizer_epsilon) == ("adam", 6.25e-5, 1.5e-4)
    assert (config.num_atoms, config.v_min, config.v_max) == (51, -10, 10)


def test_rainbow_is_made_of_its_parts_and_each_can_be_switched_off():
    agent = make_agent("rainbow")
    assert agent.has_noise and isinstance(agent.make_experience(4, evaluate=None)._sampler, PrioritizedSampler)
    assert {"value_hidden/w", "advantage/w_sigma"} <= agent.modules[0].layout.shapes.keys()
    assert agent.modules[0].layout.shapes["advantage/w"] == (128, 2 * 7)
    plain = make_agent("rainbow", noisy=False, dueling=False, prioritized=False, double=False)
    assert plain.modules[0].layout.shapes == make_agent("c51").modules[0].layout.shapes
    assert not plain.has_noise and plain.schedules(0) == {"epsilon": 1.0}
