"""A worker: its part of an agent on the shared networks; worker 0 is the chief as well."""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from async_dqn.agents.base import Agent
from async_dqn.base.errors import RunError
from async_dqn.cluster import server
from async_dqn.cluster.experience_queue import Mailbox, RemoteQueue
from async_dqn.cluster.leases import LeaseKeeper
from async_dqn.cluster.quorum import Quorum
from async_dqn.cluster.remote_store import RemoteParameterStore, new_token
from async_dqn.cluster.spec import ClusterSpec, wait_until_reachable
from async_dqn.cluster.versioned_store import VersionedStore
from async_dqn.data.queue import ExperienceQueue
from async_dqn.run import build
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.run.recovery import WorkerRun
from async_dqn.settings.config import Config, QueueSettings
from async_dqn.system import devices

_SIGNAL_DEADLINE = 5.0  # seconds a ps may take to hear that a worker is done
_REAL_QUEUE_SIZE = 256  # blocks that a planner may be behind: some seconds, in which it may be started again
_RESCUE_DEADLINE = 1.0  # the same where an environment has taken most of the time to end


def run_worker(
    agent: Agent, run: RunDirectory, spec: ClusterSpec, *, resume: bool, should_stop: threading.Event
) -> int:
    """Trains as one worker of a cluster. Gives the exit code; all done-queues are signalled whatever happens."""
    config, worker = agent.config, agent.worker
    progress = Progress(name=f"worker {worker}")
    beside = spec.workers_beside(worker)
    num_threads = devices.take_share(config, beside.index(worker), len(beside), progress.say)
    session_config = server.session_config("worker", worker, num_threads, devices.gpu_options(config))
    target = server.start_server(spec, "worker", worker, session_config).target
    token = new_token()
    keeper = LeaseKeeper(target, session_config, spec, worker, token, lease=config.lease, on_stop=should_stop.set)
    code = 1
    try:
        missing = wait_until_reachable(spec.ps, config.ps_deadline, should_stop.is_set)
        if should_stop.is_set() and (worker or missing):  # a chief may have a run to end for all
            code = 130
            return code
        if missing:
            servers = ", ".join(missing)
            raise RunError(f"no parameter server answered at {servers} within {config.ps_deadline:g} s (--ps_deadline)")
        store = make_remote_store(
            agent,
            spec,
            token=token,
            target=target,
            session_config=session_config,
            warn=progress.say,
            should_stop=should_stop.is_set,
        )
        open_queue = functools.partial(
            RemoteQueue,
            target,
            session_config,
            spec,
            worker=worker,
            membership=lambda: store.membership,
            deadline=config.ps_deadline,
            should_stop=should_stop.is_set,
        )
        queue = make_queue(config, worker, open_queue)

        def leave(code: int) -> None:
            keeper.finish(code, _RESCUE_DEADLINE)
            os._exit(code)

        whole = WorkerRun(agent, run, store, progress, should_stop, queue, leave)
        code = whole.run(resume=resume, num_threads=num_threads)
        return code
    finally:
        unreached = keeper.finish(code, _SIGNAL_DEADLINE)
        if unreached and code:
            progress.say(f"no answer to the done signal from ps {', '.join(map(str, unreached))}")


def make_queue(config: Config, worker: int, open_queue: Callable[..., RemoteQueue]) -> ExperienceQueue | None:
    """This worker's end of the queues by which experience crosses between processes; None where it does not.

    Args:
      open_queue: takes `name` and `size`.
    """
    if not isinstance(config, QueueSettings) or not (config.separates or config.has_planners):
        return None
    if config.separates:
        return open_queue(name="experience", size=config.queue_size)
    simulated = open_queue(name="simulated", size=config.queue_size)
    planners = [worker] if worker else range(1, config.num_workers)
    real = [open_queue(name=f"real_{planner}", size=_REAL_QUEUE_SIZE) for planner in planners]
    return Mailbox(real[0], [simulated]) if worker else Mailbox(simulated, real)


def make_remote_store(
    agent: Agent,
    spec: ClusterSpec,
    *,
    token: int,
    target: str,
    session_config: Any,
    warn: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> RemoteParameterStore:
    """The networks on the parameter servers as one worker sees them; arguments as for `RemoteParameterStore`."""
    config = agent.config
    options: dict[str, Any] = {
        "spec": spec,
        "worker": agent.worker,
        "token": token,
        "target": target,
        "session_config": session_config,
        "strategy": server.parameter_server_strategy(spec, agent.worker),
        "modules": build.store_modules(agent),
        "total_steps": config.total_steps,
        "target_period": agent.target_period,
        "max_staleness": config.max_staleness,
        "wire_dtype": config.wire_dtype,
        "may_share_memory": config.shared_memory,
        "deadline": config.ps_deadline,
        "warn": warn,
        "should_stop": should_stop,
    }
    if config.mode == "async":
        store = RemoteParameterStore(**options)
    else:
        quorum = Quorum(config.accumulate, config.backup_workers, config.max_mean_norm)
        store = VersionedStore(quorum=quorum, **options)
    store.settings_id = config.shared_id()
    return store
