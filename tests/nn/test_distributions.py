"""Distributions of actions, against formulas written out and against counts."""

import math
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn import losses, networks
from async_dqn.nn.distributions import Categorical, Gaussian, make_distribution

SPEC = EnvironmentSpec("Any-v0", False, "none", 3, (2,), np.dtype(np.float32), 1, 1, None)
CONTINUOUS = replace(SPEC, num_actions=0, action_shape=(2,))


def tensors(outputs):
    return {name: tf.constant(one, tf.float32) for name, one in outputs.items()}


def gaussian(mean, std):
    return {"mean": np.array(mean, np.float32), "log_std": np.log(np.array(std, np.float32))}


def density(x, mean, std):
    return math.exp(-((x - mean) ** 2) / (2 * std**2)) / (std * math.sqrt(2 * math.pi))


def test_the_distribution_is_that_of_the_action_space():
    for spec, kind, heads in (SPEC, Categorical, ["logits"]), (CONTINUOUS, Gaussian, ["mean", "log_std"]):
        found = make_distribution(spec)
        assert isinstance(found, kind)
        assert list(found.heads) == list(found.meanings) == heads


def test_log_probabilities_of_a_gaussian_by_hand():
    outputs = gaussian([[0, 1], [2, -1]], [[1, 0.5], [1, 0.5]])
    action = np.float32([[0, 1], [1, 0]])
    expected = [
        math.log(density(0, 0, 1) * density(1, 1, 0.5)),
        math.log(density(1, 2, 1) * density(0, -1, 0.5)),
    ]
    policy = Gaussian(2)
    np.testing.assert_allclose(policy.log_prob_of(outputs, action), expected, rtol=1e-6)
    np.testing.assert_allclose(policy.log_prob(tensors(outputs), tf.constant(action)), expected, rtol=1e-6)
    assert policy.log_prob_of(outputs, action).dtype == np.float32


def test_probabilities_of_a_gaussian_add_up_to_one():
    grid = np.linspace(-12, 12, 4_001, dtype=np.float32)[:, None]
    outputs = gaussian(np.full_like(grid, 0.5), np.full_like(grid, 1.5))
    total = np.exp(Gaussian(1).log_prob_of(outputs, grid)).sum() * 24 / 4_000
    assert total == pytest.approx(1, abs=1e-4)


def test_entropy_of_a_gaussian_is_the_mean_of_what_its_samples_say():
    outputs = gaussian(np.tile([[1, 2]], (40_000, 1)), np.tile([[0.5, 2]], (40_000, 1)))
    policy = Gaussian(2)
    sampled = policy.sample(outputs, np.random.default_rng(0))
    entropy = policy.entropy(tensors(outputs)).numpy()
    expected = sum(0.5 * math.log(2 * math.pi * math.e * std**2) for std in (0.5, 2))
    np.testing.assert_allclose(entropy, expected, rtol=1e-5)
    assert -policy.log_prob_of(outputs, sampled).mean() == pytest.approx(expected, abs=0.02)


def test_samples_of_a_gaussian():
    outputs = gaussian(np.tile([[1, -2]], (20_000, 1)), np.tile([[0.5, 3]], (20_000, 1)))
    first, again, other = (Gaussian(2).sample(outputs, np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_allclose(first.mean(0), [1, -2], atol=0.07)
    np.testing.assert_allclose(first.std(0), [0.5, 3], rtol=0.03)
    assert first.dtype == np.float32 and first.shape == (20_000, 2)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(Gaussian(2).mode(outputs)[0], [1, -2])


@pytest.mark.parametrize("policy", [Categorical(3), Gaussian(3)])
def test_the_amount_drawn_does_not_depend_on_the_outputs(policy):
    ends = []
    for factor in (0, 50):
        rng = np.random.default_rng(0)
        policy.sample({name: np.full((4, 3), factor, np.float32) for name in policy.heads}, rng)
        ends.append(rng.bit_generator.state)
    assert ends[0] == ends[1]


@pytest.mark.parametrize("policy", [Categorical(3), Gaussian(3)])
def test_numpy_and_tensorflow_agree_whatever_the_leading_axes(policy):
    rng = np.random.default_rng(0)
    outputs = {name: rng.normal(size=(5, 4, 3)).astype(np.float32) for name in policy.heads}  # [T, N, 3]
    flat = {name: one.reshape(20, 3) for name, one in outputs.items()}
    action = policy.sample(flat, rng)
    expected = policy.log_prob(tensors(flat), tf.constant(action)).numpy()
    found = policy.log_prob_of(outputs, action.reshape(5, 4, *action.shape[1:]))
    assert found.shape == (5, 4)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-5, atol=1e-6)


def test_gradient_of_a_gaussians_log_probability():
    mean, log_std = tf.constant([[1.0, 0.0]]), tf.math.log(tf.constant([[0.5, 2.0]]))
    with tf.GradientTape() as tape:
        tape.watch([mean, log_std])
        log_prob = losses.gaussian_log_probability(mean, log_std, tf.constant([[2.0, 3.0]]))
    of_mean, of_log_std = tape.gradient(log_prob, [mean, log_std])
    np.testing.assert_allclose(of_mean, [[(2 - 1) / 0.5**2, 3 / 2**2]], rtol=1e-5)
    np.testing.assert_allclose(of_log_std, [[(2 - 1) ** 2 / 0.5**2 - 1, 3**2 / 2**2 - 1]], rtol=1e-5)


def test_the_standard_deviation_is_one_parameter_for_all_observations():
    network = networks.make_network("mlp", (4,), 1, {**Gaussian(2).heads, "value": networks.Head(1)})
    params = network.init(np.random.default_rng(0))
    assert network.shapes["log_std/b"] == (2,) and "log_std/w" not in network.shapes
    np.testing.assert_array_equal(params["log_std/b"], [0, 0])
    params["log_std/b"] = np.float32([3, -1])
    observation = tf.constant(np.random.default_rng(1).normal(size=(5, 1, 4)), tf.float32)
    outputs = network.apply({name: tf.constant(one) for name, one in params.items()}, observation)
    np.testing.assert_array_equal(outputs["log_std"], [[3, -1]] * 5)
    assert outputs["mean"].shape == (5, 2) and np.abs(outputs["mean"]).max() < 0.1


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (losses.gaussian_log_probability, ([[0.0]], [[0.0]], [0.0])),
        (losses.gaussian_log_probability, ([0.0], [[0.0]], [[0.0]])),
        (losses.gaussian_entropy, ([0.0],)),
    ],
)
def test_a_wrong_rank_is_refused(function, arguments):
    with pytest.raises(ValueError, match="rank"):
        function(*map(tf.constant, arguments))
