"""Dyna-Q: its losses by hand, and that planning does not leak into the model or the model into the values."""

import numpy as np
import pytest
import tensorflow as tf

from async_dqn.agents.table import make_config
from async_dqn.base.errors import UserError
from async_dqn.data.planning import DynaBatch
from async_dqn.nn import losses
from async_dqn.nn.module import initial_parameters
from async_dqn.nn.normalization import MODULE
from async_dqn.run import build

SEED = tf.constant([0, 0], tf.int32)


def make_agent(worker=0, **overrides):
    settings = {"env": "CartPole-v1", "num_workers": 1} | overrides
    return build.make_agent(make_config("dyna_q", "cartpole", settings), worker)


def make_batch(simulated=0):
    rng = np.random.default_rng(0)
    s_tm1, s_t, s_1 = (rng.normal(size=(6, 1, 4)).astype(np.float32) for _ in range(3))
    return DynaBatch(
        s_tm1,
        rng.integers(2, size=6).astype(np.int32),
        rng.normal(size=6).astype(np.float32),
        np.array([0.99, 0, 0.99, 0.99, 0.5, 0], np.float32),
        s_t,
        r_1=rng.normal(size=6).astype(np.float32),
        discount_1=np.array([0.99, 0, 0.99, 0.99, 0.99, 0.99], np.float32),
        s_1=s_1,
        is_simulated=np.full(6, simulated, np.float32),
        weight=np.array([1, 1, 1, 1, 1, 1 - simulated], np.float32),
        model_error=np.full(6, 0.25, np.float32),
        model_age=np.full(6, 3, np.float32),
        deviation=np.array([1, 2, 0.5, 1, 3], np.float32),
    )


def parameters(agent):
    return {
        name: agent_module.layout.unflatten(tf.constant(initial_parameters(agent.modules, 0)[name]))
        for name, agent_module in ((module.name, module) for module in agent.modules)
    }


