"""A TensorFlow session whose steps end: in time, as lost, or with an outage.

TensorFlow's gRPC runtime loses a step now and then. A request for a step has a random id, and a server refuses one if
its id is among the last 100,000 ("received twice", recent_request_ids.cc). The id is the first draw of a generator that
is seeded with 32 bits (ThreadLocalNew64 in random.cc), in a thread started for this step (SchedClosure in env.cc), so
that one step in some 43,000 is refused: at fifty a second, one in a quarter of an hour. Besides, one step was seen that
never came back, whatever deadline it had, and opening a session to a dead server never returns at all. So every step
runs in a thread that can be left behind.
"""

import concurrent.futures
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from async_dqn.base.background import Background
from async_dqn.base.errors import NoAnswer, Outage, Silence
from async_dqn.cluster.spec import wait_until_reachable

# Seconds of patience with steps that do not leave the process. Long, as a step for which a frozen process takes longer
# counts as lost, and the message that it had in hand is lost with it.
OWN_PATIENCE = 60.0
_PATIENCE, _LONGEST_PATIENCE = 15.0, 120.0  # seconds with steps to the parameter servers
_URGENT_PATIENCE = 5.0  # seconds, in a process that is to end
_LOOK_PERIOD = 0.5  # seconds between two looks at whether it is
_CONNECTION_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)


class LostStep(Exception):
    """A step that may or may not have been made. The session is a new one already: try again."""


def patience_within(deadline: float) -> float:
    """Seconds of patience with a step that may be sent again until a deadline; a long one says that links are slow."""
    return min(max(_PATIENCE, min(deadline / 4, _LONGEST_PATIENCE)), deadline)


def run_again(step: Callable[[], Any], deadline: float) -> Any:
    """Calls a step that may be made twice until it is through. Raises LostStep where `deadline` seconds do not do."""
    end = time.monotonic() + deadline
    while True:
        try:
            return step()
        except LostStep:
            if time.monotonic() > end:
                raise


def run_patiently(step: Callable[[], Any], deadline: float, addresses: Sequence[str]) -> Any:
    """As `run_again`, but raises NoAnswer, which names the servers."""
    try:
        return run_again(step, deadline)
    except LostStep as error:
        servers = ", ".join(addresses)
        raise NoAnswer(f"no answer from parameter servers {servers} within {deadline:.0f} s (--ps_deadline)") from error


class _Connection:
    """A session and the thread that its steps are made in, which may have to be left behind together."""

    def __init__(self, open_session: Callable[[], Any]):
        self._open = open_session
        self._session: Any = None
        self._calls = Background("parameter-steps")

    def submit(self, fetches: Any, feed: dict[tf.Tensor, Any] | None) -> concurrent.futures.Future:
        """Queues one step."""
        return self._calls.submit(self._step, fetches, feed)

    def _step(self, fetches: Any, feed: dict[tf.Tensor, Any] | None) -> Any:
        if self._session is None:  # opened here, as that may never return
            self._session = self._open()
        return self._session.run(fetches, feed)

    def leave(self) -> None:
        """Closes the session and ends the thread, once the step that may hang there is over; waits for neither."""
        self._calls.submit(self._close)
        self._calls.close()

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()

    def abandon(self) -> None:
        """Ends the thread alone: the session goes with the process."""
        self._calls.close()


class PatientSession:
    """Runs steps of one graph, one at a time.

    Args:
      target, graph, config: as for `tf.compat.v1.Session`.
      addresses: the servers that take part in the steps.
      patience: seconds after which a step counts as lost.
      is_urgent: whether this process is to end: then a step without an answer is an outage, and after a moment.
    """

    def __init__(
        self,
        target: str,
        graph: tf.Graph,
        config: tf.compat.v1.ConfigProto,
        addresses: Sequence[str],
        patience: float,
        is_urgent: Callable[[], bool] = lambda: False,
    ):
        self._is_urgent = is_urgent
        self._open = lambda: tf.compat.v1.Session(target, graph=graph, config=config)
        self.addresses = addresses
        self.patience = patience
        self._connection = self._connect()

    def _connect(self) -> _Connection:
        return _Connection(lambda: self._open())

    def renew(self) -> None:
        """Leaves the session behind and goes on with a new one, as after an outage."""
        self._connection.leave()
        self._connection = self._connect()

    def run(self, fetches: Any, feed: dict[tf.Tensor, Any] | None = None) -> Any:
        """Runs one step.

        Raises:
          LostStep: no answer, though every server listens.
          Outage: a server does not listen, or has lost its variables.
          Silence: no answer, and there is no time to wait.
        """
        call = self._connection.submit(fetches, feed)
        try:
            return self._await(call)
        except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError) as error:
            self.renew()
            raise Outage("a parameter server was restarted and has lost its variables") from error
        except concurrent.futures.TimeoutError as error:
            if self._is_urgent():
                self.renew()
                raise Silence("no answer from the parameter servers") from error
            raise self._lost(f"no answer within {self.patience:.0f} s") from error
        except _CONNECTION_ERRORS as error:
            raise self._lost(f"{type(error).__name__}: {' '.join(str(error.message).split())[:200]}") from error

    def _await(self, call: concurrent.futures.Future) -> Any:
        """What the step gives, or raises. Raises concurrent.futures.TimeoutError."""
        begin = time.monotonic()
        while not concurrent.futures.wait([call], min(self.patience, _LOOK_PERIOD)).done:
            waited = time.monotonic() - begin
            if waited >= self.patience or (self._is_urgent() and waited > _URGENT_PATIENCE):
                raise concurrent.futures.TimeoutError  # not the builtin one before Python 3.11
        return call.result()

    def _lost(self, reason: str) -> Exception:
        missing = wait_until_reachable(self.addresses)
        self.renew()
        if missing:
            return Outage(f"the parameter server at {', '.join(missing)} has ended ({reason})")
        return LostStep(reason)

    def close(self) -> None:
        """Ends the thread; the session goes with the process, as closing one may wait for a dead server."""
        self._connection.abandon()
