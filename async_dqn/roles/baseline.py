"""The single-process baseline: the same agent over a store in its own memory."""

import threading

from async_dqn.base.errors import RunFailed
from async_dqn.run import build
from async_dqn.run.actor_learner import ActorLearner
from async_dqn.run.chief import Chief, exit_reason
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.run.resume import restore_run
from async_dqn.settings.config import Config
from async_dqn.store.base import Stop
from async_dqn.store.local import LocalParameterStore
from async_dqn.system import devices

_SAVE_DEADLINE = 300.0  # seconds; a stop by signal has less
_SIGNAL_DEADLINE = 6.0


def run_baseline(
    config: Config,
    problem: build.Problem,
    run: RunDirectory,
    *,
    resume: bool,
    plain: bool,
    should_stop: threading.Event,
) -> int:
    """Trains in this process. Gives the exit code.

    Args:
      plain: show progress as lines that stay, on a terminal too.
    """
    progress = Progress(plain=plain)
    devices.check_gpu(config, progress.say)
    num_threads = devices.threads_of_worker(config.threads, 1)
    devices.configure_eager(config, num_threads)
    store = LocalParameterStore(problem.layout.num_parameters, build.make_optimizer(config), config.total_steps)
    store.initialize(build.initial_parameters(config, problem))
    restored = restore_run(run, store, progress.say) if resume else None
    run_id = run.next_id(resume=resume)
    run.write_config(config, run_id)  # not before: what cannot be resumed keeps its settings
    client = build.make_local_client(config, store)
    client.start()
    learner = ActorLearner(
        config, problem, run, worker=0, client=client, run_id=run_id, num_threads=num_threads, say=progress.say
    )
    chief = Chief(
        config=config,
        run=run,
        store=store,
        client=client,
        agent=learner.agent,
        frame_skip=problem.spec.frame_skip,
        progress=progress,
        restored=restored,
    )
    try:
        learner.run(chief, should_stop)
        stopped = Stop.INTERRUPTED if should_stop.is_set() else client.counters.stopped
        reason = exit_reason(stopped)
    except RunFailed as error:
        client.report()
        chief.finish(f"failed: {error}")
        raise
    chief.finish(reason)
    learner.save(_SIGNAL_DEADLINE if should_stop.is_set() else _SAVE_DEADLINE)
    learner.close()
    return 130 if stopped == Stop.INTERRUPTED else 0
