"""Tests of async_dqn.cluster.patient_session: steps that hang or fail, on a session that is none."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from cluster_helpers import wait_until

from async_dqn.base.errors import Outage
from async_dqn.cluster import patient_session
from async_dqn.cluster.done_queue import ALIVE, Message, PsQueues
from async_dqn.cluster.eviction import Evictor
from async_dqn.cluster.patient_session import LostStep, PatientSession, patience_within, run_again
from async_dqn.cluster.spec import ClusterSpec

SOON = 0.2  # patience where a step never ends
LONG = 30.0  # patience where it does


class Script:
    """Sessions that do what a list says, one entry for each step: a value to give, an error, or HANG."""

    HANG = object()

    def __init__(self, *steps, opens=()):
        self._steps, self._opens = list(steps), list(opens)
        self._released = threading.Event()
        self.num_opened = self.num_closed = 0
        self.fed = []

    def open(self):
        self.num_opened += 1
        if self._opens:
            self._do(self._opens.pop(0))
        return self

    def run(self, fetches, feed):
        self.fed.append((fetches, feed))
        return self._do(self._steps.pop(0))

    def close(self):
        self.num_closed += 1

    def release(self):
        """Lets go of all threads that hang."""
        self._released.set()

    def _do(self, step):
        if step is Script.HANG:
            assert self._released.wait(60)
            return None
        if isinstance(step, Exception):
            raise step
        return step


@pytest.fixture
def listening():
    """The address of a server that listens, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent():
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    return address


@contextlib.contextmanager
def patient(script, addresses, patience=LONG, is_urgent=lambda: False):
    session = PatientSession("grpc://nowhere", tf.Graph(), tf.compat.v1.ConfigProto(), addresses, patience, is_urgent)
    session._open = script.open
    try:
        yield session
    finally:
        script.release()
        session.close()


def error(kind, text="Socket\n  closed"):
    return kind(None, None, text)


CONNECTION = [
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
]


def test_steps_are_made_in_one_session(listening):
    script = Script(1, [2, 3])
    with patient(script, [listening]) as session:
        assert script.num_opened == 0  # opening it may take for ever, and so is a step too
        assert session.run("a", {"b": 4}) == 1
        assert session.run("c") == [2, 3]
    assert script.num_opened == 1
    assert script.fed == [("a", {"b": 4}), ("c", None)]


@pytest.mark.parametrize("kind", CONNECTION)
def test_an_error_of_the_connection_is_a_lost_step_while_all_servers_listen(kind, listening):
    script = Script(error(kind), 5)
    with patient(script, [listening, listening]) as session:
        with pytest.raises(LostStep, match=rf"^{kind.__name__}: Socket closed$"):
            session.run("a")
        assert session.run("a") == 5  # on a new session
    assert script.num_opened == 2


@pytest.mark.parametrize("kind", CONNECTION)
def test_it_is_an_outage_where_a_server_does_not(kind, listening, silent):
    script = Script(error(kind), 5)
    with patient(script, [listening, silent]) as session:
        with pytest.raises(Outage, match=f"^the parameter server at {silent} has ended .*{kind.__name__}: Socket"):
            session.run("a")
        session.renew()
        assert session.run("a") == 5


def test_a_step_without_an_answer_is_lost_and_left_behind(listening):
    script = Script(Script.HANG, 5, 6)
    with patient(script, [listening], SOON) as session:
        with pytest.raises(LostStep, match="^no answer within 0 s$"):
            session.run("a")
        session.patience = LONG
        assert [session.run("b"), session.run("c")] == [5, 6]  # though the first one still hangs
    assert script.num_opened == 2


def test_a_step_without_an_answer_of_a_server_that_ended_is_an_outage(silent):
    script = Script(Script.HANG)
    with patient(script, [silent], SOON) as session, pytest.raises(Outage, match=f"{silent} has ended .no answer"):
        session.run("a")


def test_a_process_that_is_to_end_does_not_wait_for_an_answer(listening, monkeypatch):
    monkeypatch.setattr(patient_session, "_URGENT_PATIENCE", SOON)
    is_urgent = threading.Event()
    script = Script(Script.HANG, 5)
    with patient(script, [listening], LONG, is_urgent.is_set) as session:
        threading.Timer(SOON, is_urgent.set).start()
        begin = time.monotonic()
        with pytest.raises(Outage, match="^no answer from the parameter servers$"):
            session.run("a")
        assert SOON < time.monotonic() - begin < LONG / 2
        assert session.run("b") == 5  # what answers at once is waited for


def test_a_session_that_does_not_open_is_a_lost_step(listening):
    script = Script(5, opens=[Script.HANG, error(tf.errors.UnavailableError)])
    with patient(script, [listening], SOON) as session:
        with pytest.raises(LostStep, match="no answer"):
            session.run("a")
        session.patience = LONG
        with pytest.raises(LostStep, match="UnavailableError"):
            session.run("a")
        assert session.run("a") == 5
    assert script.num_opened == 3


@pytest.mark.parametrize("kind", [tf.errors.FailedPreconditionError, tf.errors.NotFoundError])
def test_a_server_that_has_lost_its_variables_is_an_outage_though_it_listens(kind, listening):
    script = Script(error(kind, "ledger_0 does not exist"), 5)
    with patient(script, [listening]) as session:
        with pytest.raises(Outage, match="was restarted and has lost its variables"):
            session.run("a")
        session.renew()
        assert session.run("a") == 5
    assert script.num_opened == 2


