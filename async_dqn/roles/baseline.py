"""The single-process baseline: the same agent over a store in its own memory."""

import threading

from async_dqn import devices
from async_dqn.config import Config
from async_dqn.parameters import LocalParameterStore
from async_dqn.progress import Progress
from async_dqn.roles import assemble
from async_dqn.roles.actor_learner import train
from async_dqn.roles.chief import Chief
from async_dqn.roles.resume import restore_run
from async_dqn.run_directory import RunDirectory


def run_baseline(
    config: Config,
    problem: assemble.Problem,
    run: RunDirectory,
    *,
    resume: bool,
    should_stop: threading.Event,
) -> int:
    """Trains in this process. Gives the exit code."""
    progress = Progress()
    num_threads = devices.threads_of_worker(config)
    devices.configure_eager(config, num_threads)
    store = LocalParameterStore(
        problem.layout.num_parameters, assemble.make_store_optimizer(config), config.total_steps
    )
    if resume:
        restored = restore_run(run, store, progress)
    else:
        run.write_config(config)
        store.initialize(assemble.initial_parameters(config, problem))
        restored = None
    client = assemble.make_client(config, store, overlap=False)
    client.start()
    agent_seeds, environment_seed = assemble.make_seeds(config, 0, client.env_steps)
    agent = assemble.make_agent(config, problem, client, worker=0, seeds=agent_seeds)
    if restored:
        agent.restore(restored.agent_arrays, restored.values["agent"])
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
        worker=0,
        client=client,
        agent=agent,
        environment_seed=environment_seed,
        num_threads=num_threads,
        duties=chief,
        should_stop=should_stop,
    )
    interrupted = should_stop.is_set()
    chief.finish("interrupted" if interrupted else "solved" if chief.is_solved else "finished")
    return 130 if interrupted else 0
