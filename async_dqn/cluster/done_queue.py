"""Done-queues: how a parameter server learns that it may end.

`server.join()` never returns. So every ps hosts a shared queue, every worker puts its task index into all of them when
it is done, and a ps ends once it has heard from every worker. Queues are shared by name in graph mode only.
"""

import concurrent.futures
from collections.abc import Callable

import tensorflow as tf

from async_dqn.background import Background


def _queue(ps: int, num_workers: int) -> tf.queue.FIFOQueue:
    with tf.device(f"/job:ps/task:{ps}"):
        # Twice the workers: one that is restarted after it signalled must not block on a full queue.
        return tf.queue.FIFOQueue(2 * num_workers, [tf.int32], [[]], shared_name=f"done_queue_{ps}")


def signal_done(
    target: str,
    config: tf.compat.v1.ConfigProto,
    *,
    task_index: int,
    num_ps: int,
    num_workers: int,
    deadline: float,
) -> list[int]:
    """Tells every ps that worker `task_index` is done. Gives the indices of those that did not answer in time."""
    calls = [
        Background(f"done-{ps}").submit(_signal, target, config, task_index, ps, num_workers) for ps in range(num_ps)
    ]
    concurrent.futures.wait(calls, timeout=deadline)
    return [ps for ps, call in enumerate(calls) if not call.done() or call.exception()]


def _signal(target: str, config: tf.compat.v1.ConfigProto, task_index: int, ps: int, num_workers: int) -> None:
    """Never returns where the ps is dead: opening a session has no deadline that TensorFlow keeps to."""
    alone = tf.compat.v1.ConfigProto.FromString(config.SerializeToString())
    # Only the ps that is spoken to, so that a dead one does not keep the living ones from hearing.
    alone.device_filters[:] = [f"/job:ps/task:{ps}", *(f for f in config.device_filters if f != "/job:ps")]
    with tf.Graph().as_default() as graph:
        enqueue = _queue(ps, num_workers).enqueue(task_index)
        with tf.compat.v1.Session(target, graph=graph, config=alone) as session:
            session.run(enqueue)


def wait_for_workers(
    target: str,
    config: tf.compat.v1.ConfigProto,
    *,
    ps: int,
    num_workers: int,
    wait: Callable[[float], bool],
) -> set[int]:
    """Blocks until every worker has signalled, or `wait(seconds)` says to stop. Gives the workers heard from."""
    heard: set[int] = set()
    with tf.Graph().as_default() as graph:
        queue = _queue(ps, num_workers)
        size, dequeue = queue.size(), queue.dequeue()
        with tf.compat.v1.Session(target, graph=graph, config=config) as session:
            stop = False
            while True:
                for _ in range(session.run(size)):
                    heard.add(int(session.run(dequeue)))
                if stop or len(heard) == num_workers:
                    return heard
                stop = wait(0.1)
