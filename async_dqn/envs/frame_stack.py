"""The last S observations of each environment: what the agent acts on."""

import numpy as np
import numpy.typing as npt


class FrameStack:
    """Stacks the newest S observations of N environments, oldest first.

    At the start of an episode the earlier frames are zeros (Mnih et al. 2015), as in what `Replay` returns.
    Every call returns a new array, so what was returned before is never written again.

    Args:
        num_envs: N.
        stack: S, at least 1.
        observation_shape: shape of one observation, `...` below.
        dtype: type of one observation.

    Raises:
        ValueError: if N or S is below 1.
    """

    def __init__(self, num_envs: int, stack: int, observation_shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        if num_envs < 1 or stack < 1:
            raise ValueError(f"num_envs and stack must be at least 1, got {num_envs} and {stack}")
        self._stacked = np.zeros((num_envs, stack, *observation_shape), dtype)  # [N, S, ...]

    def reset(self, observation: np.ndarray) -> np.ndarray:
        """Start an episode in every environment: `observation` [N, ...] -> stacked [N, S, ...]."""
        return self.push(observation, np.ones(len(self._stacked), bool))

    def push(self, observation: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Append the newest observation of every environment.

        Args:
            observation: [N, ...].
            first: [N] bool, whether it is the first one of an episode.

        Returns:
            [N, S, ...], oldest first.

        Raises:
            ValueError: if a shape is not the one given at construction.
        """
        self._stacked = self.peek(observation, first)
        return self._stacked

    def peek(self, observation: np.ndarray, first: np.ndarray) -> np.ndarray:
        """What `push` would return, without a change."""
        expected = (self._stacked.shape[0], *self._stacked.shape[2:])
        if np.shape(observation) != expected or np.shape(first) != expected[:1]:
            raise ValueError(
                f"observation {np.shape(observation)} and first {np.shape(first)} "
                f"must have shapes {expected} and {expected[:1]}"
            )
        stacked = np.empty_like(self._stacked)
        stacked[:, :-1] = self._stacked[:, 1:]
        stacked[first, :-1] = 0
        stacked[:, -1] = observation
        return stacked

    def restore(self, stacked: np.ndarray) -> np.ndarray:
        """Go on from what `push` returned once; gives it back. Raises ValueError where its shape or type differs."""
        if stacked.shape != self._stacked.shape or stacked.dtype != self._stacked.dtype:
            raise ValueError(f"stacked {stacked.shape} {stacked.dtype} must be {self._stacked.shape}")
        self._stacked = stacked
        return stacked
