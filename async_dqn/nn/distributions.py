"""What a policy draws its actions from: a softmax over discrete actions, a Gaussian over continuous ones.

The functions that act take NumPy arrays of N environments, and `log_prob_of` takes those of a rollout too: `...` below
is [N] or [T, N]. Those that a loss needs take tensors [B, ...].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import tensorflow as tf

from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn import losses, policies
from async_dqn.nn.networks import Head

Outputs = Mapping[str, np.ndarray]
Tensors = Mapping[str, "tf.Tensor"]  # as text: what needs no TensorFlow imports this too


class Distribution(Protocol):
    """Actions given the outputs of a network.

    Attributes:
      heads: what the network needs for it; each starts nearly the same for every observation, so that no action is
        ruled out before it was tried.
      meanings: one line on each head.
    """

    heads: Mapping[str, Head]
    meanings: Mapping[str, str]

    def sample(self, outputs: Outputs, rng: np.random.Generator) -> np.ndarray:
        """Actions for N observations; the amount that is drawn from `rng` does not depend on the outputs."""

    def mode(self, outputs: Outputs) -> np.ndarray:
        """The most likely actions for N observations."""

    def log_prob_of(self, outputs: Outputs, action: np.ndarray) -> np.ndarray:
        """Log-probabilities [...] of actions, in NumPy: of the policy that acted."""

    def log_prob(self, outputs: Tensors, action: tf.Tensor) -> tf.Tensor:
        """Log-probabilities [B] of actions, in TensorFlow: of the policy that is trained."""

    def entropy(self, outputs: Tensors) -> tf.Tensor:
        """Entropies [B] in nats."""


def make_distribution(spec: EnvironmentSpec) -> Distribution:
    """The distribution that fits the actions of an environment."""
    return Gaussian(*spec.action_shape) if spec.is_continuous else Categorical(spec.num_actions)


class Categorical:
    """Softmax of "logits" [..., A]. Actions are [...] int32."""

    def __init__(self, num_actions: int):
        self.heads: Mapping[str, Head] = {"logits": Head(num_actions, 0.01)}
        self.meanings: Mapping[str, str] = {"logits": "of the policy"}

    def sample(self, outputs: Outputs, rng: np.random.Generator) -> np.ndarray:
        return policies.sample_softmax(outputs["logits"], rng)

    def mode(self, outputs: Outputs) -> np.ndarray:
        return policies.greedy(outputs["logits"])

    def log_prob_of(self, outputs: Outputs, action: np.ndarray) -> np.ndarray:
        log_probs = policies.log_softmax(outputs["logits"])  # [..., A]
        return np.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]

    def log_prob(self, outputs: Tensors, action: tf.Tensor) -> tf.Tensor:
        return losses.log_probability(outputs["logits"], action)

    def entropy(self, outputs: Tensors) -> tf.Tensor:
        return losses.entropy(outputs["logits"])


class Gaussian:
    """Independent normal distributions with "mean" and "log_std", both [..., D]. Actions are [..., D] float32.

    The standard deviation is the same for all observations, as in Schulman et al. 2017, section 6.1. Actions are not
    bounded: -1 to 1 is what stands for the bounds of the environment, which clips what lies beyond.
    """

    def __init__(self, size: int):
        self.heads: Mapping[str, Head] = {"mean": Head(size, 0.01), "log_std": Head(size, constant=True)}
        self.meanings: Mapping[str, str] = {
            "mean": "of the policy; -1 and 1 stand for the bounds of an action",
            "log_std": "the logarithm of its standard deviation",
        }

    def sample(self, outputs: Outputs, rng: np.random.Generator) -> np.ndarray:
        mean, std = outputs["mean"], np.exp(outputs["log_std"])
        return (mean + std * rng.standard_normal(mean.shape)).astype(np.float32)

    def mode(self, outputs: Outputs) -> np.ndarray:
        return outputs["mean"].astype(np.float32)

    def log_prob_of(self, outputs: Outputs, action: np.ndarray) -> np.ndarray:
        errors = (action - outputs["mean"]) * np.exp(-outputs["log_std"])  # [..., D]
        densities = -0.5 * errors**2 - outputs["log_std"] - 0.5 * math.log(2 * math.pi)
        return densities.sum(axis=-1, dtype=np.float32)

    def log_prob(self, outputs: Tensors, action: tf.Tensor) -> tf.Tensor:
        return losses.gaussian_log_probability(outputs["mean"], outputs["log_std"], action)

    def entropy(self, outputs: Tensors) -> tf.Tensor:
        return losses.gaussian_entropy(outputs["log_std"])
