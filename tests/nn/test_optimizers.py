"""The optimizers against the formulas of their papers, in float64."""

import numpy as np
import pytest
import tensorflow as tf

from async_dqn.nn import optimizers

START = np.array([1.0, -2.0, 3.0, 0.5])
GRADIENTS = np.array([[0.1, -1.0, 5.0, 0.0], [0.3, 1.0, -2.0, 1e-3], [-0.2, 0.5, 1.0, 0.0], [0.1, 0.1, 0.1, -1e-3]])
RATES = [0.1, 0.1, 0.05, 0.2]


def run(optimizer, gradients=GRADIENTS, rates=RATES):
    """The parameters after every step, and the slots at the end."""
    parameters = tf.Variable(START, dtype=tf.float32)
    slots = {name: tf.Variable(value) for name, value in optimizer.initial_slots(len(START)).items()}
    after = []
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.apply(parameters, slots, tf.constant(gradient, tf.float32), tf.constant(rate, tf.float32))
        after.append(parameters.numpy())
    return np.array(after), {name: slot.numpy() for name, slot in slots.items()}


def adam_by_hand(beta1, beta2, epsilon):
    x, m, v = START.copy(), np.zeros(4), np.zeros(4)
    for t, (g, rate) in enumerate(zip(GRADIENTS, RATES, strict=True), start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        x = x - rate * np.sqrt(1 - beta2**t) / (1 - beta1**t) * m / (np.sqrt(v) + epsilon)
        yield x


def radam_by_hand(beta1, beta2, epsilon, gradients, rate):
    """Algorithm 2 of Liu et al. 2020, line by line, with epsilon where `adam_by_hand` has it."""
    x, m, v = START.copy(), np.zeros(4), np.zeros(4)
    rho_inf = 2 / (1 - beta2) - 1
    for t, g in enumerate(gradients, start=1):
        v = beta2 * v + (1 - beta2) * g**2
        m = beta1 * m + (1 - beta1) * g
        m_hat = m / (1 - beta1**t)
        rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
        if rho > 4:
            length = np.sqrt(1 - beta2**t) / (np.sqrt(v) + epsilon)
            r = np.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
            x = x - rate * r * m_hat * length
        else:
            x = x - rate * m_hat
        yield x


def rmsprop_by_hand(decay, epsilon, centered):
    x, ms, mg = START.copy(), np.zeros(4), np.zeros(4)
    for g, rate in zip(GRADIENTS, RATES, strict=True):
        ms = decay * ms + (1 - decay) * g**2
        mg = decay * mg + (1 - decay) * g if centered else mg
        x = x - rate * g / np.sqrt(ms - mg**2 + epsilon)
        yield x


@pytest.mark.parametrize(("beta1", "beta2", "epsilon"), [(0.9, 0.999, 1e-8), (0.5, 0.9, 1e-3)])
def test_adam(beta1, beta2, epsilon):
    after, slots = run(optimizers.adam(beta1=beta1, beta2=beta2, epsilon=epsilon))
    np.testing.assert_allclose(after, list(adam_by_hand(beta1, beta2, epsilon)), rtol=1e-4, atol=1e-5)
    steps = len(GRADIENTS)
    np.testing.assert_allclose(slots["beta_powers"], [beta1 ** (steps + 1), beta2 ** (steps + 1)], rtol=1e-5)


def test_first_step_of_adam_is_the_learning_rate_against_the_sign():
    after, _ = run(optimizers.adam())
    np.testing.assert_allclose(after[0], [1.0 - 0.1, -2.0 + 0.1, 3.0 - 0.1, 0.5], rtol=1e-5)


@pytest.mark.parametrize(("beta1", "beta2", "epsilon"), [(0.9, 0.999, 1e-8), (0.5, 0.9, 1e-3), (0.9, 0.5, 1e-8)])
def test_radam(beta1, beta2, epsilon):
    gradients = np.random.default_rng(0).normal(size=(60, 4))
    optimizer = optimizers.radam(beta1=beta1, beta2=beta2, epsilon=epsilon)
    after, slots = run(optimizer, gradients, [0.01] * len(gradients))
    expected = np.array([*radam_by_hand(beta1, beta2, epsilon, gradients, 0.01)])
    np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-5)
    assert slots["step"] == len(gradients)


def test_the_first_step_of_radam_is_along_the_gradient_however_long_that_is():
    after, _ = run(optimizers.radam())
    np.testing.assert_allclose(after[0], START - 0.1 * GRADIENTS[0], rtol=1e-5)


