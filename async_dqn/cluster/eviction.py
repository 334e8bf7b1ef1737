"""Eviction: ps 0 ends the membership of lost workers, so that others may take the steps that these had claimed."""

import contextlib
import functools

import tensorflow as tf

from async_dqn.base.errors import Outage
from async_dqn.cluster.ledger import LedgerOperations, ledger_shape
from async_dqn.cluster.patient_session import OWN_PATIENCE, LostStep, PatientSession, run_again
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.store.base import MemberState


class Evictor:
    """Ends memberships in the ledger.

    Args:
      target, config: the server of ps 0, and the ConfigProto that it was built with.
    """

    def __init__(self, target: str, config: tf.compat.v1.ConfigProto, spec: ClusterSpec):
        shape = ledger_shape(spec.num_workers)
        with tf.Graph().as_default() as graph, tf.device("/job:ps/task:0"):
            ledger = tf.compat.v1.get_variable("ledger_0", shape, tf.int64, trainable=False, use_resource=True)
            operations = LedgerOperations(ledger)
            self._token = tf.compat.v1.placeholder(tf.int64, [])
            self._evict = [
                operations.leave(worker, self._token, MemberState.LOST) for worker in range(spec.num_workers)
            ]
        graph.finalize()
        self._left: set[tuple[int, int]] = set()  # workers and tokens whose memberships are still to be ended
        self._session = PatientSession(target, graph, config, [], OWN_PATIENCE)  # no server but its own

    def evict(self, worker: int, token: int) -> None:
        """Ends the membership of a worker, if it is still this process's, and if there is a ledger yet.

        Where that takes too long, as for a server that was frozen, the next `tick` tries again.
        """
        self._left.add((worker, token))
        self.tick()

    def tick(self) -> None:
        """Does what is left to do."""
        for worker, token in list(self._left):
            with contextlib.suppress(LostStep):
                with contextlib.suppress(Outage):
                    step = functools.partial(self._session.run, self._evict[worker], {self._token: token})
                    run_again(step, OWN_PATIENCE)
                self._left.remove((worker, token))
