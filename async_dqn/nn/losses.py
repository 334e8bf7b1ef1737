"""Losses as pure, batch-first functions of tensors. B is the batch, A the number of actions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf


def _check(*pairs: tuple[tf.Tensor, int]) -> None:
    for tensor, rank in pairs:
        if tensor.shape.rank != rank:
            raise ValueError(f"{getattr(tensor, 'name', 'tensor')} has rank {tensor.shape.rank}, not {rank}")


def huber(error: tf.Tensor, delta: float = 1.0) -> tf.Tensor:
    """Quadratic up to `delta`, linear beyond: its gradient is the error clipped to [-delta, delta].

    Args:
      error: float tensor of any shape.
      delta: where it turns linear.

    Returns:
      A tensor of the same shape (Huber 1964; "error clipping" in Mnih et al. 2015).
    """
    magnitude = tf.abs(error)
    quadratic = tf.minimum(magnitude, delta)
    return 0.5 * quadratic**2 + delta * (magnitude - quadratic)


def sarsa(
    q_tm1: tf.Tensor,
    a_tm1: tf.Tensor,
    r_t: tf.Tensor,
    discount_t: tf.Tensor,
    q_t: tf.Tensor,
    a_t: tf.Tensor,
) -> tf.Tensor:
    """TD errors that bootstrap from a given action (Rummery & Niranjan 1994); from the best one it is Q-learning.

    Args:
      q_tm1: [B, A] values of the online network at s_tm1.
      a_tm1: [B] int32 actions.
      r_t: [B] rewards, over n steps where the transition is.
      discount_t: [B] discounts, 0 on termination.
      q_t: [B, A] values of the target network at s_t.
      a_t: [B] int32 actions at s_t.

    Returns:
      [B] errors. No gradient reaches `q_t`.
    """
    _check((q_tm1, 2), (a_tm1, 1), (r_t, 1), (discount_t, 1), (q_t, 2), (a_t, 1))
    bootstrap = tf.gather(q_t, a_t, batch_dims=1)  # [B]
    target = tf.stop_gradient(r_t + discount_t * bootstrap)  # [B]
    return target - tf.gather(q_tm1, a_tm1, batch_dims=1)


def double_q_learning(
    q_tm1: tf.Tensor,
    a_tm1: tf.Tensor,
    r_t: tf.Tensor,
    discount_t: tf.Tensor,
    q_t: tf.Tensor,
    q_t_selector: tf.Tensor,
) -> tf.Tensor:
    """TD errors of double Q-learning: `q_t_selector` chooses the action, `q_t` values it (van Hasselt et al. 2016).

    Args:
      q_tm1, a_tm1, r_t, discount_t, q_t: as in `sarsa`.
      q_t_selector: [B, A] values of the online network at s_t.

    Returns:
      [B] errors. No gradient reaches `q_t` or `q_t_selector`.
    """
    _check((q_tm1, 2), (a_tm1, 1), (r_t, 1), (discount_t, 1), (q_t, 2), (q_t_selector, 2))
    a_t = tf.argmax(q_t_selector, axis=1, output_type=tf.int32)  # [B]
    return sarsa(q_tm1, a_tm1, r_t, discount_t, q_t, a_t)


def categorical_projection(atoms: tf.Tensor, probabilities: tf.Tensor, support: tf.Tensor) -> tf.Tensor:
    """A distribution over any atoms, brought to a fixed support of equal distances (Bellemare et al. 2017, equation 7).

    The probability of an atom goes to the two neighbours that it lies between, more of it to the nearer one. That of an
    atom outside the support goes to its end.

    Args:
      atoms: [B, K] where the probabilities lie.
      probabilities: [B, K].
      support: [M] ascending, at least two.

    Returns:
      [B, M] probabilities.
    """
    _check((atoms, 2), (probabilities, 2), (support, 1))
    clipped = tf.clip_by_value(atoms, support[0], support[-1])  # [B, K]
    distance = tf.abs(clipped[:, None, :] - support[None, :, None]) / (support[1] - support[0])  # [B, M, K]
    return tf.reduce_sum(tf.maximum(1 - distance, 0) * probabilities[:, None, :], axis=2)


def kl_divergence(target: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """KL(target || softmax(logits)) in nats: the cross-entropy, less what of it no logits could avoid.

    Its gradient by the logits is that of the cross-entropy.

    Args:
      target: [B, K] probabilities.
      logits: [B, K].

    Returns:
      [B] divergences, at least 0. No gradient reaches `target`.
    """
    _check((target, 2), (logits, 2))
    target = tf.stop_gradient(target)
    return tf.reduce_sum(tf.math.xlogy(target, target) - target * tf.nn.log_softmax(logits), axis=1)


def categorical_q_learning(
    logits_tm1: tf.Tensor,
    a_tm1: tf.Tensor,
    r_t: tf.Tensor,
    discount_t: tf.Tensor,
    logits_t: tf.Tensor,
    q_t_selector: tf.Tensor,
    support: tf.Tensor,
) -> tf.Tensor:
    """Losses of C51: how far the distribution of returns is from its projected Bellman update (Bellemare et al. 2017,
    algorithm 1; with the priorities of Hessel et al. 2018, which these are).

    Args:
      logits_tm1: [B, A, K] of the online network at s_tm1.
      a_tm1, r_t, discount_t: [B] as in `double_q_learning`.
      logits_t: [B, A, K] of the target network at s_t.
      q_t_selector: [B, A] values that choose the action at s_t.
      support: [K] the returns that the atoms stand for.

    Returns:
      [B] divergences. No gradient reaches `logits_t` or `q_t_selector`.
    """
    _check((logits_tm1, 3), (a_tm1, 1), (r_t, 1), (discount_t, 1), (logits_t, 3), (q_t_selector, 2), (support, 1))
    a_t = tf.argmax(q_t_selector, axis=1, output_type=tf.int32)  # [B]
    probabilities = tf.nn.softmax(tf.gather(logits_t, a_t, batch_dims=1))  # [B, K]
    atoms = r_t[:, None] + discount_t[:, None] * support  # [B, K]
    target = categorical_projection(atoms, probabilities, support)  # [B, K]
    return kl_divergence(target, tf.gather(logits_tm1, a_tm1, batch_dims=1))


def log_probability(logits: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
    """log pi(a|s) of a softmax policy.

    Args:
      logits: [B, A] of the policy.
      action: [B] int32.

    Returns:
      [B] logarithms of the probabilities of the actions.
    """
    _check((logits, 2), (action, 1))
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=action, logits=logits)


def entropy(logits: tf.Tensor) -> tf.Tensor:
    """Entropy of a softmax policy in nats: 0 where one action is certain, log A where all are equally likely.

    A loss subtracts it, so that the policy keeps exploring (Mnih et al. 2016, section 4).

    Args:
      logits: [B, A] of the policy.

    Returns:
      [B] entropies.
    """
    _check((logits, 2))
    log_probabilities = tf.nn.log_softmax(logits)  # [B, A]
    return -tf.reduce_sum(tf.exp(log_probabilities) * log_probabilities, axis=1)


def policy_gradient(log_prob: tf.Tensor, advantage: tf.Tensor) -> tf.Tensor:
    """The policy loss of advantage actor-critics, whose negated gradient is that of Mnih et al. 2016, algorithm S3.

    Args:
      log_prob: [B] log-probabilities of the actions under the policy.
      advantage: [B] advantages of the actions.

    Returns:
      [B] losses. No gradient reaches `advantage`.
    """
    _check((log_prob, 1), (advantage, 1))
    return -log_prob * tf.stop_gradient(advantage)


def gaussian_log_probability(mean: tf.Tensor, log_std: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
    """log pi(a|s) of a policy of D independent normal distributions.

    Args:
      mean: [B, D] of the policy.
      log_std: [B, D] logarithms of its standard deviations.
      action: [B, D] float32.

    Returns:
      [B] logarithms of the probability densities of the actions.
    """
    _check((mean, 2), (log_std, 2), (action, 2))
    errors = (action - mean) * tf.exp(-log_std)  # [B, D]
    return tf.reduce_sum(-0.5 * errors**2 - log_std - 0.5 * math.log(2 * math.pi), axis=1)


def gaussian_entropy(log_std: tf.Tensor) -> tf.Tensor:
    """Differential entropy of D independent normal distributions in nats; negative where they are narrow.

    Args:
      log_std: [B, D] logarithms of the standard deviations.

    Returns:
      [B] entropies.
    """
    _check((log_std, 2))
    return tf.reduce_sum(log_std + 0.5 * math.log(2 * math.pi * math.e), axis=1)


def clipped_surrogate(log_prob: tf.Tensor, old_log_prob: tf.Tensor, advantage: tf.Tensor, clip: float) -> tf.Tensor:
    """The policy loss of PPO: the negated objective of Schulman et al. 2017, equation 7.

    Args:
      log_prob: [B] log-probabilities of the actions under the policy that is trained.
      old_log_prob: [B] the same under the policy that acted.
      advantage: [B] advantages of the actions.
      clip: the ratio of the two probabilities earns nothing beyond 1 - clip and 1 + clip.

    Returns:
      [B] losses. No gradient reaches `old_log_prob` or `advantage`.
    """
    _check((log_prob, 1), (old_log_prob, 1), (advantage, 1))
    advantage = tf.stop_gradient(advantage)
    ratio = tf.exp(log_prob - tf.stop_gradient(old_log_prob))  # [B]
    return -tf.minimum(ratio * advantage, tf.clip_by_value(ratio, 1 - clip, 1 + clip) * advantage)


def clip_share(log_prob: tf.Tensor, old_log_prob: tf.Tensor, clip: float) -> tf.Tensor:
    """The share of a minibatch whose probability ratio is outside [1 - clip, 1 + clip]: a scalar in [0, 1].

    Args:
      log_prob, old_log_prob, clip: as in `clipped_surrogate`.
    """
    _check((log_prob, 1), (old_log_prob, 1))
    ratio = tf.exp(log_prob - old_log_prob)  # [B]
    return tf.reduce_mean(tf.cast(tf.abs(ratio - 1) > clip, tf.float32))


def sampled_kl(log_prob: tf.Tensor, old_log_prob: tf.Tensor) -> tf.Tensor:
    """How far a policy has moved from the one that acted: an estimate of KL(old | new), at least 0, of a minibatch.

    It is mean(ratio - 1 - log(ratio)), which is unbiased and varies little (J. Schulman, "Approximating KL divergence",
    2020, k3).

    Args:
      log_prob, old_log_prob: as in `clipped_surrogate`.
    """
    _check((log_prob, 1), (old_log_prob, 1))
    log_ratio = log_prob - old_log_prob  # [B]
    return tf.reduce_mean(tf.exp(log_ratio) - 1 - log_ratio)


def squared_error(value: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """Half the squared error of a value (Schulman et al. 2017, equation 9, halved).

    Args:
      value: [B] values of the network.
      target: [B] what they should be.

    Returns:
      [B] losses. No gradient reaches `target`.
    """
    _check((value, 1), (target, 1))
    return 0.5 * (value - tf.stop_gradient(target)) ** 2


def explained_variance(value: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    """The share of the target's variance that the value explains: 1 - Var(target - value) / Var(target).

    Args:
      value, target: as in `squared_error`.

    Returns:
      A scalar: 1 for a perfect value, 0 for a constant one, negative for one that is worse than a constant. It is 0
      where the target does not vary.
    """
    _check((value, 1), (target, 1))
    variance = tf.math.reduce_variance(target)
    unexplained = tf.math.divide_no_nan(tf.math.reduce_variance(target - value), variance)
    return tf.where(variance > 0, 1 - unexplained, 0.0)


def normalize(advantage: tf.Tensor) -> tf.Tensor:
    """Advantages [B] with mean 0 and standard deviation 1 over the minibatch, as in OpenAI baselines' PPO."""
    _check((advantage, 1))
    return (advantage - tf.reduce_mean(advantage)) / (tf.math.reduce_std(advantage) + 1e-8)


