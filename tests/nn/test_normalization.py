"""Running mean and variance of observations, against NumPy's of all of them together."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from fakes import delta_client, make_store

from async_dqn.agents.table import make_config
from async_dqn.envs import registry
from async_dqn.envs.packing import Packing
from async_dqn.nn.module import initial_parameters
from async_dqn.nn.normalization import LIMIT, MODULE, make_statistics, normalize, standardize
from async_dqn.nn.optimizers import average
from async_dqn.run import build
from async_dqn.run.trained import Trained
from async_dqn.tools.player import Player

CARTPOLE = registry.resolve("CartPole-v1", "classic")


def spec_of(shape, dtype=np.float32, **options):
    return dataclasses.replace(CARTPOLE, observation_shape=shape, observation_dtype=np.dtype(dtype), **options)


def statistics_after(spec, minibatches):
    """Mean and variance [C] once each of these observations [B, S, ...] went through a loss."""
    module = make_statistics(spec)
    flat = tf.Variable(module.layout.flatten(module.init(np.random.default_rng(0))))
    slots = {name: tf.Variable(value) for name, value in module.optimizer.initial_slots(module.size).items()}
    for observation in minibatches:
        with tf.GradientTape() as tape:
            seen = normalize(module.layout.unflatten(flat.read_value()), tf.constant(observation), spec)
            # Whatever the loss is, the statistics are the same.
            loss = tf.add_n([tf.reduce_sum(one) * 0.0 for one in tf.nest.flatten(seen) if one.dtype == tf.float32])
        module.optimizer.apply(flat, slots, tape.gradient(loss, flat), tf.constant(1.0))
    return {name: one.numpy() for name, one in module.layout.unflatten(flat).items()}


def test_by_hand():
    x = tf.constant([[[3.0, 7.0, 5.0]], [[1.0, 7.0, 1e9]]])
    found = standardize(x, tf.constant([2.0, 7.0, 1.0]), tf.constant([4.0, 0.0, 1.0]))
    np.testing.assert_allclose(found, [[[(3 - 2) / 2, 0, (5 - 1) / 1]], [[(1 - 2) / 2, 0, LIMIT]]], rtol=1e-6)


def test_what_nothing_is_known_of_stays_as_it_is():
    x = tf.constant([[[0.5, -2.0, 3.0, 0.0]]])
    np.testing.assert_array_equal(normalize({"mean": tf.zeros(4), "variance": tf.zeros(4)}, x, CARTPOLE), x)


@pytest.mark.parametrize("mean", [0.0, 1e3])
def test_of_vectors(mean):
    rng = np.random.default_rng(0)
    minibatches = (mean + [1.0, 5.0, 0.1, 0.0] * rng.normal(size=(200, 32, 1, 4))).astype(np.float32)
    found = statistics_after(CARTPOLE, minibatches)
    everything = minibatches.reshape(-1, 4).astype(np.float64)
    np.testing.assert_allclose(found["mean"], everything.mean(axis=0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["variance"], everything.var(axis=0), rtol=0.02)


def test_zeros_before_an_episode_are_no_observations():
    spec = dataclasses.replace(CARTPOLE, stack=3)
    minibatches = np.zeros((50, 8, 3, 4), np.float32)
    minibatches[:, :, -1] = np.random.default_rng(0).normal(10.0, 1.0, (50, 8, 4))
    found = statistics_after(spec, minibatches)
    np.testing.assert_allclose(found["mean"], minibatches[:, :, -1].mean(axis=(0, 1)), rtol=1e-4)
    np.testing.assert_allclose(found["variance"], minibatches[:, :, -1].var(axis=(0, 1)), rtol=0.05)


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_of_the_channels_of_pictures(shape, dtype):
    spec = spec_of(shape, dtype, bounds=(0.0, 255.0), stack=2)
    channels = shape[2:]
    rng = np.random.default_rng(0)
    minibatches = rng.integers(
        0, np.array([3, 9, 2])[: channels[0] if channels else 1] + 1, (100, 16, 2, 6, 5, *(channels or (1,)))
    )
    minibatches = minibatches.reshape(100, 16, 2, *shape).astype(dtype)
    found = statistics_after(spec, minibatches)
    everything = minibatches[:, :, -1].reshape(-1, *(channels or (1,))).astype(np.float64)
    np.testing.assert_allclose(found["mean"], everything.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(found["variance"], everything.var(axis=0), rtol=0.02)
    seen = normalize(found, tf.constant(minibatches[0]), spec) / 255  # as the network scales it
    expected = (minibatches[0] - found["mean"].reshape(channels)) / np.sqrt(found["variance"]).reshape(channels)
    np.testing.assert_allclose(seen, expected, atol=1e-4)


def test_of_packed_observations_picture_and_vector():
    packing = Packing(mask=2, picture=(3, 3), vector=4)
    spec = spec_of((sum(packing.sizes),), np.uint8, packing=packing, bounds=(0.0, 10.0))
    rng = np.random.default_rng(0)
    vectors = rng.normal([5.0, 0.0, -3.0, 1.0], [1.0, 2.0, 3.0, 0.5], (100, 8, 4)).astype(np.float32)
    pictures = rng.integers(0, 11, (100, 8, 3, 3))
    packed = np.array(
        [
            [packing.pack([1, 0], *pair) for pair in zip(*pairs, strict=True)]
            for pairs in zip(pictures, vectors, strict=True)
        ]
    )[:, :, None]
    found = statistics_after(spec, packed)
    expected = [pictures.mean(), *vectors.mean(axis=(0, 1))]
    np.testing.assert_allclose(found["mean"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["variance"], [pictures.var(), *vectors.var(axis=(0, 1))], rtol=0.02)
    seen = normalize(found, tf.constant(packed[0]), spec)
    np.testing.assert_array_equal(seen.mask, [[True, False]] * 8)
    scale = np.sqrt(found["variance"])
    np.testing.assert_allclose(seen.picture[:, 0] / 10, (pictures[0] - found["mean"][0]) / scale[0], atol=1e-4)
    np.testing.assert_allclose(seen.vector[:, 0], (vectors[0] - found["mean"][1:]) / scale[1:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("local_steps", "weights"), [(0, [1, 1, 1]), (4, [1, 0, 0])])
def test_where_workers_step_by_themselves_the_average_of_worker_0_counts(local_steps, weights):
    settings = {"env": "CartPole-v1", "normalize_observations": True, "num_workers": 3, "local_steps": local_steps}
    agents = [build.make_agent(make_config("dqn", "cartpole", settings), worker) for worker in range(3)]
    assert {agent.modules[-1].name for agent in agents} == {MODULE}
    found = [agent.modules[-1].rate(0) for agent in agents]
    assert found == weights
    if not local_steps:
        return
    store, rng = make_store([0, 0]), np.random.default_rng(0)
    clients = [delta_client(store, local_steps=4, optimizer=average()) for _ in found]
    seen = rng.normal(100, 1, size=(12, 3, 2))
    for minibatches in seen:
        for client, one, rate in zip(clients, minibatches, found, strict=True):
            client.consume([tf.constant(one, tf.float32)], tf.constant([rate]))
            client.after_minibatch()
    for client in clients:
        client.finish()
        client.pull()
        np.testing.assert_allclose(client.online["q"], seen[:, 0].mean(0), rtol=1e-5)


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_player_normalises_what_it_sees(name):
    settings = {"env": "CartPole-v1"}
    plain, agent = (
        build.make_agent(make_config(name, "cartpole", settings | {"normalize_observations": normalizes}))
        for normalizes in (False, True)
    )
    online = initial_parameters(agent.modules, 0)
    statistics = {"mean": np.array([1, -2, 3, 4], np.float32), "variance": np.array([4, 1, 9, 0.25], np.float32)}
    online[MODULE] = agent.modules[-1].layout.flatten(statistics)
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    found = Player(agent, Trained(online, 0)).outputs(observations)
    normalized = (observations - statistics["mean"]) / np.sqrt(statistics["variance"])
    expected = Player(plain, Trained(online, 0)).outputs(normalized.astype(np.float32))
    for head, value in expected.items():
        np.testing.assert_allclose(found[head], value, rtol=1e-4, atol=1e-5)
