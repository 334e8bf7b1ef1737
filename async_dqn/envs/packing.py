"""One array of bytes for observations of several parts, so that replay and rollouts hold nothing but arrays."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Packing(NamedTuple):
    """What the bytes of an observation are, in this order.

    Attributes:
      mask: how many actions the mask of those that can be taken has, a byte each; 0: there is none.
      picture: the shape of the picture, of uint8; (): there is none.
      vector: how many float32 follow.
    """

    mask: int = 0
    picture: tuple[int, ...] = ()
    vector: int = 0

    @property
    def sizes(self) -> list[int]:
        """Bytes of each part."""
        return [self.mask, math.prod(self.picture) if self.picture else 0, 4 * self.vector]

    def pack(self, mask: np.ndarray, picture: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """The bytes [sum(sizes)] uint8 of one observation; a part that there is not is empty."""
        parts = np.asarray(mask, np.uint8), np.asarray(picture, np.uint8), np.asarray(vector, np.float32)
        return np.concatenate([np.ascontiguousarray(part).ravel().view(np.uint8) for part in parts])

    def vectors(self, observation: np.ndarray) -> np.ndarray:
        """The float32 [..., V] in observations [..., sum(sizes)]."""
        begin = sum(self.sizes[:2])
        return np.ascontiguousarray(observation[..., begin:]).view(np.float32)