def weighted_mean(value: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """The mean of values [B] by weights [B], none of them negative: a scalar, 0 where all weights are 0."""
    _check((value, 1), (weight, 1))
    return tf.math.divide_no_nan(tf.reduce_sum(weight * value), tf.reduce_sum(weight))


def relative_errors(value: tf.Tensor, target: tf.Tensor, deviation: tf.Tensor) -> tf.Tensor:
    """How wrong vectors are, in units of how much each number varies, so that all count alike.

    Up to one standard deviation errors are squared, beyond it twice the Huber loss is linear: a rare large change does
    not undo what is known of all others.

    Args:
      value: [B, D] of the network.
      target: [B, D] what they should be.
      deviation: [D], above 0: standard deviations over many minibatches. In those of this one alone a rare value would
        make its own unit large.

    Returns:
      [B] means over the D numbers. No gradient reaches `target`.
    """
    _check((value, 2), (target, 2), (deviation, 1))
    return tf.reduce_mean(2 * huber((value - tf.stop_gradient(target)) / deviation), axis=1)


def clip_together(gradients: Sequence[tf.Tensor], max_norm: float) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Flat gradients [P_i] scaled by one factor, so that their common Euclidean norm is at most `max_norm`.

    Args:
      gradients: one for each module.
      max_norm: 0 leaves them alone.

    Returns:
      The gradients, and the norm that they had; NaN where nobody asked for it.
    """
    _check(*((gradient, 1) for gradient in gradients))
    if not max_norm:
        return list(gradients), tf.constant(math.nan)
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(gradient * gradient) for gradient in gradients]))
    return [gradient * max_norm / tf.maximum(norm, max_norm) for gradient in gradients], norm
