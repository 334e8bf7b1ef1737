"""Leases: how a parameter server knows which workers are alive.

Each worker sends a heartbeat to every ps several times within a lease. A ps measures time with its own monotonic clock
alone. So neither a clock that jumps nor another server that is down can mislead it.
"""

import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

import tensorflow as tf

from async_dqn.base.errors import Outage
from async_dqn.cluster.done_queue import ALIVE, Message, done_queue, stop_queue
from async_dqn.cluster.patient_session import LostStep, PatientSession
from async_dqn.cluster.spec import ClusterSpec, wait_until_reachable

_BEATS = 6  # heartbeats in a lease
_LONGEST_SILENCE = 1.0  # seconds between two of them: with each, a worker learns whether the ps wants everyone to end
_FINISHED_GRACE = 2.0  # seconds that the other workers have to report their end once the chief has finished


class LeaseState(Enum):
    """What a ps knows of a worker."""

    EXPECTED = auto()
    ALIVE = auto()
    DONE = auto()
    FAILED = auto()  # it reported that; it may be started again
    LOST = auto()


_ENDED = (LeaseState.DONE, LeaseState.FAILED)


class _Process(NamedTuple):
    state: LeaseState
    heard_at: float


class Expired(NamedTuple):
    """A process that has not been heard from for too long.

    Attributes:
      state: what it was in before.
      is_lost: whether its worker is lost by it; else another process of that worker is known.
    """

    worker: int
    token: int
    state: LeaseState
    is_lost: bool


class LeaseTable:
    """A ps's view of all workers. Times are seconds of one monotonic clock, given by the caller.

    A worker is alive while any of its processes is heard from: one that comes later may never take the place of the one
    before. Else the worker is what the newest of them has come to.

    Args:
      num_workers: how many there are.
      lease: seconds without a message after which a worker is lost.
      start_deadline: seconds that a worker has to send its first message.
      now: the time.
      chief_grace: seconds for which a lost chief is waited for, as it may be started again, and nobody else could go on
        without it from a checkpoint.
    """

    def __init__(self, num_workers: int, lease: float, start_deadline: float, now: float, *, chief_grace: float = 0.0):
        self._lease, self._start_deadline, self._chief_grace = lease, start_deadline, chief_grace
        # Of each worker by their tokens, the newest last; 0 is that of the first one, before it comes.
        self._processes = [{0: _Process(LeaseState.EXPECTED, now)} for _ in range(num_workers)]
        self._finished_at: float | None = None

    def hear(self, message: Message, now: float) -> bool:
        """Takes in one message; gives whether it says that this process ends."""
        if not 0 <= message.worker < len(self._processes):
            return False
        processes = self._processes[message.worker]
        if message.code == ALIVE and message.token in processes and processes[message.token].state in _ENDED:
            return False  # a heartbeat that arrives after the end was reported
        if message.code == ALIVE:
            state = LeaseState.ALIVE
        else:
            state = LeaseState.DONE if message.code in (0, 130) else LeaseState.FAILED
        processes.pop(0, None)
        processes[message.token] = _Process(state, now)
        if message.worker == 0 and message.code == 0:
            self._finished_at = now
        return state in _ENDED

    def expire(self, now: float) -> list[Expired]:
        """All processes that nothing was heard from for too long, each once."""
        found: list[Expired] = []
        for worker, processes in enumerate(self._processes):
            *_, newest = processes
            for token, process in processes.items():
                allowed = self._start_deadline if process.state is LeaseState.EXPECTED else self._lease
                # Who failed is waited for until another process comes.
                waits = process.state in (LeaseState.EXPECTED, LeaseState.ALIVE) or (
                    process.state is LeaseState.FAILED and token == newest
                )
                if waits and now - process.heard_at > allowed:
                    processes[token] = process._replace(state=LeaseState.LOST)
                    is_lost = self.state(worker) is LeaseState.LOST
                    found.append(Expired(worker, token, process.state, is_lost))
        return found

    def state(self, worker: int) -> LeaseState:
        """What is known of one worker."""
        states = [process.state for process in self._processes[worker].values()]
        return LeaseState.ALIVE if LeaseState.ALIVE in states else states[-1]

    @property
    def is_finished(self) -> bool:
        """Whether the chief has reported that the run is finished."""
        return self._finished_at is not None

    def is_over(self, now: float) -> bool:
        """Whether there is nobody left to serve."""
        if self._finished_at is not None and now - self._finished_at > _FINISHED_GRACE:
            return True
        heard_at = max(process.heard_at for process in self._processes[0].values())
        if self.state(0) is LeaseState.LOST and now - heard_at <= self._lease + self._chief_grace:
            return False
        ended = [LeaseState.DONE, LeaseState.LOST]
        if self.state(0) is LeaseState.DONE and now - heard_at > self._lease:
            ended.append(LeaseState.EXPECTED)  # who has not come by now finds no run to join
        return all(self.state(one) in ended for one in range(len(self._processes)))

    def missing(self) -> list[int]:
        """The workers that never reported that they were done."""
        return [one for one in range(len(self._processes)) if self.state(one) is not LeaseState.DONE]


