"""Done-queues: how a parameter server learns that it may end, and the workers that they should.

`server.join()` never returns. So every ps hosts a shared queue. Each worker puts heartbeats into it and, when it is
done, its exit code. A ps ends once no worker is left to wait for. A second queue works in the other direction: a ps
that is told to end puts an entry into it, and all workers look at its size. Queues are shared by name in graph mode
only. They need no initialisation, so they are there as soon as a restarted ps is.
"""

import contextlib
from typing import NamedTuple

import tensorflow as tf

from async_dqn.cluster.patient_session import OWN_PATIENCE, LostStep, PatientSession, run_again

ALIVE = -1  # the code of a worker that goes on


class Message(NamedTuple):
    """From a worker to a ps."""

    worker: int
    token: int  # of the process: a worker that is started again has another
    code: int  # ALIVE, or the exit code it ends with


def done_queue(ps: int) -> tf.queue.FIFOQueue:
    """The queue of messages to one ps, in the current graph."""
    with tf.device(f"/job:ps/task:{ps}"):
        # Room for the messages of minutes in which a ps stands still. The capacity does not depend on the number of
        # workers: a worker with another spec could not open the queue, and would go on without a lease.
        capacity = 100_000
        return tf.queue.FIFOQueue(capacity, [tf.int64], [[len(Message._fields)]], shared_name=f"done_queue_{ps}")


def stop_queue(ps: int) -> tf.queue.FIFOQueue:
    """The queue whose filling tells all workers to end, in the current graph."""
    with tf.device(f"/job:ps/task:{ps}"):
        return tf.queue.FIFOQueue(1_000, [tf.int32], [[]], shared_name=f"stop_queue_{ps}")


class PsQueues:
    """A ps's own end of its two queues.

    Args:
      target, config: its server, and the ConfigProto that it was built with.
      ps: which one it is.
    """

    def __init__(self, target: str, config: tf.compat.v1.ConfigProto, ps: int):
        with tf.Graph().as_default() as graph:
            queue = done_queue(ps)
            self._size, self._dequeue = queue.size(), queue.dequeue()
            self._enqueue_stop = stop_queue(ps).enqueue(1)
        graph.finalize()
        self._session = PatientSession(target, graph, config, [], OWN_PATIENCE)  # no server but its own

    def take(self) -> list[Message]:
        """The messages that have come in; where a step is lost, what is left of them comes with the next call."""
        messages: list[Message] = []
        with contextlib.suppress(LostStep):
            for _ in range(self._session.run(self._size)):
                messages.append(Message(*map(int, self._session.run(self._dequeue))))
        return messages

    def ask_to_stop(self) -> None:
        """Tells all workers to end, unless that takes too long."""
        with contextlib.suppress(LostStep):
            run_again(lambda: self._session.run(self._enqueue_stop), OWN_PATIENCE)
