"""A worker on memory that it shares with the other workers of its host; worker 0 is the chief as well."""

import os
import threading

from async_dqn.agents.base import Agent
from async_dqn.data.shared_queue import SharedQueue
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.run.recovery import WorkerRun
from async_dqn.store.shared_memory import SharedMemoryStore
from async_dqn.system import devices


def run_shared_worker(
    agent: Agent,
    run: RunDirectory,
    store: SharedMemoryStore,
    queue: SharedQueue | None,
    *,
    resume: bool,
    should_stop: threading.Event,
) -> int:
    """Trains as one worker. Gives the exit code."""
    config, worker = agent.config, agent.worker
    progress = Progress(name=f"worker {worker}")
    num_threads = devices.take_share(config, worker, config.num_workers, progress.say)
    whole = WorkerRun(agent, run, store, progress, should_stop, queue, leave=os._exit)
    return whole.run(resume=resume, num_threads=num_threads)