class LeaseKeeper:
    """A worker's side: sends heartbeats to every ps, and at the end that it is done.

    Each ps has a thread and a session of its own, which filters out all the others. So a dead one delays no other.

    Args:
      target, config: the worker's own server, and the ConfigProto that it was built with.
      worker, token: the sender.
      lease: seconds.
      on_stop: called, from another thread, when a ps asks everyone to end.
    """

    def __init__(
        self,
        target: str,
        config: tf.compat.v1.ConfigProto,
        spec: ClusterSpec,
        worker: int,
        token: int,
        *,
        lease: float,
        on_stop: Callable[[], None],
    ):
        self._target, self._config, self._spec = target, config, spec
        self._worker, self._token = worker, token
        self._lease, self._on_stop = lease, on_stop
        self._code = ALIVE
        self._ending = threading.Event()
        self._told = [threading.Event() for _ in spec.ps]
        for ps in range(spec.num_ps):
            threading.Thread(target=self._keep, args=(ps,), name=f"lease-{ps}", daemon=True).start()

    def finish(self, code: int, deadline: float) -> list[int]:
        """Tells every ps that this worker is done; gives those that could not be told within `deadline` seconds.

        Args:
          code: 0 and 130 are final, anything else means that the worker may be started again.
        """
        self._code = code
        self._ending.set()
        for told in self._told:
            told.wait(deadline / len(self._told))
        return [ps for ps, told in enumerate(self._told) if not told.is_set()]

    def _keep(self, ps: int) -> None:
        address = [self._spec.ps[ps]]
        session, message, tell, num_stops = self._open(ps)
        while True:
            is_last = self._ending.is_set()
            feed = {message: Message(self._worker, self._token, self._code if is_last else ALIVE)}
            try:
                if not wait_until_reachable(address):
                    if session.run([tell, num_stops], feed)[1]:
                        self._on_stop()
                    if is_last:
                        self._told[ps].set()
                        return
            except (Outage, LostStep):
                pass  # the next heartbeat goes out on a new session
            if is_last:
                time.sleep(0.1)
            else:
                self._ending.wait(min(self._lease / _BEATS, _LONGEST_SILENCE))

    def _open(self, ps: int) -> tuple[PatientSession, tf.Tensor, tf.Operation, tf.Tensor]:
        alone = tf.compat.v1.ConfigProto.FromString(self._config.SerializeToString())
        alone.device_filters[:] = [f"/job:ps/task:{ps}", *(f for f in self._config.device_filters if f != "/job:ps")]
        with tf.Graph().as_default() as graph:
            message = tf.compat.v1.placeholder(tf.int64, [len(Message._fields)])
            tell = done_queue(ps).enqueue(message)
            num_stops = stop_queue(ps).size()
        graph.finalize()
        session = PatientSession(self._target, graph, alone, [self._spec.ps[ps]], patience=max(self._lease / 2, 5.0))
        return session, message, tell, num_stops
