"""A worker: one actor-learner on the shared network; worker 0 is the chief as well."""

import threading
import time

from async_dqn import devices
from async_dqn.cluster import done_queue, server
from async_dqn.cluster.remote_store import RemoteParameterStore
from async_dqn.cluster.spec import ClusterSpec, wait_until_reachable
from async_dqn.config import Config
from async_dqn.errors import RunError
from async_dqn.parameters import Counters
from async_dqn.progress import Progress
from async_dqn.roles import assemble
from async_dqn.roles.actor_learner import train
from async_dqn.roles.chief import Chief, Follower
from async_dqn.roles.resume import Restored, restore_run
from async_dqn.run_directory import RunDirectory

_SIGNAL_DEADLINE = 5.0  # seconds a ps may take to hear that a worker is done


def run_worker(
    config: Config,
    problem: assemble.Problem,
    run: RunDirectory,
    spec: ClusterSpec,
    task_index: int,
    *,
    resume: bool,
    should_stop: threading.Event,
) -> int:
    """Trains as one worker of a cluster. Gives the exit code; all done-queues are signalled whatever happens."""
    progress = Progress()
    is_chief = task_index == 0
    num_threads = devices.threads_of_worker(config)
    devices.configure_eager(config, num_threads)
    session_config = server.session_config("worker", task_index, num_threads, devices.gpu_options(config))
    target = server.start_server(spec, "worker", task_index, session_config).target
    try:
        missing = wait_until_reachable(spec.ps, config.ps_deadline, should_stop.is_set)
        if should_stop.is_set():
            return 130
        if missing:
            raise RunError(f"no parameter server answered at {', '.join(missing)} within {config.ps_deadline:.0f} s")
        store = RemoteParameterStore(
            spec=spec,
            worker=task_index,
            target=target,
            session_config=session_config,
            strategy=server.parameter_server_strategy(spec, task_index),
            num_parameters=problem.layout.num_parameters,
            optimizer=assemble.make_store_optimizer(config),
            total_steps=config.total_steps,
            deadline=config.ps_deadline,
            warn=progress.say,
        )
        restored = None
        if is_chief:
            restored = _begin_run(config, problem, run, store, progress, resume=resume)
        else:
            progress.say(f"worker {task_index}: waiting for worker 0 to initialise the network")
            store.wait_until_initialized(config.ps_deadline, should_stop.is_set)
        if should_stop.is_set():
            return 130
        client = assemble.make_client(config, store, overlap=config.overlap)
        client.start()
        agent_seeds, environment_seed = assemble.make_seeds(config, task_index, client.env_steps)
        agent = assemble.make_agent(config, problem, client, worker=task_index, seeds=agent_seeds)
        if restored:
            agent.restore(restored.agent_arrays, restored.values["agent"])
        chief = None
        if is_chief:
            chief = Chief(
                config=config,
                run=run,
                store=store,
                client=client,
                agent=agent,
                frame_skip=problem.spec.frame_skip,
                progress=progress,
                restored=restored.values if restored else {},
            )
        train(
            config,
            problem,
            run,
            worker=task_index,
            client=client,
            agent=agent,
            environment_seed=environment_seed,
            num_threads=num_threads,
            duties=chief or Follower(),
            should_stop=should_stop,
        )
        store.add_counts(Counters(workers_done=1))
        interrupted = should_stop.is_set()
        all_done = True
        if chief:
            if interrupted:
                chief.stop()
            patience = _SIGNAL_DEADLINE if interrupted else config.ps_deadline
            all_done = _wait_for_others(store, chief, spec.num_workers, patience=patience)
            reason = "interrupted" if interrupted else "solved" if chief.is_solved else "finished"
            chief.finish(reason if all_done else "workers lost")
        store.close()
        return 130 if interrupted else 0 if all_done else 1
    finally:
        deaf = done_queue.signal_done(
            target,
            session_config,
            task_index=task_index,
            num_ps=spec.num_ps,
            num_workers=spec.num_workers,
            deadline=_SIGNAL_DEADLINE,
        )
        if deaf:
            progress.say(f"worker {task_index}: no answer to the done signal from ps {', '.join(map(str, deaf))}")
        _release_gpu_memory()


def _begin_run(
    config: Config,
    problem: assemble.Problem,
    run: RunDirectory,
    store: RemoteParameterStore,
    progress: Progress,
    *,
    resume: bool,
) -> Restored | None:
    if resume:
        return restore_run(run, store, progress)
    run.write_config(config)
    store.initialize(assemble.initial_parameters(config, problem))
    return None


def _wait_for_others(store: RemoteParameterStore, chief: Chief, num_workers: int, *, patience: float) -> bool:
    """Waits until every worker has counted itself done; gives up once the counters stand still for `patience` s."""
    last, moved_at = store.add_counts(Counters()), time.monotonic()
    while last.workers_done < num_workers:
        time.sleep(0.1)
        chief.tick()
        counters = store.add_counts(Counters())
        if counters != last:
            last, moved_at = counters, time.monotonic()
        elif time.monotonic() - moved_at > patience:
            return False
    return True


def _release_gpu_memory() -> None:
    """Drops what Keras and the runtime hold, as the process is about to end."""
    import tensorflow as tf

    tf.keras.backend.clear_session()
