"""The bailiff on ps 0: takes seats in the ledger back, so that others may take the steps claimed from there."""

import contextlib

import tensorflow as tf

from async_dqn.cluster.ledger import LedgerOperations, SeatState, initial_rows
from async_dqn.parameters import Counters


class Bailiff:
    """Frees the seats of lost workers.

    Args:
      target, config: the server of ps 0, and the ConfigProto that it was built with.
    """

    def __init__(self, target: str, config: tf.compat.v1.ConfigProto, num_workers: int):
        shape = initial_rows(num_workers, Counters(), 0, 0, []).shape
        with tf.Graph().as_default() as graph, tf.device("/job:ps/task:0"):
            ledger = tf.compat.v1.get_variable("ledger_0", shape, tf.int64, trainable=False, use_resource=True)
            operations = LedgerOperations(ledger)
            self._token = tf.compat.v1.placeholder(tf.int64, [])
            self._evict = [operations.leave(worker, self._token, SeatState.LOST) for worker in range(num_workers)]
        graph.finalize()
        self._session = tf.compat.v1.Session(target, graph=graph, config=config)

    def evict(self, worker: int, token: int) -> None:
        """Frees the seat of a worker, if this process of it still holds it, and if there is a ledger yet."""
        with contextlib.suppress(tf.errors.FailedPreconditionError, tf.errors.NotFoundError):
            self._session.run(self._evict[worker], {self._token: token})
