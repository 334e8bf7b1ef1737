"""Tests of async_dqn.cluster.versions: two shards in this process, which are brought up to date at different times."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from fakes import make_module

from async_dqn.cluster.quorum import Quorum
from async_dqn.cluster.shards import Push
from async_dqn.cluster.versions import make_versioned_shards

SIZE, WORKERS, MAX_NORM = 7, 2, 2.0
ORDERS = [11, 12]  # of the two gradients


@pytest.mark.parametrize("accumulate", [0, 2])
def test_a_shard_that_comes_later_scales_by_the_norm_of_the_whole_mean(accumulate):
    gradients = np.random.default_rng(0).normal(size=(WORKERS, SIZE)).astype(np.float32) * 5
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        module = make_module(SIZE, has_target=False)
        shards = make_versioned_shards([module], 2, WORKERS, Quorum(accumulate, max_norm=MAX_NORM))
        parts = [shard.modules["q"].size for shard in shards]
        zeros = [{"q": {"online": tf.zeros(size)}} for size in parts]
        one, zero = tf.constant(1, tf.int64), tf.constant(0, tf.int64)
        session.run([shard.write(values, one, zero, zero) for shard, values in zip(shards, zeros, strict=True)])
        for worker, gradient in enumerate(gradients):
            pushes = [Push({"q": tf.constant(part)}, tf.constant([0.1])) for part in np.split(gradient, [parts[0]])]
            order = tf.constant(ORDERS[worker], tf.int64)
            session.run([shard.leave(worker, one, order, push) for shard, push in zip(shards, pushes, strict=True)])
        # Generation, refreshes, updates, the version that is waited for, orders: the first version is complete.
        complete = SimpleNamespace(mark=tf.constant([1, 0, 1, 1, *ORDERS], tf.int64))
        squared_norms = [shard.measure(complete) for shard in shards]
        steps = [shard.follow(complete, squared_norms) for shard in shards]
        online = [shard.modules["q"].online.read_value() for shard in shards]

        session.run(steps[0])  # and whoever asked for it dies before the other shard has done so
        session.run(steps)
        session.run(steps)  # once more changes nothing
        found = np.concatenate(session.run(online))
    mean = gradients.mean(0)
    assert np.linalg.norm(mean) > MAX_NORM
    np.testing.assert_allclose(found, mean * MAX_NORM / np.linalg.norm(mean), rtol=1e-5)
