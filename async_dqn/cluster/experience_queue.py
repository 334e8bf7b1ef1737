"""Queues between processes on ps 0.

Of each, a FIFOQueue and a table of the last item that each sender has put in, both shared by name, so that they need no
initialisation and are there as soon as a restarted ps is. A lock makes one step of: is it new, is there room, put it
in. So an item that is sent again, because the answer was lost, is in the queue once; and nobody ever blocks on the ps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.cluster.patient_session import PatientSession, patience_within, run_patiently
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.data.queue import Item

_CAPACITY = 1_000_000  # of the queue itself, which never gets that full: those that open it must agree on it
_RECEIVER = -1  # the receiver's row in the table


class RemoteQueue:
    """One process's end of a queue.

    Args:
      name: of the queue; it has any number of senders, and one receiver.
      target, config: of this worker's server.
      worker: the sender.
      size: items that may be in the queue.
      membership: (generation, joins) of this process in the ledger: what it puts in is of this stream.
      deadline: seconds that anything may take before `NoAnswer` is raised.
      should_stop: whether this process is to end; then there is no waiting for what does not answer.
    """

    def __init__(
        self,
        target: str,
        config: tf.compat.v1.ConfigProto,
        spec: ClusterSpec,
        *,
        name: str = "experience",
        worker: int,
        size: int,
        membership: Callable[[], tuple[int, int]],
        deadline: float,
        should_stop: Callable[[], bool] = lambda: False,
    ):
        self._worker, self._membership, self._deadline = worker, membership, deadline
        self._bound, self._is_full, self._is_empty = size, False, False  # as far as this end knows
        with tf.Graph().as_default() as graph, tf.device("/job:ps/task:0"):
            self._order = tf.compat.v1.placeholder(tf.int64, [3])  # generation, joins, number
            self._data = tf.compat.v1.placeholder(tf.uint8, [None])
            queue = tf.queue.FIFOQueue(_CAPACITY, [tf.int64, tf.uint8], shared_name=name)
            lock = tf.CriticalSection(name="experience_lock", shared_name=f"{name}_lock")
            last = _Table(f"{name}_senders")
            self._put = lock.execute(lambda: self._build_put(queue, last, size))
            self._take = lock.execute(lambda: self._build_take(queue, last))
            self._size = queue.size()
        graph.finalize()
        self._session = PatientSession(target, graph, config, spec.ps[:1], patience_within(deadline), should_stop)

    def _build_put(self, queue: tf.queue.FIFOQueue, last: "_Table", size: int) -> tf.Tensor:
        """Whether there is nothing to wait for: it was put in, or is not new."""
        is_new = _is_less(last.get(self._worker), self._order)
        has_room = queue.size() < size

        def enqueue() -> tf.Tensor:
            header = tf.concat([[tf.constant(self._worker, tf.int64)], self._order], 0)
            # Of a step that is cut off in between, the item is lost; the other way round it would come twice.
            with tf.control_dependencies([last.set(self._worker, self._order)]):
                put = queue.enqueue([header, self._data])
            with tf.control_dependencies([put]):
                return tf.constant(True)

        return tf.cond(is_new & has_room, enqueue, lambda: tf.logical_not(is_new))

    def _build_take(self, queue: tf.queue.FIFOQueue, last: "_Table") -> tuple[tf.Tensor, tf.Tensor]:
        """Header [4] and data of an item; a header of -1 where there is none."""
        is_receiver = tf.logical_not(_is_less(self._order, last.get(_RECEIVER)))
        nothing = (tf.fill([4], tf.constant(-1, tf.int64)), tf.zeros([0], tf.uint8))

        def dequeue() -> tuple[tf.Tensor, tf.Tensor]:
            with tf.control_dependencies([last.set(_RECEIVER, self._order)]):
                header, data = queue.dequeue()
            return tf.ensure_shape(header, [4]), tf.ensure_shape(data, [None])

        return tf.cond(is_receiver & (queue.size() > 0), dequeue, lambda: nothing)

    def put(self, number: int, data: np.ndarray) -> bool:
        if self._is_full and self.size() >= self._bound:  # what is put in is sent to the ps even if there is no room
            return False
        order = [*self._membership(), number]
        self._is_full = not self._run(self._put, {self._order: order, self._data: data})
        return not self._is_full

    def take(self) -> Item | None:
        if self._is_empty and not self.size():  # which asks for less than half of the work
            return None
        membership = self._membership()
        while True:
            header, data = self._run(self._take, {self._order: [*membership, 0]})
            sender, generation, joins, number = map(int, header)
            self._is_empty = sender < 0
            if self._is_empty:
                return None
            if generation == membership[0]:  # else its steps are not in the counts of the run
                return Item(sender, (generation, joins), number, data)

    def size(self) -> int:
        """Items in the queue."""
        return int(self._run(self._size))

    def _run(self, fetches: Any, feed: dict[tf.Tensor, Any] | None = None) -> Any:
        return run_patiently(lambda: self._session.run(fetches, feed), self._deadline, self._session.addresses)


class Mailbox:
    """Takes from one queue, and puts into others, each of which is bounded by itself.

    Args:
      inbox: nobody else takes from it.
      outboxes: each gets all that is put in.
    """

    def __init__(self, inbox: RemoteQueue, outboxes: Sequence[RemoteQueue]):
        self.take = inbox.take
        self._outboxes = outboxes

    def put(self, number: int, data: np.ndarray) -> bool:
        """Puts an item into all; False where one of them has no room for it."""
        return all([outbox.put(number, data) for outbox in self._outboxes])


class _Table:
    """int64 keys -> [3] int64, on the ps; what was never set is -1."""

    def __init__(self, name: str) -> None:
        self._handle = tf.raw_ops.MutableHashTableOfTensorsV2(
            key_dtype=tf.int64, value_dtype=tf.int64, value_shape=[3], shared_name=name
        )

    def get(self, key: int) -> tf.Tensor:
        unknown = tf.fill([3], tf.constant(-1, tf.int64))
        found = tf.raw_ops.LookupTableFindV2(
            table_handle=self._handle, keys=tf.constant([key], tf.int64), default_value=unknown
        )
        return tf.ensure_shape(found[0], [3])

    def set(self, key: int, order: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.LookupTableInsertV2(
            table_handle=self._handle, keys=tf.constant([key], tf.int64), values=order[None]
        )


def _is_less(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Whether [3] comes before [3], by the first component that differs."""
    less, equal = tf.unstack(a < b), tf.unstack(tf.equal(a, b))
    return less[0] | (equal[0] & (less[1] | (equal[1] & less[2])))