@pytest.mark.parametrize("fault", [error(tf.errors.InvalidArgumentError), ValueError("bad"), TypeError("worse")])
def test_errors_of_the_program_are_passed_on_and_keep_the_session(fault, listening):
    script = Script(fault, 5)
    with patient(script, [listening]) as session:
        with pytest.raises(type(fault)):
            session.run("a")
        assert session.run("a") == 5
    assert script.num_opened == 1


def test_renewing_leaves_a_step_that_hangs_behind(listening):
    script = Script(Script.HANG, 5)
    with patient(script, [listening], SOON) as session:
        with pytest.raises(LostStep):
            session.run("a")
        session.renew()
        session.patience = LONG
        assert session.run("a") == 5


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "parameter-steps"]


@pytest.mark.parametrize(
    "fault", [error(tf.errors.AbortedError), error(tf.errors.NotFoundError), Script.HANG], ids=["lost", "gone", "hangs"]
)
def test_what_is_left_behind_is_closed_and_its_thread_ends(fault, listening):
    others = set(threads())
    script = Script(1, fault, 5)
    with patient(script, [listening]) as session:
        session.run("a")
        session.patience = SOON if fault is Script.HANG else LONG
        with pytest.raises((LostStep, Outage)):
            session.run("b")
        session.patience = LONG
        assert session.run("c") == 5
        script.release()
        wait_until(lambda: script.num_closed == 1, LONG, "the first session is closed")
        wait_until(lambda: len(set(threads()) - others) == 1, LONG, "its thread has ended")
        assert script.num_opened == 2


def test_a_long_message_is_cut():
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = Script(error(tf.errors.UnknownError, "x" * 10_000))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with patient(script, [address]) as session, pytest.raises(LostStep) as caught:
            session.run("a")
    assert len(str(caught.value)) < 300


def test_a_step_is_made_again_until_it_is_through(listening):
    script = Script(error(tf.errors.AbortedError), error(tf.errors.UnavailableError), 5)
    with patient(script, [listening]) as session:
        assert run_again(lambda: session.run("a", {"b": 4}), LONG) == 5
    assert script.fed == [("a", {"b": 4})] * 3
    assert script.num_opened == 3


def test_a_step_is_not_made_again_after_an_outage(listening):
    script = Script(error(tf.errors.AbortedError), error(tf.errors.FailedPreconditionError))
    with patient(script, [listening]) as session, pytest.raises(Outage, match="has lost its variables"):
        run_again(lambda: session.run("a"), LONG)
    assert len(script.fed) == 2


def test_a_step_that_never_gets_through_is_given_up():
    tries = []

    def step():
        tries.append(time.monotonic())
        raise LostStep("again")

    begin = time.monotonic()
    with pytest.raises(LostStep, match="again"):
        run_again(step, SOON)
    assert len(tries) > 1 and time.monotonic() - begin >= SOON


# What a parameter server does with a step that its own server refuses, as TensorFlow does at random.


SPEC = ClusterSpec(ps=("127.0.0.1:3",), worker=("127.0.0.1:1", "127.0.0.1:2"))  # none of them can be reached


def own(kind, script, *arguments):
    """A ps's own end of something, on a session that is none."""
    end = kind("grpc://nowhere", tf.compat.v1.ConfigProto(), *arguments)
    end._session._open = script.open
    return end


REFUSED = error(tf.errors.AbortedError, "The same RunGraph (Worker) request was received twice.")


def test_no_message_is_lost_with_a_step():
    a, b, c = Message(0, 11, ALIVE), Message(1, 12, ALIVE), Message(0, 11, 0)
    script = Script(2, np.array(a), REFUSED, REFUSED, 2, np.array(b), np.array(c), 0)
    queues = own(PsQueues, script, 0)
    assert [queues.take() for _ in range(4)] == [[a], [], [b, c], []]
    assert script.num_opened == 3


def test_the_workers_are_told_to_end_though_a_step_is_lost():
    script = Script(REFUSED, None)
    own(PsQueues, script, 0).ask_to_stop()
    assert len(script.fed) == 2


def test_a_seat_is_freed_though_a_step_is_lost():
    script = Script(REFUSED, None)
    evictor = own(Evictor, script, SPEC)
    evictor.evict(1, token=12)
    assert script.fed == [(evictor._evict[1], {evictor._token: 12})] * 2


def test_a_seat_is_freed_later_where_that_took_too_long(monkeypatch):
    """A server that was frozen finds its own step lost, however often it tries in the time that it has."""
    script = Script(REFUSED, None)
    evictor = own(Evictor, script, SPEC)
    monkeypatch.setattr("async_dqn.cluster.eviction.OWN_PATIENCE", -1.0)
    evictor.evict(1, token=12)
    assert len(script.fed) == 1
    evictor.tick()
    evictor.tick()
    assert script.fed == [(evictor._evict[1], {evictor._token: 12})] * 2


@pytest.mark.parametrize("kind", [tf.errors.FailedPreconditionError, tf.errors.NotFoundError])
def test_where_there_is_no_ledger_yet_there_is_no_seat_to_free(kind):
    script = Script(error(kind))
    own(Evictor, script, SPEC).evict(0, token=11)
    assert len(script.fed) == 1


def test_patience_with_a_step_is_a_part_of_what_there_is_with_all_of_its_repetitions():
    assert [patience_within(deadline) for deadline in (2, 60, 200, 3_600)] == [2, 15, 50, 120]
