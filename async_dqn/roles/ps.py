"""A parameter server: holds its shard until every worker has signalled its done-queue, then ends by itself."""

import threading

from async_dqn.cluster import done_queue, server
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.config import Config


def run_ps(config: Config, spec: ClusterSpec, task_index: int, *, should_stop: threading.Event) -> int:
    """Serves one shard. Gives the exit code."""
    session_config = server.session_config("ps", task_index, config.threads or 1)
    target = server.start_server(spec, "ps", task_index, session_config).target
    print(
        f"ps {task_index}: serving on {spec.address('ps', task_index)} for {spec.num_workers} workers",
        flush=True,
    )
    heard = done_queue.wait_for_workers(
        target, session_config, ps=task_index, num_workers=spec.num_workers, wait=should_stop.wait
    )
    if len(heard) == spec.num_workers:
        print(f"ps {task_index}: all {spec.num_workers} workers are done", flush=True)
        return 0
    missing = sorted(set(range(spec.num_workers)) - heard)
    print(f"ps {task_index}: interrupted before worker {', '.join(map(str, missing))} was done", flush=True)
    return 130
