"""Losses as pure, batch-first functions of tensors. B is the batch, A the number of actions."""

import tensorflow as tf


def _check(*pairs: tuple[tf.Tensor, int]) -> None:
    for tensor, rank in pairs:
        if tensor.shape.rank != rank:
            raise ValueError(
                f"{tensor.name if hasattr(tensor, 'name') else 'tensor'} has rank {tensor.shape.rank}, not {rank}"
            )


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


def q_learning(q_tm1: tf.Tensor, a_tm1: tf.Tensor, r_t: tf.Tensor, discount_t: tf.Tensor, q_t: tf.Tensor) -> tf.Tensor:
    """TD errors of Q-learning: r_t + discount_t * max_a q_t - q_tm1[a_tm1] (Watkins & Dayan 1992).

    Args:
      q_tm1: [B, A] values of the online network at s_tm1.
      a_tm1: [B] int32 actions.
      r_t: [B] rewards, over n steps where the transition is.
      discount_t: [B] discounts, 0 on termination.
      q_t: [B, A] values of the target network at s_t.

    Returns:
      [B] errors. No gradient reaches `q_t`.
    """
    return double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, q_t)


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
      q_tm1, a_tm1, r_t, discount_t, q_t: as in `q_learning`.
      q_t_selector: [B, A] values of the online network at s_t.

    Returns:
      [B] errors. No gradient reaches `q_t` or `q_t_selector`.
    """
    _check((q_tm1, 2), (a_tm1, 1), (r_t, 1), (discount_t, 1), (q_t, 2), (q_t_selector, 2))
    a_t = tf.argmax(q_t_selector, axis=1, output_type=tf.int32)  # [B]
    bootstrap = tf.gather(q_t, a_t, batch_dims=1)  # [B]
    target = tf.stop_gradient(r_t + discount_t * bootstrap)  # [B]
    return target - tf.gather(q_tm1, a_tm1, batch_dims=1)


def clip_by_global_norm(gradient: tf.Tensor, max_norm: float) -> tf.Tensor:
    """A flat gradient [P] scaled down to `max_norm` where its Euclidean norm is larger; 0 leaves it alone."""
    return tf.clip_by_norm(gradient, max_norm) if max_norm else gradient
