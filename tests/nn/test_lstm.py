"""The LSTM against a plain loop over its equations, and how far its gradients reach."""

import numpy as np
import tensorflow as tf

from async_dqn.nn.lstm import CELLS, LSTM

NUM_ENVS, LENGTH, INPUTS, SIZE = 3, 6, 4, 5


def make(seed=0):
    """A layer of 5 cells, its parameters, inputs [N, T, 4], recurrent state [N, 10], and where episodes begin."""
    layer, rng = LSTM(INPUTS, SIZE), np.random.default_rng(seed)
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in layer.shapes.items()}
    x = rng.normal(size=(NUM_ENVS, LENGTH, INPUTS)).astype(np.float32)
    recurrent_state = rng.normal(size=(NUM_ENVS, layer.recurrent_size)).astype(np.float32)
    is_first = np.zeros((NUM_ENVS, LENGTH), bool)
    is_first[0, 0] = is_first[0, 4] = is_first[1, 2] = is_first[1, 3] = True
    return layer, params, x, recurrent_state, is_first


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def loop(params, x, recurrent_state, is_first):
    """One environment, one step, and one gate after another: outputs [N, T, 5], and cells and outputs at the end."""
    w, b = params["lstm/w"].astype(float), params["lstm/b"].astype(float)
    outputs, last = np.zeros((NUM_ENVS, LENGTH, SIZE)), np.zeros((NUM_ENVS, 2 * SIZE))
    for n in range(NUM_ENVS):
        c, h = recurrent_state[n, :SIZE].astype(float), recurrent_state[n, SIZE:].astype(float)
        for t in range(LENGTH):
            if is_first[n, t]:
                c, h = np.zeros(SIZE), np.zeros(SIZE)
            z = np.concatenate([x[n, t], h])
            i, f, o, g = (z @ w[:, k * SIZE : (k + 1) * SIZE] + b[k * SIZE : (k + 1) * SIZE] for k in range(4))
            c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            outputs[n, t] = h
        last[n] = *c, *h
    return outputs, last


def flat(x):
    return tf.constant(x.reshape(-1, x.shape[-1]))


def test_rollouts_are_those_of_a_plain_loop():
    layer, params, x, recurrent_state, is_first = make()
    output, after = layer.apply(params, flat(x), tf.constant(recurrent_state), tf.constant(is_first))
    expected, last = loop(params, x, recurrent_state, is_first)
    np.testing.assert_allclose(tf.reshape(output, expected.shape), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after, last, rtol=1e-5, atol=1e-6)


def test_steps_one_by_one_are_those_of_a_rollout():
    layer, params, x, recurrent_state, is_first = make(1)
    together, after = layer.apply(params, flat(x), tf.constant(recurrent_state), tf.constant(is_first))
    for t in range(LENGTH):
        recurrent_state = np.where(is_first[:, t, None], np.float32(0), recurrent_state)
        output, recurrent_state = (
            one.numpy() for one in layer.apply(params, tf.constant(x[:, t]), tf.constant(recurrent_state))
        )
        np.testing.assert_allclose(output, tf.reshape(together, (NUM_ENVS, LENGTH, SIZE))[:, t], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(recurrent_state, after, rtol=1e-5, atol=1e-6)


def test_gradients_go_back_through_time_as_far_as_the_episode_began():
    layer, params, x, recurrent_state, is_first = make(2)
    x, recurrent_state = flat(x), tf.constant(recurrent_state)
    with tf.GradientTape() as tape:
        tape.watch([x, recurrent_state])
        output, _ = layer.apply(params, x, recurrent_state, tf.constant(is_first))
        last = tf.reduce_sum(tf.reshape(output, (NUM_ENVS, LENGTH, SIZE))[:, -1])
    of_x, of_state = tape.gradient(last, [x, recurrent_state])
    reached = np.abs(of_x.numpy().reshape(NUM_ENVS, LENGTH, INPUTS)).max(axis=2) > 0
    begins = [4, 3, 0]  # the episode of each environment's last step
    np.testing.assert_array_equal(reached, [[t >= begin for t in range(LENGTH)] for begin in begins])
    np.testing.assert_array_equal(np.abs(of_state).max(axis=1) > 0, [False, False, True])


def test_it_has_256_cells_as_in_the_paper():
    assert LSTM(7).recurrent_size == 2 * CELLS == 512
    assert LSTM(7).shapes == {"lstm/w": (7 + 256, 4 * 256), "lstm/b": (4 * 256,)}
