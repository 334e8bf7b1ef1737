"""The recurrent state of an agent: what it remembers of the episodes that it is in the middle of."""

import numpy as np

from async_dqn.data.experience import Evaluate, Outputs

HEAD = "recurrent_state"  # the output of the networks that is remembered


class RecurrentState:
    """Of N environments, a row each; nothing, for an agent without a recurrent state.

    Attributes:
      now: [N, M] float32, what is remembered where the environments stand. It is replaced and never written to.

    Args:
      num_envs: N.
      size: M; 0: the agent has none.
    """

    def __init__(self, num_envs: int, size: int):
        self.now = np.zeros((num_envs, size), np.float32)

    def evaluate(self, evaluate: Evaluate, stacked: np.ndarray) -> Outputs:
        """What the networks say of stacked observations [N, S, ...] by what is remembered."""
        return evaluate(stacked, self.now) if self.now.size else evaluate(stacked)

    def keep(self, outputs: Outputs) -> None:
        """A step was taken on these outputs."""
        if self.now.size:
            self.now = outputs[HEAD]

    def forget(self, rows: np.ndarray) -> None:
        """An episode begins in these rows: their numbers, or a mask [N] bool."""
        if self.now.size:
            self.now = forgotten(self.now, rows)

    def restore(self, now: np.ndarray) -> None:
        """Goes on with what `now` was once. Raises ValueError where its shape differs."""
        if now.shape != self.now.shape:
            raise ValueError(f"what is remembered has the shape {now.shape}, not {self.now.shape}")
        self.now = now


def forgotten(recurrent_state: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """What is left of it [N, M] where an episode begins in these rows: their numbers, or a mask [N] bool."""
    left = recurrent_state.copy()
    left[rows] = 0
    return left
