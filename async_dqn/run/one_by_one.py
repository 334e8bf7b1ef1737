"""Predictions for each environment alone, in threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from async_dqn.data.experience import Evaluate, Outputs


class OneByOne:
    """Asks for the outputs of each row [1, S, ...] in a thread of its own: what batched predictions are compared with.

    Args:
      evaluate: of any number of rows; called from several threads.
      num_rows: N.
    """

    def __init__(self, evaluate: Evaluate, num_rows: int):
        self._evaluate = evaluate
        self._threads = ThreadPoolExecutor(num_rows, "prediction")

    def __call__(self, stacked: np.ndarray) -> Outputs:
        rows = list(self._threads.map(self._evaluate, (stacked[n : n + 1] for n in range(len(stacked)))))
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
