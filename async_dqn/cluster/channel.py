"""A channel: numbered requests of one worker to the parameter servers, each of which counts once.

A worker has two, as the ledger has two sequences of requests: one for counts, one for pushes. Each has a session of its
own. So a claim or an episode report does not wait for a round trip that is made in the background (`--overlap`). Within
a channel requests are sent one at a time, because the ledger knows only the answer to the last one.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.base.errors import Outage
from async_dqn.cluster.ledger import Counted
from async_dqn.cluster.parameter_graph import ParameterGraph
from async_dqn.cluster.patient_session import LostStep, PatientSession, run_patiently
from async_dqn.store.base import Counters

_HOLD_PERIOD = 0.005  # seconds between two tries while a hold is on
_LONGEST_HOLD = 5.0  # seconds; a chief that needs more has ended or stands still

Step = tuple[Any, dict[tf.Tensor, Any]]  # what to fetch and what to feed


class Outages:
    """Whether the parameters are out of reach. All channels of a store share it."""

    def __init__(self) -> None:
        self._outage: Outage | None = None

    def check(self) -> None:
        """Raises the outage that is on."""
        if self._outage:
            raise self._outage

    def begin(self, outage: Outage) -> Outage:
        """From now on every request is refused, until `end`."""
        self._outage = outage
        return outage

    def end(self) -> None:
        """Requests may be tried again."""
        self._outage = None


class Answer(NamedTuple):
    """What the ledger says to a request, as far as the sender must know."""

    before: Counters
    after: Counters
    granted: int
    mark: np.ndarray  # see `Counted`


class Channel:
    """Sends requests, and the same ones again where an answer was lost.

    Attributes:
      session: what its steps run on.

    Args:
      counted: the node of its requests in the graph.
      plain: what is fetched and fed with a request whose other work was given up.
      deadline: seconds that anything may take before `NoAnswer` is raised.
      warn: takes a line on what went wrong and was mended.
      explain_refusal: raises what a worker that is no longer the member has to be told.
      release: ends a hold, by its number.
    """

    def __init__(
        self,
        session: PatientSession,
        outages: Outages,
        nodes: ParameterGraph,
        counted: Counted,
        plain: Step,
        *,
        deadline: float,
        warn: Callable[[str], None],
        explain_refusal: Callable[[], None],
        release: Callable[[int], None],
    ):
        self.session = session
        self._outages, self._nodes, self._counted, self._plain = outages, nodes, counted, plain
        self._deadline, self._warn = deadline, warn
        self._explain_refusal, self._release = explain_refusal, release
        self._sending = threading.RLock()  # requests must arrive in the order of their numbers
        self._running = threading.RLock()  # the session runs one step at a time
        self._last = 0
        self._unsettled: dict[int, Counters] = {}  # by number: counts that may or may not have arrived

    def run(self, fetches: Any, feed: dict[tf.Tensor, Any] | None = None) -> Any:
        """Runs one step. Raises Outage, at once from then on until `renew`, and LostStep."""
        with self._running:
            self._outages.check()
            try:
                return self.session.run(fetches, feed)
            except Outage as outage:
                raise self._outages.begin(outage) from outage.__cause__
            except LostStep as lost:
                self._warn(f"a step to the parameter servers was lost ({lost}); it is sent again where that may be")
                raise

    def run_again(self, fetches: Any, feed: dict[tf.Tensor, Any] | None = None) -> Any:
        """Runs one step that may be repeated, until it is through. Raises NoAnswer after the deadline."""
        return run_patiently(lambda: self.run(fetches, feed), self._deadline, self.session.addresses)

    def send(self, counts: Counters, step: Step, again: Callable[[], Step] | None = None) -> tuple[Answer, Any]:
        """Adds `counts` and makes the step, each exactly once. Gives the answer, and what the step fetched.

        Args:
          again: what to send after the answer was lost; None: the same.
        """
        with self._sending:
            self._last += 1
            self._unsettled[self._last] = counts
            answer = self._send(self._last, counts, step, again)
            del self._unsettled[self._last]
        return answer

    def _send(
        self, number: int, counts: Counters, step: Step, again: Callable[[], Step] | None = None
    ) -> tuple[Answer, Any]:
        request = {self._nodes.counts: np.array(counts, np.int64), self._nodes.request: number}
        held, held_since = 0, 0.0
        while True:
            try:
                counted, found = self.run([self._counted, step[0]], step[1] | request)
            except LostStep:
                step = again() if again else step
                counted, found = self.run_again([self._counted, step[0]], step[1] | request)
            if not counted.is_member:
                self._explain_refusal()
            if not counted.hold:
                before, after = (Counters(*map(int, row)) for row in (counted.before, counted.after))
                return Answer(before, after, max(int(counted.granted), 0), counted.mark), found
            if counted.hold != held:
                held, held_since = int(counted.hold), time.monotonic()
            if time.monotonic() - held_since > _LONGEST_HOLD:
                self._release(held)
                held_since = time.monotonic()
            time.sleep(_HOLD_PERIOD)

    def look(self, step: Step, again: Callable[[], Step] | None = None) -> tuple[Answer, Any]:
        """Makes a step that counts nothing; arguments and what it gives are as those of `send`."""
        with self._sending:
            return self._send(0, Counters(), step, again)

    def settle(self) -> int:
        """After an outage: sends counts that may not have arrived. Gives the steps granted to calls that never knew.

        The updates of these calls are given up: where one has arrived it is counted already, else it was dropped.
        """
        unheard_of = 0
        with self._sending:
            for number, counts in sorted(self._unsettled.items()):
                given_up = counts._replace(updates=0, model_updates=0, dropped=counts.dropped + counts.updates)
                unheard_of += self._send(number, given_up, self._plain)[0].granted
                del self._unsettled[number]
        return unheard_of

    def restart(self) -> None:
        """Numbers requests from 1 again, as a member that has just joined. Counts that were not heard are given up."""
        with self._sending:
            self._last = 0
            self._unsettled.clear()

    def renew(self) -> None:
        """Goes on with a new session."""
        with self._running:
            self.session.renew()
