"""The single-process baseline: the same agent over a store in its own memory."""

import threading
from collections.abc import Callable

from async_dqn.agents.base import Agent
from async_dqn.base.errors import RunError, RunFailed, one_line
from async_dqn.nn.module import initial_parameters
from async_dqn.run import build
from async_dqn.run.actor_learner import ActorLearner
from async_dqn.run.chief import Chief, Start, exit_reason, say_unsaved
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.run.resume import restore_run
from async_dqn.run.training import Training
from async_dqn.store.base import Stop
from async_dqn.system import devices

_SAVE_DEADLINE = 300.0  # seconds; a stop by signal has less
_SIGNAL_DEADLINE = 6.0


def run_baseline(
    agent: Agent,
    run: RunDirectory,
    *,
    resume: bool,
    plain: bool,
    should_stop: threading.Event,
    leave: Callable[[int], object] | None = None,
) -> int:
    """Trains in this process. Gives the exit code.

    Args:
      plain: show progress as lines that stay, on a terminal too.
      leave: ends the process with a code, where an environment holds up the end; None: it is waited for.
    """
    config = agent.config
    progress = Progress(plain=plain)
    num_threads = devices.take_share(config, 0, 1, progress.say)
    store = build.make_local_store(agent)
    store.initialize(initial_parameters(agent.modules, config.seed))
    restored = restore_run(run, store, progress.say) if resume else None
    run_id = run.next_id(resume=resume)
    run.write_config(config, run_id, in_one_process=True)  # not before: what cannot be resumed keeps its settings
    client = build.make_direct_client(config, store)
    client.start()
    training = Training(agent, run, client, run_id=run_id, num_threads=num_threads, say=progress.say)
    learner = training.part
    assert isinstance(learner, ActorLearner)
    chief = Chief(run=run, store=store, client=client, learner=learner, progress=progress, start=Start(restored))

    def rescue() -> None:
        try:
            client.report()
            unsaved = chief.finish(exit_reason(Stop.INTERRUPTED))
        except Exception as error:  # whatever it is, nobody else can end this process
            unsaved = one_line(error)
        assert leave is not None
        leave(say_unsaved(unsaved, progress.say) or 130)

    try:
        training.run(chief.tick, should_stop, rescue if leave else None)
        stopped = Stop.INTERRUPTED if should_stop.is_set() else client.counters.stopped
        unsaved = chief.finish(exit_reason(stopped))
        training.save(_SIGNAL_DEADLINE if should_stop.is_set() else _SAVE_DEADLINE)
        if unsaved:
            raise RunError(f"{exit_reason(stopped)}, but {unsaved}")
    except RunFailed as error:
        client.report()
        say_unsaved(chief.finish(f"failed: {error}"), progress.say)
        raise
    finally:
        training.close()
    return 130 if stopped == Stop.INTERRUPTED else 0
