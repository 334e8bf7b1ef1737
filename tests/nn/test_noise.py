"""Noisy networks against a slow computation of their own; when noise changes, and when there is none."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from async_dqn.nn.layout import Layout
from async_dqn.nn.networks import Head, make_network
from async_dqn.nn.noise import with_noise

OBSERVATION = np.random.default_rng(1).normal(size=(6, 1, 4)).astype(np.float32)


def make_noisy(dueling=False):
    return with_noise(make_network("mlp", (4,), 1, {"q_values": Head(3)}, dueling=dueling))


def seed(*numbers):
    return tf.constant(numbers, tf.int32)


@pytest.mark.parametrize("dueling", [False, True])
def test_every_linear_layer_has_noise_of_its_size_and_starts_as_in_the_paper(dueling):
    network = make_noisy(dueling)
    layers = {name.removesuffix("/w") for name in network.shapes if name.endswith("/w")}
    hidden = (
        {"hidden0", "value_hidden", "value", "advantage_hidden", "advantage"} if dueling else {"hidden0", "hidden1"}
    )
    assert layers == hidden | (set() if dueling else {"q_values"})
    start = network.init(np.random.default_rng(0))
    assert list(start) == list(network.shapes)
    for layer in layers:
        inputs, outputs = network.shapes[f"{layer}/w"]
        assert network.shapes[f"{layer}/w_sigma"] == (inputs, outputs)
        assert network.shapes[f"{layer}/b_sigma"] == (outputs,)
        for name in ("w_sigma", "b_sigma"):
            np.testing.assert_array_equal(start[f"{layer}/{name}"], np.float32(0.5 / np.sqrt(inputs)))
        for name in ("w", "b"):
            assert np.abs(start[f"{layer}/{name}"]).max() <= 1 / np.sqrt(inputs)


def test_convolutions_have_none():
    network = with_noise(make_network("nips", (84, 84), 4, {"q_values": Head(6)}))
    noisy = {name.partition("/")[0] for name in network.shapes if name.endswith("_sigma")}
    assert noisy == {"hidden0", "q_values"}


@pytest.mark.parametrize(
    "options", [{}, {"dueling": True}, {"layer_norm": True}, {"dueling": True, "layer_norm": True}]
)
@pytest.mark.parametrize("atoms", [0, 5])
def test_without_a_seed_there_is_no_noise(options, atoms):
    plain = make_network("mlp", (4,), 1, {"q_values": Head(3, atoms=atoms)}, **options)
    network = with_noise(plain)
    params = network.init(np.random.default_rng(0))
    expected = plain.apply({name: params[name] for name in plain.shapes}, OBSERVATION)["q_values"]
    np.testing.assert_array_equal(network.apply(params, OBSERVATION)["q_values"], expected)
    noisy = network.apply(params, OBSERVATION, seed(0, 1))["q_values"]
    assert noisy.shape == expected.shape and np.abs(noisy - expected).max() > 1e-2


def test_noise_is_that_of_the_paper():
    """The equations written out, with factors drawn as the network draws them."""
    network, x = make_noisy(), OBSERVATION[:, 0].astype(np.float64)
    params = network.init(np.random.default_rng(0))
    params = {name: value + np.random.default_rng(2).random(value.shape) for name, value in params.items()}
    sizes = [4, 128, 128, 128, 128, 3]
    drawn = tf.random.stateless_normal([sum(sizes)], seed(3, 4)).numpy().astype(np.float64)
    factors = np.split(np.copysign(np.sqrt(np.abs(drawn)), drawn), np.cumsum(sizes)[:-1])
    for number, layer in enumerate(["hidden0", "hidden1", "q_values"]):
        of_inputs, of_outputs = factors[2 * number : 2 * number + 2]
        w = params[f"{layer}/w"] + params[f"{layer}/w_sigma"] * np.outer(of_inputs, of_outputs)
        x = x @ w + params[f"{layer}/b"] + params[f"{layer}/b_sigma"] * of_outputs
        x = x if layer == "q_values" else np.maximum(x, 0)
    found = network.apply({name: value.astype(np.float32) for name, value in params.items()}, OBSERVATION, seed(3, 4))
    np.testing.assert_allclose(found["q_values"], x, rtol=1e-3)


def test_the_same_seed_gives_the_same_noise_and_another_another():
    network = make_noisy()
    params = network.init(np.random.default_rng(0))
    one, same, *others = (
        network.apply(params, OBSERVATION, seed(*numbers))["q_values"].numpy()
        for numbers in [(5, 6), (5, 6), (5, 7), (6, 6), (0, 0)]
    )
    np.testing.assert_array_equal(one, same)
    assert all(np.abs(a - b).max() > 1e-3 for a, b in itertools.combinations([one, *others], 2))


def test_noise_averages_out_over_seeds():
    """In a network that is linear, as all units stay above 0."""
    network = make_noisy()
    params = network.init(np.random.default_rng(0))
    params["hidden0/b"], params["hidden1/b"] = np.full(128, 50, np.float32), np.full(128, 500, np.float32)
    many = [network.apply(params, OBSERVATION[:1], seed(0, i))["q_values"].numpy() for i in range(3_000)]
    expected = network.apply(params, OBSERVATION[:1])["q_values"].numpy()
    np.testing.assert_allclose(np.mean(many, axis=0), expected, atol=4 * np.std(many) / np.sqrt(len(many)))


@pytest.mark.parametrize("given", [None, (1, 2)])
def test_how_much_noise_there_is_has_a_gradient_where_there_is_some(given):
    network = make_noisy(dueling=True)
    layout = Layout(network.shapes)
    flat = tf.constant(layout.flatten(network.init(np.random.default_rng(0))))
    with tf.GradientTape() as tape:
        tape.watch(flat)
        outputs = network.apply(layout.unflatten(flat), OBSERVATION, None if given is None else seed(*given))
        loss = tf.reduce_sum(outputs["q_values"] ** 2)
    gradients = {name: one.numpy() for name, one in layout.unflatten(tape.gradient(loss, flat)).items()}
    for name, gradient in gradients.items():
        assert bool(gradient.any()) == (given is not None or not name.endswith("_sigma")), name
