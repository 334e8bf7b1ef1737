"""What a version is: which gradients parameter servers take the mean of before one step of the optimizer, and how."""

from typing import NamedTuple

import tensorflow as tf


class Quorum(NamedTuple):
    """Which gradients a version is made of. Conditions are in graph form.

    In a synchronous run a version holds one gradient of each worker that is at work, all computed on the version
    before, less `backup_workers` that are not waited for (Chen et al. 2016, arXiv 1604.00981).

    Attributes:
      accumulate: so many gradients instead, whichever worker's and whatever they were computed on; 0: synchronous.
      backup_workers: of a synchronous run.
      max_norm: a mean with a larger norm, over all trained modules, is scaled down to this one; 0: never.
    """

    accumulate: int = 0
    backup_workers: int = 0
    max_norm: float = 0.0

    @property
    def is_synchronous(self) -> bool:
        """Whether a worker waits for the version that its gradient is in."""
        return not self.accumulate

    def may_enter(self, updates: tf.Tensor, computed_on: tf.Tensor, version: tf.Tensor) -> tf.Tensor:
        """Whether a gradient belongs to the open version.

        Args:
          updates: number of the last complete version.
          computed_on: that of the version that it was computed on.
          version: that of the version that its worker's last gradient is in.
        """
        if self.is_synchronous:
            return tf.equal(computed_on, updates) & (version <= updates)
        return tf.constant(True)

    def is_complete(self, gradients: tf.Tensor, is_lacking: tf.Tensor) -> tf.Tensor:
        """Whether the open version is complete.

        Args:
          gradients: how many are in it.
          is_lacking: [W] bool, the workers at work that have none in it.
        """
        if self.is_synchronous:
            return (gradients > 0) & (tf.math.count_nonzero(is_lacking) <= self.backup_workers)
        return gradients >= self.accumulate
