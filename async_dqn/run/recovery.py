"""A worker's run on a shared store, from its first request to its end, through every outage."""

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from async_dqn.agents.base import Agent
from async_dqn.base.errors import NoAnswer, Outage, RunError, RunFailed, Silence, UserError, one_line
from async_dqn.cluster.remote_store import RemoteParameterStore
from async_dqn.data.queue import ExperienceQueue
from async_dqn.nn.module import initial_parameters
from async_dqn.run import build
from async_dqn.run.actor_learner import ActorLearner
from async_dqn.run.chief import Chief, Start, exit_reason, say_unsaved
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.run.resume import load_newest, restore_run
from async_dqn.run.separate import SeparateLearner
from async_dqn.run.standby import Standby
from async_dqn.run.training import Training
from async_dqn.store.base import Counters, Stop, counter_state, saved_counters
from async_dqn.store.client import ParameterClient
from async_dqn.store.round_trip import RoundTripClient
from async_dqn.store.shared_memory import SharedMemoryStore

_PATIENCE = 4.0  # seconds that an interrupted chief gives the others
_SAVE_DEADLINE = 300.0  # seconds to bring replay to disk in the end; a stop by signal has less
_SIGNAL_SAVE_DEADLINE = 4.0


class WorkerRun:
    """One worker's part in the run.

    Args:
      agent: what it trains.
      store: the shared networks; not joined yet.
      queue: by which experience crosses to the learner; None where it does not.
      leave: ends the process with a code, where an environment holds up the end; None: it is waited for.
    """

    def __init__(
        self,
        agent: Agent,
        run: RunDirectory,
        store: RemoteParameterStore | SharedMemoryStore,
        progress: Progress,
        should_stop: threading.Event,
        queue: ExperienceQueue | None = None,
        leave: Callable[[int], object] | None = None,
    ):
        self._queue, self._leave = queue, leave
        self._agent, self._config, self._index, self._run = agent, agent.config, agent.worker, run
        self._store, self._progress, self._should_stop = store, progress, should_stop
        self._start = Start()
        self._chief: Chief | None = None
        self._standby: Standby | None = None  # the chief's, where there are parameter servers
        self._joined_at = 0.0  # when this worker joined, by the monotonic clock
        self._has_begun = False  # the chief itself has begun to set the network up
        self._unsaved = ""  # what of the end could not be saved
        self._has_tried_to_end = False  # during an outage

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
                starting = build.make_client(self._agent, self._store)
                starting.start()
                client = starting
            except Outage as outage:  # a ps that died meanwhile
                self._reconnect(outage)
                if self._should_stop.is_set():
                    return 130
        try:
            training = Training(
                self._agent,
                self._run,
                client,
                self._queue,
                run_id=ledger.run_id,
                num_threads=num_threads,
                say=self._progress.say,
            )
        except RunFailed as error:  # its environments could not be made
            self._fail(error, client)
            raise
        code = None
        while code is None:
            try:
                if self._index == 0 and self._chief is None:
                    self._chief = self._make_chief(client, training)
                rescue = functools.partial(self._rescue, client) if self._leave else None
                training.run(self._tick, self._should_stop, rescue)
                code = self._end(client)
            except RunFailed as error:
                self._fail(error, client)
                raise
            except NoAnswer:
                say_unsaved(self._save_copy("running"), self._progress.say)
                raise
            except Outage as outage:
                try:
                    is_back = self._recover(outage, client, training)
                except RunError:  # a ps does not come back
                    say_unsaved(self._save_copy("running"), self._progress.say)
                    raise
                if not is_back:
                    unsaved = self._save_copy(exit_reason(Stop.INTERRUPTED))
                    training.save(_SIGNAL_SAVE_DEADLINE)
                    if unsaved:
                        raise RunError(f"{exit_reason(Stop.INTERRUPTED)}, but {unsaved}") from None
                    return 130
        training.save(_SIGNAL_SAVE_DEADLINE if code == 130 else _SAVE_DEADLINE)
        training.close()
        if self._standby:
            self._standby.close(_PATIENCE)
        self._store.close()
        if self._unsaved:
            raise RunError(self._unsaved)
        return code

    def _begin(self, *, resume: bool) -> Start | None:
        """Sees to it that there is a network to work on: the chief sets it up or finds it, the others wait for it.

        None where it was told to end before. Not the chief once there is a network: others may be at work on that by
        now, and nobody else saves it and tells them that it is over.
        """
        store, say = self._store, self._progress.say
        if self._index:
            if not store.is_ready():
                self._progress.show("waiting for worker 0 to initialise the network")
            store.wait_until_ready(self._config.start_deadline, self._should_stop.is_set)
            return None if self._should_stop.is_set() else Start(is_live=True)
        if store.is_ready():
            store.run_id = store.read_ledger().run_id
            if self._run.run_id() != store.run_id:
                raise RunError(
                    "the parameter servers hold the network of another run, which is left alone; end that run, or "
                    "give its folder as --logdir"
                )
            say("the network is live; going on with it")
            newest = load_newest(self._run.checkpoints, say) if resume or not self._has_begun else None
            restored = newest.values if newest else None
        elif self._should_stop.is_set():
            return None
        else:
            store.run_id = self._run.next_id(resume=resume or self._has_begun)
            if not resume and not self._has_begun:
                self._run.check(resume=False)  # a chief that comes back to a cluster that is no longer live
                self._run.write_config(self._config, store.run_id)  # a chief that comes back knows its network by this
            self._has_begun = True
            restored = self._set_up(restore=resume)
        if resume and self._has_begun:
            self._run.write_config(self._config, store.run_id)  # not before: what cannot be resumed keeps its settings
        return Start(restored, is_live=not self._has_begun)  # after an outage it may find what it has set up itself

    def _set_up(self, *, restore: bool) -> dict[str, Any] | None:
        """Fills the parameter servers: from the newest checkpoint, or anew where there is none."""
        restored = restore_run(self._run, self._store, self._progress.say) if restore else None
        if restored is None:
            self._store.initialize(initial_parameters(self._agent.modules, self._config.seed))
        return restored

    def _restore(self, noticed_at: float) -> Start:
        """Fills the parameter servers again: from the chief's copy if there is one, else from the newest checkpoint."""
        copy = self._standby.newest() if self._standby else None
        if copy:
            counters = saved_counters(copy.state)
            free = counter_state(counters._replace(claimed_steps=counters.env_steps))
            self._store.restore(copy.state | free)
            return Start(copy.values, False, counters.env_steps, copy.ages(noticed_at))
        try:
            return Start(self._set_up(restore=True))
        except UserError as error:  # nobody asked for it here
            raise RunError(str(error).removeprefix("--resume: ")) from error

    def _make_chief(self, client: ParameterClient, training: Training) -> Chief:
        part = training.part
        assert isinstance(part, ActorLearner | SeparateLearner)
        chief = Chief(
            run=self._run,
            store=self._store,
            client=client,
            learner=part,
            progress=self._progress,
            start=self._start,
            has_servers=isinstance(self._store, RemoteParameterStore),
        )
        if isinstance(self._store, RemoteParameterStore):
            self._standby = Standby(self._store, chief.values, self._progress.say)
            chief.keep = self._standby.keep
        return chief

    def _tick(self) -> None:
        if self._chief:
            self._chief.tick()
        if self._standby:
            self._standby.tick()

    def _end(self, client: ParameterClient) -> int:
        """Ends in the right order: the others first, the chief last. Gives the exit code."""
        stopped = client.counters.stopped
        if self._should_stop.is_set():
            stopped = self._store.add_counts(Counters(stopped=Stop.INTERRUPTED)).stopped
        if self._chief:
            self._chief.save("running")  # nothing of this is lost if a ps dies while the others end
            patience = self._config.ps_deadline if stopped else math.inf  # an environment may be stuck
            lost = self._wait_for_others(is_urgent=stopped >= Stop.INTERRUPTED, patience=patience)
            if lost:
                self._progress.say(f"the run ends without worker {', '.join(map(str, lost))}: lost, or never there")
            stopped = max(stopped, self._store.add_counts(Counters()).stopped)  # others may have said so meanwhile
            unsaved = self._chief.finish(exit_reason(stopped))
            self._unsaved = unsaved and f"{exit_reason(stopped)}, but {unsaved}"
        with contextlib.suppress(Outage, NoAnswer):  # what is left to do without this worker, the others do
            self._store.leave()
        if stopped == Stop.FAILED:
            raise RunError(f"worker {self._index}: another worker has ended the run, see its log")
        return 130 if stopped == Stop.INTERRUPTED else 0

    def _wait_for_others(self, *, is_urgent: bool, patience: float = math.inf) -> list[int]:
        """Waits for the workers that are at work, and a while for those that have not come. Gives the lost ones.

        Args:
          patience: seconds after which it waits no longer for those that have not come, and not long for the others.
        """
        begin = time.monotonic()
        while True:
            self._tick()
            states = [worker.state for worker in self._store.check().workers]
            now = time.monotonic()
            is_urgent = is_urgent or self._should_stop.is_set() or now - begin > patience
            awaited = {"active", "expected"}
            if is_urgent:  # who has not come by now will find the run ended
                awaited = {"active"} if now - begin <= _PATIENCE else set()
            elif now - self._joined_at > self._config.ps_deadline:
                awaited = {"active"}  # of those the leases take care
            if not any(state in awaited for state in states[1:]):
                never_lost = {"done", "expected"} if is_urgent else {"done"}  # who has not come yet is none the worse
                return [worker for worker, state in enumerate(states) if worker and state not in never_lost]
            time.sleep(0.05)

    def _fail(self, error: RunFailed, client: ParameterClient) -> None:
        """Ends the run for everyone, with the last checkpoint as it is."""
        reason = f"failed: {error}"
        try:
            client.count(stopped=Stop.FAILED)
            client.report()
            if self._chief:
                self._wait_for_others(is_urgent=True)
                say_unsaved(self._chief.finish(reason), self._progress.say)
        except (NoAnswer, Outage):  # the servers cannot be told
            say_unsaved(self._save_copy(reason), self._progress.say)
        except RunError:  # it is not this process's run any more
            pass
        else:
            with contextlib.suppress(RunError, Outage):
                self._store.leave()

    def _rescue(self, client: ParameterClient) -> None:
        """Saves what there is and ends the process, whose environments do not come back."""
        unsaved = ""
        try:
            client.report()
            stopped = self._store.add_counts(Counters(stopped=Stop.INTERRUPTED)).stopped
            unsaved = self._chief.finish(exit_reason(stopped)) if self._chief else ""
        except Exception as error:  # whatever it is, nobody else can end this process
            unsaved = one_line(error) if self._chief else ""
        with contextlib.suppress(RunError, Outage):
            self._store.leave()
        assert self._leave is not None
        self._leave(say_unsaved(unsaved, self._progress.say) or 130)

    def _save_copy(self, reason: str) -> str:
        """Where the servers are out of reach at the end: makes a checkpoint of the chief's copy of what they held.

        Returns:
          What could not be saved, and why; or "".
        """
        if not self._chief:
            return ""
        copy = self._standby.newest() if self._standby else None
        if not copy:
            return "worker 0 has no copy of the parameters yet, so the last checkpoint stays as it is"
        unsaved = self._chief.save_copy(copy.state, copy.values, reason)
        if not unsaved:
            steps = saved_counters(copy.state).env_steps
            self._progress.say(f"saved worker 0's copy ({copy.ages(time.monotonic())}) at {steps:,} agent steps")
        return unsaved

    def _recover(self, outage: Outage, client: ParameterClient, training: Training) -> bool:
        """Waits until the parameters are there again, and goes on with them. The chief restores what was lost.

        Returns:
          Whether they are; else this process was told to end before.
        """
        assert isinstance(self._store, RemoteParameterStore) and isinstance(client, RoundTripClient)  # see `_reconnect`
        noticed_at = time.monotonic()
        client.abandon_round_trip(self._config.ps_deadline)
        if self._standby:
            self._standby.settle(self._config.ps_deadline)
        has_restored = rolled_back = False
        while True:
            is_back = self._reconnect(outage)
            if self._should_stop.is_set():
                if not is_back or self._has_tried_to_end or isinstance(outage, Silence):
                    return False
                self._has_tried_to_end = True  # in order, as the servers may be there all the same
            try:
                if self._index == 0 and not self._store.is_ready():
                    self._start = self._restore(noticed_at)
                    has_restored = True
                self._store.wait_until_ready(self._config.ps_deadline, self._should_stop.is_set)
                if not self._store.settle():
                    rolled_back = True
                    self._store.join(is_start=False)
                    self._joined_at = time.monotonic()
                if self._chief and has_restored:
                    self._chief.go_on_from(self._start)
                    has_restored = False
                client.restart(rolled_back=rolled_back)
                if rolled_back:
                    training.forget()
                self._progress.say("going on")
                return True
            except Outage as another:
                outage = another

    def _reconnect(self, outage: Outage) -> bool:
        assert isinstance(self._store, RemoteParameterStore)  # no other store is ever out of reach
        deadline = self._config.ps_deadline
        self._progress.say(f"{outage}; paused for up to {deadline:.0f} s until it is back")
        return self._store.reconnect(deadline, self._should_stop.is_set)
