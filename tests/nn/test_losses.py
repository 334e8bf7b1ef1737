"""Losses against arithmetic by hand, and where their gradients go."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.nn import losses

Q_TM1 = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
A_TM1 = tf.constant([0, 2])
R_T = tf.constant([1.0, -1.0])
DISCOUNT_T = tf.constant([0.9, 0.0])
Q_T = tf.constant([[0.0, 2.0, 1.0], [7.0, 8.0, 9.0]])
SELECTOR = tf.constant([[5.0, 1.0, 6.0], [1.0, 0.0, 0.0]])


def test_q_learning_bootstraps_from_the_best_value_and_not_from_a_terminal_state():
    errors = losses.double_q_learning(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T, Q_T)
    np.testing.assert_allclose(errors, [1 + 0.9 * 2 - 1, -1 + 0 * 9 - 6], rtol=1e-6)


def test_double_q_learning_values_the_action_that_the_selector_chooses():
    errors = losses.double_q_learning(Q_TM1, A_TM1, R_T, tf.constant([0.9, 0.5]), Q_T, SELECTOR)
    np.testing.assert_allclose(errors, [1 + 0.9 * 1 - 1, -1 + 0.5 * 7 - 6], rtol=1e-6)


def test_sarsa_bootstraps_from_the_action_that_was_taken():
    errors = losses.sarsa(Q_TM1, A_TM1, R_T, tf.constant([0.9, 0.5]), Q_T, tf.constant([2, 0]))
    np.testing.assert_allclose(errors, [1 + 0.9 * 1 - 1, -1 + 0.5 * 7 - 6], rtol=1e-6)


def test_no_gradient_reaches_the_target_of_sarsa():
    sources = [Q_TM1, Q_T, R_T, DISCOUNT_T]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        total = tf.reduce_sum(losses.sarsa(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T, tf.constant([2, 0])))
    of_q_tm1, *others = tape.gradient(total, sources)
    np.testing.assert_array_equal(of_q_tm1, [[-1, 0, 0], [0, 0, -1]])
    assert others == [None] * 3


def test_actions_of_another_rank_are_refused():
    with pytest.raises(ValueError, match="rank 2, not 1"):
        losses.sarsa(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T, A_TM1[:, None])


def test_gradient_reaches_the_value_of_the_action_taken_and_nothing_else():
    sources = [Q_TM1, Q_T, SELECTOR, R_T, DISCOUNT_T]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        total = tf.reduce_sum(losses.double_q_learning(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T, SELECTOR))
    of_q_tm1, *others = tape.gradient(total, sources)
    np.testing.assert_array_equal(of_q_tm1, [[-1, 0, 0], [0, 0, -1]])
    assert others == [None] * 4


def test_no_gradient_reaches_the_target_of_q_learning():
    with tf.GradientTape() as tape:
        tape.watch(Q_T)
        total = tf.reduce_sum(losses.double_q_learning(Q_TM1, A_TM1, R_T, DISCOUNT_T, Q_T, Q_T))
    assert tape.gradient(total, Q_T) is None


GOOD = {"q_tm1": Q_TM1, "a_tm1": A_TM1, "r_t": R_T, "discount_t": DISCOUNT_T, "q_t": Q_T, "q_t_selector": SELECTOR}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("change", [lambda x: x[0], lambda x: x[..., None]], ids=["rank too low", "rank too high"])
def test_wrong_rank_is_refused(name, change):
    with pytest.raises(ValueError, match=f"rank {change(GOOD[name]).shape.rank}, not {GOOD[name].shape.rank}"):
        losses.double_q_learning(**(GOOD | {name: change(GOOD[name])}))


@pytest.mark.parametrize(
    ("error", "delta", "expected"),
    [
        (0.0, 1.0, 0.0),
        (0.5, 1.0, 0.5 * 0.5**2),
        (-0.5, 1.0, 0.5 * 0.5**2),
        (1.0, 1.0, 0.5 * 1**2),
        (3.0, 1.0, 0.5 * 1**2 + 1 * (3 - 1)),
        (-3.0, 1.0, 0.5 * 1**2 + 1 * (3 - 1)),
        (3.0, 2.0, 0.5 * 2**2 + 2 * (3 - 2)),
    ],
)
def test_huber(error, delta, expected):
    assert float(losses.huber(tf.constant(error), delta)) == pytest.approx(expected)


@settings(deadline=None)
@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=5),
    st.floats(0.125, 8, width=32),
)
def test_gradient_of_huber_is_the_clipped_error(errors, delta):
    error = tf.constant(errors, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(error)
        total = tf.reduce_sum(losses.huber(error, delta))
    np.testing.assert_allclose(tape.gradient(total, error), np.clip(errors, -delta, delta), atol=1e-6)


LOGITS = np.log([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]).astype(np.float32)


def gradients_of(function, *sources):
    """The gradients of the sum of `function(*sources)`, None where none arrives."""
    tensors = [tf.constant(source, tf.float32) for source in sources]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        total = tf.reduce_sum(function(*tensors))
    return tape.gradient(total, tensors)


@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_log_probability_is_that_of_the_softmax(shift):
    found = losses.log_probability(tf.constant(LOGITS + np.float32(shift)), tf.constant([0, 2]))
    np.testing.assert_allclose(found, [np.log(0.5), np.log(0.7)], atol=1e-6 if not shift else 1e-4)


def test_gradient_of_the_log_probability_is_the_action_less_the_probabilities():
    (gradient,) = gradients_of(lambda logits: losses.log_probability(logits, tf.constant([0, 2])), LOGITS)
    np.testing.assert_allclose(gradient, [[1 - 0.5, -0.25, -0.25], [-0.1, -0.2, 1 - 0.7]], atol=1e-6)


def test_entropy():
    expected = [-0.5 * np.log(0.5) - 2 * 0.25 * np.log(0.25), -sum(p * np.log(p) for p in (0.1, 0.2, 0.7))]
    np.testing.assert_allclose(losses.entropy(tf.constant(LOGITS)), expected, rtol=1e-6)


def test_entropy_goes_from_0_for_a_certain_action_to_log_a_for_equal_ones():
    found = losses.entropy(tf.constant([[1000.0, 0.0, 0.0], [7.0, 7.0, 7.0]]))
    np.testing.assert_allclose(found, [0, np.log(3)], atol=1e-6)


def test_to_descend_a_loss_less_the_entropy_makes_the_policy_more_uniform():
    (gradient,) = gradients_of(lambda logits: 0.0 - losses.entropy(logits), LOGITS)
    before, after = (losses.entropy(tf.constant(logits)).numpy() for logits in (LOGITS, LOGITS - 0.1 * gradient))
    assert (after > before).all()
    assert gradient[0, 0] > 0 > gradient[0, 1]  # the likely action's logit falls, the unlikely one's rises


def test_policy_gradient_and_its_gradient_which_does_not_reach_the_advantage():
    log_prob, advantage = [-1.0, -2.0, -3.0], [4.0, -0.5, 0.0]
    found = losses.policy_gradient(tf.constant(log_prob), tf.constant(advantage))
    np.testing.assert_allclose(found, [1 * 4, 2 * -0.5, 3 * 0])
    of_log_prob, of_advantage = gradients_of(losses.policy_gradient, log_prob, advantage)
    np.testing.assert_allclose(of_log_prob, [-4, 0.5, 0])  # down this slope good actions become likelier
    assert of_advantage is None


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "of_log_prob"),
    [
        (1.1, 2.0, -1.1 * 2, -1.1 * 2),
        (1.5, 2.0, -(1 + 0.2) * 2, 0),  # better already: no more to gain
        (0.5, 2.0, -0.5 * 2, -0.5 * 2),  # good action made unlikely: the gradient passes
        (0.9, -2.0, 0.9 * 2, 0.9 * 2),
        (0.5, -2.0, (1 - 0.2) * 2, 0),  # unlikely already: no more to gain
        (1.5, -2.0, 1.5 * 2, 1.5 * 2),  # bad action made likely: the gradient passes
    ],
)
def test_clipped_surrogate(ratio, advantage, expected, of_log_prob):
    old_log_prob = -1.0
    log_prob = old_log_prob + np.log(ratio)
    found = losses.clipped_surrogate(
        tf.constant([log_prob], tf.float32), tf.constant([old_log_prob]), tf.constant([advantage]), 0.2
    )
    np.testing.assert_allclose(found, [expected], rtol=1e-5)
    gradient, *others = gradients_of(
        lambda *tensors: losses.clipped_surrogate(*tensors, 0.2), [log_prob], [old_log_prob], [advantage]
    )
    np.testing.assert_allclose(gradient, [of_log_prob], rtol=1e-5)  # the derivative of a ratio is the ratio itself
    assert others == [None, None]


def test_at_the_policy_that_acted_the_surrogate_has_the_gradient_of_the_policy_gradient():
    advantage = tf.constant([3.0, -2.0])
    (found,) = gradients_of(lambda x: losses.clipped_surrogate(x, x, advantage, 0.2), [-1.0, -2.0])
    np.testing.assert_allclose(found, [-3, 2])


def test_no_gradient_reaches_a_value_through_the_advantage():
    def loss(log_prob, value):
        advantage = losses.normalize(tf.constant([1.0, 5.0]) - value)
        return losses.clipped_surrogate(log_prob, tf.constant([-1.0, -1.0]), advantage, 0.2)

    of_log_prob, of_value = gradients_of(loss, [-1.0, -1.0], [0.5, 0.5])
    np.testing.assert_allclose(of_log_prob, [1, -1], rtol=1e-6)
    assert of_value is None


def test_sampled_kl():
    log_prob = tf.math.log([0.5, 1.25, 1.0]) - 1
    by_hand = ((0.5 - 1 - math.log(0.5)) + (1.25 - 1 - math.log(1.25)) + 0) / 3
    assert float(losses.sampled_kl(log_prob, tf.fill([3], -1.0))) == pytest.approx(by_hand, rel=1e-5)


def test_sampled_kl_is_the_divergence_on_average():
    old, new = tf.constant([0.2, 0.5, 0.3]), tf.constant([0.3, 0.3, 0.4])
    actions = np.random.default_rng(0).choice(3, size=200_000, p=old.numpy() / old.numpy().sum())
    found = losses.sampled_kl(tf.math.log(tf.gather(new, actions)), tf.math.log(tf.gather(old, actions)))
    assert float(found) == pytest.approx(float(tf.reduce_sum(old * tf.math.log(old / new))), rel=0.03)


def test_clip_share():
    log_prob = tf.math.log([0.7, 0.9, 1.0, 1.1, 1.3]) - 1
    assert float(losses.clip_share(log_prob, tf.fill([5], -1.0), 0.2)) == pytest.approx(2 / 5)
    assert float(losses.clip_share(tf.fill([5], -1.0), tf.fill([5], -1.0), 0.2)) == 0


def test_squared_error_and_its_gradient_which_does_not_reach_the_target():
    value, target = [1.0, -2.0], [3.0, 2.0]
    np.testing.assert_allclose(
        losses.squared_error(tf.constant(value), tf.constant(target)), [0.5 * (1 - 3) ** 2, 0.5 * (-2 - 2) ** 2]
    )
    of_value, of_target = gradients_of(losses.squared_error, value, target)
    np.testing.assert_allclose(of_value, [1 - 3, -2 - 2])
    assert of_target is None


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1),
        ([5.0, 5.0, 5.0], [1.0, 2.0, 3.0], 0),
        ([3.0, 2.0, 1.0], [1.0, 2.0, 3.0], 1 - 4),  # the errors are twice the target's deviations
        ([11.0, 12.0, 13.0], [1.0, 2.0, 3.0], 1),  # a constant error is not counted
        ([1.0, 2.0, 3.0], [7.0, 7.0, 7.0], 0),
        ([7.0, 7.0, 7.0], [7.0, 7.0, 7.0], 0),
    ],
)
def test_explained_variance(value, target, expected):
    found = losses.explained_variance(tf.constant(value), tf.constant(target))
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_normalize():
    found = losses.normalize(tf.constant([1.0, 2.0, 6.0]))
    deviation = np.sqrt(((1 - 3) ** 2 + (2 - 3) ** 2 + (6 - 3) ** 2) / 3)
    np.testing.assert_allclose(found, [(1 - 3) / deviation, (2 - 3) / deviation, (6 - 3) / deviation], rtol=1e-6)


@settings(deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=9).filter(lambda one: len(set(one)) > 1))
def test_normalized_advantages_have_mean_0_and_deviation_1(advantage):
    found = losses.normalize(tf.constant(advantage, tf.float32)).numpy()
    assert found.mean() == pytest.approx(0, abs=1e-5)
    assert found.std() == pytest.approx(1, abs=1e-5)


def test_advantages_without_variance_become_0():
    np.testing.assert_array_equal(losses.normalize(tf.constant([4.0, 4.0])), [0, 0])
    np.testing.assert_array_equal(losses.normalize(tf.constant([4.0])), [0])


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (losses.log_probability, (LOGITS, [0, 2])),
        (losses.entropy, (LOGITS,)),
        (losses.policy_gradient, ([0.0], [1.0])),
        (lambda *arguments: losses.clipped_surrogate(*arguments, 0.2), ([0.0], [0.0], [1.0])),
        (lambda *arguments: losses.clip_share(*arguments, 0.2), ([0.0], [0.0])),
        (losses.sampled_kl, ([0.0], [0.0])),
        (losses.squared_error, ([0.0], [0.0])),
        (losses.explained_variance, ([0.0], [0.0])),
        (losses.normalize, ([0.0],)),
    ],
    ids=[
        "log_probability",
        "entropy",
        "policy_gradient",
        "surrogate",
        "clip_share",
        "sampled_kl",
        "squared_error",
        "explained_variance",
        "normalize",
    ],
)
def test_a_further_dimension_is_refused_in_every_argument(function, arguments):
    """[B, 1] against [B] would broadcast to [B, B], and train on nonsense."""
    tensors = [tf.constant(argument) for argument in arguments]
    function(*tensors)
    for index, tensor in enumerate(tensors):
        with pytest.raises(ValueError, match=f"rank {tensor.shape.rank + 1}, not {tensor.shape.rank}"):
            function(*tensors[:index], tensor[..., None], *tensors[index + 1 :])


@pytest.mark.parametrize(("max_norm", "factor"), [(0.0, 1), (13.0, 1), (20.0, 1), (6.5, 6.5 / 13)])
def test_clip_together_scales_all_gradients_by_their_common_norm(max_norm, factor):
    (first, second), norm = losses.clip_together([tf.constant([3.0, 4.0]), tf.constant([12.0])], max_norm)
    assert float(norm) == pytest.approx(13) if max_norm else math.isnan(norm)
    np.testing.assert_allclose(first, [3 * factor, 4 * factor], rtol=1e-6)
    np.testing.assert_allclose(second, [12 * factor], rtol=1e-6)


def test_clip_together_leaves_gradients_of_zero_at_zero():
    for gradient in losses.clip_together([tf.zeros(3), tf.zeros(2)], 1.0)[0]:
        np.testing.assert_array_equal(gradient, np.zeros(len(gradient)))


def projected_by_hand(atoms, probabilities, support):
    """Algorithm 1 of Bellemare et al. 2017: each probability by itself, to the atoms below and above it."""
    found = np.zeros((len(atoms), len(support)))
    distance = support[1] - support[0]
    for row, column in np.ndindex(*atoms.shape):
        place = (np.clip(atoms[row, column], support[0], support[-1]) - support[0]) / distance
        below = int(np.floor(place))
        above = min(below + 1, len(support) - 1)
        found[row, below] += probabilities[row, column] * (1 - (place - below))
        found[row, above] += probabilities[row, column] * (place - below)
    return found


@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(2, 9),
    st.floats(-20, 20),
    st.floats(0.1, 10),
    st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=50)
def test_projection_is_that_of_the_paper(batch, num_atoms, size, low, distance, seed):
    rng = np.random.default_rng(seed)
    support = (low + distance * np.arange(size)).astype(np.float32)
    atoms = rng.uniform(low - 3 * distance, low + (size + 2) * distance, (batch, num_atoms)).astype(np.float32)
    probabilities = rng.dirichlet(np.ones(num_atoms), batch).astype(np.float32)
    found = losses.categorical_projection(*map(tf.constant, (atoms, probabilities, support))).numpy()
    np.testing.assert_allclose(found, projected_by_hand(atoms, probabilities, support), atol=1e-3)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-3)
    inside = np.clip(atoms, support[0], support[-1])
    np.testing.assert_allclose(found @ support, (probabilities * inside).sum(axis=1), atol=1e-3 * np.abs(support).max())


def test_projection_by_hand():
    support = tf.constant([0.0, 1.0, 2.0])
    atoms = tf.constant([[-4.0, 0.25, 2.0], [1.0, 1.5, 9.0]])
    probabilities = tf.constant([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]])
    expected = [[0.5 + 0.75 * 0.2, 0.25 * 0.2, 0.3], [0.0, 0.1 + 0.5 * 0.6, 0.5 * 0.6 + 0.3]]
    np.testing.assert_allclose(losses.categorical_projection(atoms, probabilities, support), expected, rtol=1e-6)


def test_divergence_is_nothing_between_equals_and_the_mean_logarithm_else():
    target = tf.constant([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]])
    logits = tf.math.log(tf.constant([[0.25, 0.75], [0.1, 0.9], [0.2, 0.8]])) + 3.0
    expected = [0, np.log(1 / 0.1), 0.5 * np.log(0.5 / 0.2) + 0.5 * np.log(0.5 / 0.8)]
    np.testing.assert_allclose(losses.kl_divergence(target, logits), expected, rtol=1e-5, atol=1e-6)


SUPPORT = tf.constant([-1.0, 0.0, 1.0])
LOGITS_TM1 = tf.math.log(tf.constant([[[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], [[0.1, 0.1, 0.8], [0.3, 0.3, 0.4]]]))
LOGITS_T = tf.math.log(tf.constant([[[0.5, 0.4, 0.1], [0.1, 0.2, 0.7]], [[0.3, 0.4, 0.3], [0.2, 0.2, 0.6]]]))
CATEGORICAL = {
    "logits_tm1": LOGITS_TM1,
    "a_tm1": tf.constant([1, 0]),
    "r_t": tf.constant([0.5, -0.25]),
    "discount_t": tf.constant([0.5, 0.0]),
    "logits_t": LOGITS_T,
    "q_t_selector": tf.constant([[0.0, 1.0], [3.0, 2.0]]),
    "support": SUPPORT,
}


def test_categorical_q_learning_by_hand():
    found = losses.categorical_q_learning(**CATEGORICAL)
    # Action 1 at s_t: 0.1, 0.2, 0.7 at 0.5 + 0.5 * (-1, 0, 1) = 0, 0.5, 1. Terminal: all at -0.25.
    first, second = [0, 0.1 + 0.5 * 0.2, 0.5 * 0.2 + 0.7], [0.25, 0.75, 0]
    expected = [
        sum(p * np.log(p / q) for p, q in zip(target, online, strict=True) if p)
        for target, online in ((first, [0.6, 0.3, 0.1]), (second, [0.1, 0.1, 0.8]))
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_gradient_of_categorical_q_learning_is_that_of_the_cross_entropy_and_reaches_no_target():
    sources = [value for name, value in CATEGORICAL.items() if name not in ("a_tm1", "support")]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        total = tf.reduce_sum(losses.categorical_q_learning(**CATEGORICAL))
    of_logits, *others = tape.gradient(total, sources)
    expected = np.zeros((2, 2, 3))  # softmax less target, for the action taken
    expected[0, 1] = np.array([0.6, 0.3, 0.1]) - [0, 0.2, 0.8]
    expected[1, 0] = np.array([0.1, 0.1, 0.8]) - [0.25, 0.75, 0]
    np.testing.assert_allclose(of_logits, expected, atol=1e-6)
    assert others == [None] * 4


@pytest.mark.parametrize("name", CATEGORICAL)
@pytest.mark.parametrize("change", [lambda x: x[0], lambda x: x[..., None]], ids=["rank too low", "rank too high"])
def test_wrong_rank_of_categorical_q_learning_is_refused(name, change):
    given = CATEGORICAL[name]
    with pytest.raises(ValueError, match=f"rank {change(given).shape.rank}, not {given.shape.rank}"):
        losses.categorical_q_learning(**(CATEGORICAL | {name: change(given)}))