def test_radam_becomes_adam():
    """1 - beta2 ** t goes to 1, and so does the rectification."""
    assert [float(optimizers.rectification(tf.constant(t, tf.float64), 0.999)) for t in (1.0, 4.0)] == [0, 0]
    found = [float(optimizers.rectification(tf.constant(t, tf.float64), 0.999)) for t in (5.0, 100.0, 1_000.0, 1e5)]
    # At 100: 2 / 0.001 - 1 = 1999 less 2 * 100 * 0.999^100 / (1 - 0.999^100).
    power = 0.999**100
    rho = 1999 - 200 * power / (1 - power)
    by_hand = np.sqrt((rho - 4) * (rho - 2) * 1999 / (1995 * 1997 * rho))
    assert found[1] == pytest.approx(by_hand, rel=1e-3)
    assert 0 < found[0] < found[1] < found[2] < found[3] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize(("decay", "epsilon"), [(0.95, 0.01), (0.5, 1e-4)])
def test_rmsprop(decay, epsilon, centered):
    after, slots = run(optimizers.rmsprop(decay=decay, epsilon=epsilon, centered=centered))
    expected = list(rmsprop_by_hand(decay, epsilon, centered))
    np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-5)
    assert ("mg" in slots) == centered


def test_centring_changes_the_step():
    plain, centered = (run(optimizers.rmsprop(centered=centered))[0] for centered in (False, True))
    assert np.abs(plain - centered).max() > 1e-3


def test_add_adds_the_update_whatever_the_learning_rate():
    after, slots = run(optimizers.add())
    np.testing.assert_allclose(after, START + np.cumsum(GRADIENTS, axis=0), rtol=1e-6)
    assert slots == {}


ALL = [
    optimizers.add(),
    optimizers.adam(),
    optimizers.radam(beta2=0.9),
    optimizers.rmsprop(centered=False),
    optimizers.rmsprop(centered=True),
    optimizers.average(),
]


def test_average_is_the_mean_of_all_updates_so_far():
    after, slots = run(optimizers.average(), rates=[1.0] * 4)
    for number, found in enumerate(after, start=1):
        np.testing.assert_allclose(found, GRADIENTS[:number].mean(axis=0), atol=1e-6)
    assert slots["count"] == 4


@pytest.mark.parametrize("optimizer", ALL, ids=lambda optimizer: optimizer.name)
def test_shards_with_their_slots_end_where_the_whole_does(optimizer):
    whole, _ = run(optimizer)
    shards = []
    for part in (slice(0, 1), slice(1, 4)):
        variable = tf.Variable(START[part], dtype=tf.float32)
        slots = {name: tf.Variable(value) for name, value in optimizer.initial_slots(len(START[part])).items()}
        for gradient, rate in zip(GRADIENTS, RATES, strict=True):
            optimizer.apply(variable, slots, tf.constant(gradient[part], tf.float32), tf.constant(rate, tf.float32))
        shards.append(variable.numpy())
    np.testing.assert_array_equal(np.concatenate(shards), whole[-1])


@pytest.mark.parametrize("optimizer", ALL, ids=lambda optimizer: optimizer.name)
def test_the_same_inside_a_function_as_outside(optimizer):
    variable = tf.Variable(START, dtype=tf.float32)
    slots = {name: tf.Variable(value) for name, value in optimizer.initial_slots(len(START)).items()}

    @tf.function
    def apply(gradient, rate):
        optimizer.apply(variable, slots, gradient, rate)

    for gradient, rate in zip(GRADIENTS, RATES, strict=True):
        apply(tf.constant(gradient, tf.float32), tf.constant(rate, tf.float32))
    expected, expected_slots = run(optimizer)
    np.testing.assert_allclose(variable.numpy(), expected[-1], rtol=1e-6)
    for name, slot in slots.items():
        np.testing.assert_allclose(slot.numpy(), expected_slots[name], rtol=1e-6)


@pytest.mark.parametrize("size", [16, 32_768 * 2 + 48])
@pytest.mark.parametrize(
    "optimizer",
    [
        optimizers.add(),
        optimizers.average(),
        optimizers.adam(),
        optimizers.radam(),
        optimizers.radam(beta2=0.9),
        optimizers.rmsprop(centered=True),
        optimizers.rmsprop(centered=False),
    ],
    ids=lambda optimizer: optimizer.name,
)
def test_steps_on_arrays_are_those_on_variables(optimizer, size):
    rng = np.random.default_rng(0)
    array, arrays = rng.normal(size=size).astype(np.float32), optimizer.initial_slots(size)
    variable = tf.Variable(array)
    variables = {name: tf.Variable(value) for name, value in arrays.items()}
    for rate in (0.1, 0.01, 0.2, 0.3) * 3:
        update = (rng.normal(size=size) * 10.0 ** rng.integers(-6, 2, size)).astype(np.float32)
        optimizer.apply(variable, variables, tf.constant(update), tf.constant(rate, tf.float32))
        optimizer.step(array, arrays, update, rate)
        np.testing.assert_allclose(array, variable.numpy(), rtol=1e-5, atol=1e-6)
    for name, value in arrays.items():
        np.testing.assert_allclose(value, variables[name].numpy(), rtol=1e-5, atol=1e-12, err_msg=name)
