"""A worker: one actor-learner on the shared network; worker 0 is the chief as well."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from async_dqn.base.errors import Outage, RunError, RunFailed, UserError
from async_dqn.cluster import server
from async_dqn.cluster.leases import LeaseKeeper
from async_dqn.cluster.remote_store import RemoteParameterStore, new_token
from async_dqn.cluster.spec import ClusterSpec, wait_until_reachable
from async_dqn.run import build
from async_dqn.run.actor_learner import ActorLearner
from async_dqn.run.chief import Chief, Follower, exit_reason
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.run.resume import load_newest, restore_run
from async_dqn.settings.config import Config
from async_dqn.store.base import Counters, Stop
from async_dqn.store.round_trips import TravellingClient
from async_dqn.system import devices

_SIGNAL_DEADLINE = 5.0  # seconds a ps may take to hear that a worker is done
_PATIENCE = 4.0  # seconds that an interrupted chief gives the others
_SAVE_DEADLINE = 300.0  # seconds to bring replay to disk in the end; a stop by signal has less
_SIGNAL_SAVE_DEADLINE = 4.0


def run_worker(
    config: Config,
    problem: build.Problem,
    run: RunDirectory,
    spec: ClusterSpec,
    task_index: int,
    *,
    resume: bool,
    should_stop: threading.Event,
) -> int:
    """Trains as one worker of a cluster. Gives the exit code; all done-queues are signalled whatever happens."""
    progress = Progress(name=f"worker {task_index}")
    devices.check_gpu(config, progress.say)
    beside = spec.workers_beside(task_index)
    num_threads = devices.threads_of_worker(config.threads, len(beside))
    if config.pin and not config.threads:
        devices.keep_to_cores(beside.index(task_index), len(beside))
    devices.configure_eager(config, num_threads)
    session_config = server.session_config("worker", task_index, num_threads, devices.gpu_options(config))
    target = server.start_server(spec, "worker", task_index, session_config).target
    token = new_token()
    keeper = LeaseKeeper(target, session_config, spec, task_index, token, lease=config.lease, on_stop=should_stop.set)
    code = 1
    try:
        missing = wait_until_reachable(spec.ps, config.ps_deadline, should_stop.is_set)
        if should_stop.is_set() and (task_index or not _all_listen(spec)):  # a chief may have a run to end for all
            code = 130
            return code
        if missing and not should_stop.is_set():
            raise RunError(f"no parameter server answered at {', '.join(missing)} within {config.ps_deadline:.0f} s")
        store = make_remote_store(
            config,
            problem,
            spec,
            worker=task_index,
            token=token,
            target=target,
            session_config=session_config,
            warn=progress.say,
            should_stop=should_stop.is_set,
        )
        worker = _Worker(config, problem, run, task_index, store, progress, should_stop)
        code = worker.run(resume=resume, num_threads=num_threads)
        return code
    finally:
        deaf = keeper.finish(code, _SIGNAL_DEADLINE)
        if deaf and code:
            progress.say(f"no answer to the done signal from ps {', '.join(map(str, deaf))}")


def _all_listen(spec: ClusterSpec) -> bool:
    return not wait_until_reachable(spec.ps, 0.0, lambda: False)


def make_remote_store(
    config: Config,
    problem: build.Problem,
    spec: ClusterSpec,
    *,
    worker: int,
    token: int,
    target: str,
    session_config: Any,
    warn: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> RemoteParameterStore:
    """The network on the parameter servers as one worker sees it; arguments are those of `RemoteParameterStore`."""
    store = RemoteParameterStore(
        spec=spec,
        worker=worker,
        token=token,
        target=target,
        session_config=session_config,
        strategy=server.parameter_server_strategy(spec, worker),
        num_parameters=problem.layout.num_parameters,
        optimizer=build.make_store_optimizer(config),
        total_steps=config.total_steps,
        max_staleness=config.max_staleness,
        wire_dtype=config.wire_dtype,
        may_share_memory=config.shared_memory,
        deadline=config.ps_deadline,
        warn=warn,
        should_stop=should_stop,
    )
    store.settings_id = config.shared_id()
    return store


class _Start(NamedTuple):
    """How the chief found the run: what a checkpoint holds for it, and whether the network was live already."""

    restored: dict[str, Any] | None
    is_live: bool


class _Worker:
    """One worker from its first look at the parameter servers to its last word."""

    def __init__(
        self,
        config: Config,
        problem: build.Problem,
        run: RunDirectory,
        task_index: int,
        store: RemoteParameterStore,
        progress: Progress,
        should_stop: threading.Event,
    ):
        self._config, self._problem, self._run = config, problem, run
        self._index, self._store, self._progress, self._should_stop = task_index, store, progress, should_stop
        self._start = _Start(None, is_live=False)
        self._chief: Chief | None = None
        self._joined_at = 0.0  # when this worker took its seat, by the monotonic clock
        self._has_begun = False  # config.json is this process's own

    def run(self, *, resume: bool, num_threads: int) -> int:
        """Trains to the end, through every outage that can be mended. Gives the exit code."""
        client = None
        while client is None:
            try:
                begun = self._begin(resume=resume)
                if begun is None:
                    return 130
                self._start = begun
                ledger = self._store.join()
                self._joined_at = time.monotonic()
                starting = build.make_client(self._config, self._store)
                starting.start()
                client = starting
            except Outage as outage:  # a ps that died meanwhile
                self._reconnect(outage)
                if self._should_stop.is_set():
                    return 130
        learner = ActorLearner(
            self._config,
            self._problem,
            self._run,
            worker=self._index,
            client=client,
            run_id=ledger.run_id,
            num_threads=num_threads,
            say=self._progress.say,
        )
        code = None
        while code is None:
            try:
                if self._index == 0 and self._chief is None:
                    self._chief = self._make_chief(client, learner)
                learner.run(self._chief or Follower(), self._should_stop)
                code = self._end(client)
            except RunFailed as error:
                self._fail(error, client)
                raise
            except Outage as outage:
                self._recover(outage, client, learner)
                if self._should_stop.is_set():
                    learner.save(_SIGNAL_SAVE_DEADLINE)
                    return 130
        learner.save(_SIGNAL_SAVE_DEADLINE if code == 130 else _SAVE_DEADLINE)
        learner.close()
        self._store.close()
        return code

    def _begin(self, *, resume: bool) -> _Start | None:
        """Sees to it that there is a network to work on: the chief sets it up or finds it, the others wait for it.

        None where it was told to end before. Not the chief once there is a network: others may be at work on that by
        now, and nobody else saves it and tells them that it is over.
        """
        store, say = self._store, self._progress.say
        if self._index:
            if not store.is_ready():
                self._progress.show("waiting for worker 0 to initialise the network")
            store.wait_until_ready(self._config.start_deadline, self._should_stop.is_set)
            return None if self._should_stop.is_set() else _Start(None, is_live=True)
        if store.is_ready():
            store.run_id = store.read_ledger().run_id
            if self._run.run_id() != store.run_id:
                raise RunError(
                    "the parameter servers hold the network of another run, which is left alone; end that run, or "
                    "give its folder as --logdir"
                )
            say("the network is live; going on with it")
            newest = load_newest(self._run, say)
            return _Start(newest.values if newest else None, is_live=True)
        if self._should_stop.is_set():
            return None
        store.run_id = self._run.next_id(resume=resume or self._has_begun)
        if not resume and not self._has_begun:
            self._run.check(resume=False)  # a chief that comes back to a cluster that is no longer live
            self._run.write_config(self._config, store.run_id)  # a chief that comes back knows its network by this
            self._has_begun = True
        restored = self._set_up(restore=resume)
        if resume:
            self._run.write_config(self._config, store.run_id)  # not before: what cannot be resumed keeps its settings
        return _Start(restored, is_live=False)

    def _set_up(self, *, restore: bool) -> dict[str, Any] | None:
        """Fills the parameter servers: from the newest checkpoint, or anew where there is none."""
        restored = restore_run(self._run, self._store, self._progress.say) if restore else None
        if restored is None:
            self._store.initialize(build.initial_parameters(self._config, self._problem))
        return restored

    def _restore(self) -> dict[str, Any] | None:
        try:
            return self._set_up(restore=True)
        except UserError as error:  # nobody asked for it here
            raise RunError(str(error).removeprefix("--resume: ")) from error

    def _make_chief(self, client: TravellingClient, learner: ActorLearner) -> Chief:
        return Chief(
            config=self._config,
            run=self._run,
            store=self._store,
            client=client,
            agent=learner.agent,
            frame_skip=self._problem.spec.frame_skip,
            progress=self._progress,
            restored=self._start.restored,
            is_live=self._start.is_live,
        )

    def _end(self, client: TravellingClient) -> int:
        """Says goodbye in the right order: the others first, the chief last. Gives the exit code."""
        stopped = client.counters.stopped
        if self._should_stop.is_set():
            stopped = self._store.add_counts(Counters(stopped=Stop.INTERRUPTED)).stopped
        if self._chief:
            self._chief.save("running")  # nothing of this is lost if a ps dies while the others end
            lost = self._wait_for_others(self._chief, is_urgent=stopped >= Stop.INTERRUPTED)
            if lost:
                self._progress.say(f"worker {', '.join(map(str, lost))} was lost; the run ends without")
            stopped = max(stopped, self._store.add_counts(Counters()).stopped)  # others may have said so meanwhile
            self._chief.finish(exit_reason(stopped))
        with contextlib.suppress(Outage):  # what is left to do without this worker, the others do
            self._store.leave()
        if stopped == Stop.FAILED:
            raise RunError(f"worker {self._index}: another worker has ended the run, see its log")
        return 130 if stopped == Stop.INTERRUPTED else 0

    def _wait_for_others(self, chief: Chief, *, is_urgent: bool) -> list[int]:
        """Waits for the workers that are at work, and a while for those that have not come. Gives the lost ones."""
        begin = time.monotonic()
        while True:
            chief.tick()
            states = [worker.state for worker in self._store.check().workers]
            is_urgent = is_urgent or self._should_stop.is_set()
            now = time.monotonic()
            awaited = {"active", "vacant"}
            if is_urgent:  # who has not come by now will find the run ended
                awaited = {"active"} if now - begin <= _PATIENCE else set()
            elif now - self._joined_at > self._config.ps_deadline:
                awaited = {"active"}  # of those the leases take care
            if not any(state in awaited for state in states[1:]):
                never_lost = {"done", "vacant"} if is_urgent else {"done"}  # who has not come yet is none the worse
                return [worker for worker, state in enumerate(states) if worker and state not in never_lost]
            time.sleep(0.05)

    def _fail(self, error: RunFailed, client: TravellingClient) -> None:
        """Ends the run for everyone, with the last checkpoint as it is."""
        with contextlib.suppress(RunError, Outage):
            client.count(stopped=Stop.FAILED)
            client.report()
            if self._chief:
                self._wait_for_others(self._chief, is_urgent=True)
                self._chief.finish(f"failed: {error}")
            self._store.leave()

    def _recover(self, outage: Outage, client: TravellingClient, learner: ActorLearner) -> None:
        """Waits until the parameters are there again, and goes on with them. The chief restores what was lost."""
        client.abandon_trip(self._config.ps_deadline)
        has_restored = rolled_back = False
        while True:
            self._reconnect(outage)
            if self._should_stop.is_set():
                return
            try:
                if self._index == 0 and not self._store.is_ready():
                    self._start = _Start(self._restore(), is_live=False)
                    has_restored = True
                self._store.wait_until_ready(self._config.ps_deadline, self._should_stop.is_set)
                if not self._store.settle():
                    rolled_back = True
                    self._store.join(is_start=False)
                    self._joined_at = time.monotonic()
                if self._chief and has_restored:
                    self._chief.go_on_from(self._start.restored)
                    has_restored = False
                client.restart(rolled_back=rolled_back)
                if rolled_back:
                    learner.forget_games()
                self._progress.say("going on")
                return
            except Outage as another:
                outage = another

    def _reconnect(self, outage: Outage) -> None:
        deadline = self._config.ps_deadline
        self._progress.say(f"{outage}; paused for up to {deadline:.0f} s until it is back")
        self._store.reconnect(deadline, self._should_stop.is_set)
