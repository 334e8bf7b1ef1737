"""A binary tree of sums over non-negative leaves: finds a leaf in proportion to its value in logarithmic time."""

import numpy as np


class SumTree:
    """Leaves in a row, each at least 0, and above each two neighbours their sum, up to the total.

    Many leaves are set or found at once; the only loop is over the levels. Every inner node is the sum of its two
    children as they are now, so the tree follows from its leaves to the last bit, whatever led there.

    Args:
      size: number of leaves. All start at 0.

    Raises:
      ValueError: there would be none.
    """

    def __init__(self, size: int):
        if size < 1:
            raise ValueError(f"a sum tree has at least one leaf, not {size}")
        self._size = size
        self._levels = (size - 1).bit_length()
        self._first = 1 << self._levels  # where leaves begin; node i has the children 2 i and 2 i + 1, the root is 1
        self._nodes = np.zeros(2 * self._first)  # float64

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._nodes[1])

    @property
    def values(self) -> np.ndarray:
        """All leaves [size] float64, to read."""
        view = self._nodes[self._first : self._first + self._size]
        view.flags.writeable = False
        return view

    def set(self, leaves: np.ndarray, values: np.ndarray | float) -> None:
        """Sets leaves [M], in 0 ... size - 1, to values [M] or to one; of a leaf that comes twice, the last one counts.

        Raises:
          ValueError: a value is negative or not finite.
          IndexError: there is no such leaf.
        """
        if not (np.isfinite(values) & (np.asarray(values) >= 0)).all():
            raise ValueError(f"values of a sum tree must be finite and at least 0, not {values}")
        if leaves.size and not 0 <= leaves.min() <= leaves.max() < self._size:
            raise IndexError(f"leaves {leaves.min()} ... {leaves.max()} are not all in 0 ... {self._size - 1}")
        nodes = self._first + leaves
        self._nodes[nodes] = values
        for _ in range(self._levels):
            nodes = nodes >> 1
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, targets: np.ndarray) -> np.ndarray:
        """For each target [M] in [0, total) the leaf [M] int64 at which the sum of leaves from the left exceeds it.

        So a leaf is found by uniform targets in proportion to its value, and one of 0 never, unless all are.
        """
        nodes = np.ones(len(targets), np.int64)
        for _ in range(self._levels):
            nodes = 2 * nodes
            left = self._nodes[nodes]
            # The second condition counts where rounding left a target at the end of all that is above 0.
            is_right = (targets >= left) & (self._nodes[nodes + 1] > 0)
            targets = np.where(is_right, targets - left, targets)
            nodes += is_right
        return nodes - self._first

    def check_valid(self) -> None:
        """Assert every invariant; looks at the whole tree."""
        children = self._nodes[2:].reshape(-1, 2)
        np.testing.assert_array_equal(self._nodes[1 : self._first], children.sum(axis=1), "an inner node is no sum")
        assert self._nodes[0] == 0 and not self._nodes[self._first + self._size :].any(), (
            "there is more than the leaves"
        )
        assert np.isfinite(self._nodes).all() and (self._nodes >= 0).all(), "a node is negative or not finite"