def gradients(agent, batch):
    params = parameters(agent)
    with tf.GradientTape() as tape:
        tape.watch(params)
        loss = agent.loss(params, parameters(agent), DynaBatch(*map(tf.constant, batch)), SEED)
    return loss, tape.gradient(loss.value, params, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def test_relative_errors_by_hand():
    target = np.array([[1, 5], [3, 5]], np.float32)
    value = np.array([[2, 6], [3, 9]], np.float32)
    deviation = tf.constant([2.0, 1.0])
    found = losses.relative_errors(tf.constant(value), tf.constant(target), deviation)
    np.testing.assert_allclose(found, [(0.5**2 + 1**2) / 2, 2 * (4 - 0.5) / 2], rtol=1e-6)  # linear beyond 1
    mean = losses.weighted_mean(tf.constant([1.0, 3.0, 100.0]), tf.constant([1.0, 3.0, 0.0]))
    assert float(mean) == (1 * 1 + 3 * 3) / 4
    assert float(losses.weighted_mean(tf.constant([1.0]), tf.constant([0.0]))) == 0


def test_no_gradient_reaches_the_target_of_relative_errors():
    value, target = tf.Variable([[1.0, 2.0]]), tf.Variable([[3.0, 5.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(losses.relative_errors(value, target, tf.ones(2)))
    of_value, of_target = tape.gradient(loss, [value, target])
    assert of_target is None and np.abs(of_value).min() > 0


def test_the_model_learns_the_mean_of_a_reward_that_cannot_be_foreseen():
    agent = make_agent()
    batch = make_batch()
    batch.s_tm1[:], batch.a_tm1[:] = batch.s_tm1[0], 1
    batch.r_1[:] = [0, 0, 0, 0, 0, -60]  # mean -10, whatever else it is measured in
    params = parameters(agent)
    bias = params["model"]["reward/b"] = tf.Variable(params["model"]["reward/b"])
    said = agent.apply(params, tf.constant(batch.s_tm1))["reward"][0, 1]
    bias.assign_add([0, -10 - said])
    with tf.GradientTape() as tape:
        loss = agent.loss(params, params, DynaBatch(*map(tf.constant, batch)), SEED)
    found = tape.gradient(loss.value, bias)
    np.testing.assert_allclose(found, [0, 0], atol=1e-5)


def largest(found, expected):
    return max(np.abs(found[name] - one).max() for name, one in expected.items())


def test_the_model_learns_from_real_transitions_alone():
    agent = make_agent()
    loss, expected = gradients(agent, make_batch())
    spoilt = make_batch()
    spoilt.r_1[3] += 7
    _, found = gradients(agent, spoilt)
    assert largest(found["model"], expected["model"]) > 1e-3
    assert float(loss.statistics["simulated_share"]) == 0
    assert float(loss.statistics["model_error"]) == 0.25
    assert np.isnan(loss.statistics["simulated_error"]) and np.isfinite(loss.statistics["real_error"])
    assert np.isnan(loss.statistics["simulated_age"])
    _, found = gradients(agent, make_batch(simulated=1))
    assert all(np.abs(one).max() == 0 for one in found["model"].values())


def test_where_an_episode_ends_up_is_not_learned():
    agent = make_agent()
    batch = make_batch()
    batch.discount_1[2] = 0
    _, expected = gradients(agent, batch)
    batch.s_1[2] += 9
    _, found = gradients(agent, batch)
    assert largest(found["model"], expected["model"]) < 1e-6
    batch.s_1[3] += 9
    _, found = gradients(agent, batch)
    assert largest(found["model"], expected["model"]) > 1e-3
    batch.discount_1[:] = 0  # nothing goes on
    _, found = gradients(agent, batch)
    assert all(np.isfinite(one).all() for one in found["model"].values())


def test_normalized_observations_are_what_both_networks_see_and_the_model_says_changes_as_they_are():
    plain, agent = make_agent(), make_agent(normalize_observations=True)
    statistics = {"mean": np.array([1, -2, 3, 4], np.float32), "variance": np.array([4, 1, 9, 0.25], np.float32)}
    batch = make_batch()
    params = parameters(plain) | {MODULE: {name: tf.constant(one) for name, one in statistics.items()}}
    with tf.GradientTape() as tape:
        tape.watch(params)
        loss = agent.loss(params, params, DynaBatch(*map(tf.constant, batch)), SEED)
    found = tape.gradient(loss.value, params)
    seen = [(one - statistics["mean"]) / np.sqrt(statistics["variance"]) for one in (batch.s_tm1, batch.s_t)]
    change = (batch.s_1 - batch.s_tm1)[:, 0]
    normalized = batch._replace(s_tm1=seen[0], s_t=seen[1], s_1=seen[0] + change[:, None])
    _, expected = gradients(plain, normalized)
    assert largest(found["q"], expected["q"]) < 1e-5 and largest(found["model"], expected["model"]) < 1e-5
    # Counted once, though two networks see them.
    np.testing.assert_allclose(found[MODULE]["mean"], batch.s_tm1.mean((0, 1)), rtol=1e-5)
    apart = [make_agent(normalize_observations=True, num_workers=2, store="ps", worker=worker) for worker in range(2)]
    assert [[one.name for one in each.trained] for each in apart] == [["q", MODULE], ["model"]]


def test_the_values_learn_from_all_rows_of_weight_real_or_not():
    agent = make_agent()
    for simulated, rows in ((0, [0, 3, 5]), (1, [0, 3])):
        loss, expected = gradients(agent, make_batch(simulated))
        for row in (0, 3, 5):
            spoilt = make_batch(simulated)
            spoilt.r_t[row] += 7
            _, found = gradients(agent, spoilt)
            assert (largest(found["q"], expected["q"]) > 1e-5) == (row in rows), row
    assert float(loss.statistics["simulated_share"]) == 1
    assert np.isnan(loss.statistics["real_error"]) and np.isfinite(loss.statistics["simulated_error"])
    assert float(loss.statistics["simulated_age"]) == 3


def test_an_environment_whose_observations_are_no_vectors_is_refused():
    with pytest.raises(UserError, match="--agent=dyna_q: its model predicts vectors"):
        make_agent(env="pong", network="auto")


@pytest.mark.parametrize("option", ["prioritized", "noisy"])
def test_options_of_dqn_that_planning_has_no_use_for_are_refused(option):
    with pytest.raises(UserError, match=f"^--{option}: --agent=dyna_q has no such setting"):
        make_agent(**{option: True})
