"""Starts this process's TensorFlow server, with its GPU, thread and device-filter options."""

import tensorflow as tf

from async_dqn.base.errors import RunError
from async_dqn.cluster import proxies, shared_memory
from async_dqn.cluster.spec import ClusterSpec


def session_config(
    job: str, task_index: int, num_threads: int, gpu_options: tf.compat.v1.GPUOptions | None = None
) -> tf.compat.v1.ConfigProto:
    """The one ConfigProto for a task's server and for its sessions.

    GPU options belong here, because a server takes its memory before any session is opened. No server needs a card of
    its own all the same: a ps never touches one, and a worker computes its gradients on the eager side. Device filters
    keep a worker's session from waiting for, or dying with, the other workers, and a ps's from any other process.
    """
    return tf.compat.v1.ConfigProto(
        device_count={"GPU": 0},
        gpu_options=gpu_options,
        device_filters=[*(["/job:ps"] if job == "worker" else []), f"/job:{job}/task:{task_index}"],
        intra_op_parallelism_threads=num_threads,
        inter_op_parallelism_threads=2,
    )


def start_server(
    spec: ClusterSpec, job: str, task_index: int, config: tf.compat.v1.ConfigProto
) -> tf.distribute.Server:
    """Starts the gRPC server of one task. Raises RunError where its port cannot be had."""
    proxies.bypass(spec)
    if job == "ps":
        shared_memory.serve()
    try:
        return tf.distribute.Server(spec.to_dict(), job_name=job, task_index=task_index, config=config)
    except tf.errors.OpError as error:
        address = spec.address(job, task_index)
        raise RunError(f"{job} {task_index} cannot listen on {address}: {error.message}") from error


def parameter_server_strategy(spec: ClusterSpec, task_index: int) -> tf.distribute.Strategy:
    """The strategy of one worker: puts variables on the ps, runs computation on the worker itself.

    The graph-mode strategy, not the one of TensorFlow 2: there, one coordinator dispatches functions and an environment
    or a replay cannot live in a worker.
    """
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec.to_dict()),
        task_type="worker",
        task_id=task_index,
        num_accelerators={"GPU": 0},
    )
    return tf.compat.v1.distribute.experimental.ParameterServerStrategy(resolver)
