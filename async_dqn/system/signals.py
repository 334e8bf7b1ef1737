"""SIGINT, SIGTERM, SIGHUP: the first asks a role to end well, a second SIGINT or SIGTERM ends it at once."""

import ctypes
import os
import signal
import sys
import threading
from types import FrameType

# By which a launcher passes on what it was asked for. Not SIGTERM: where somebody signals a whole tree of processes, as
# systemd and batch systems do, every one has that already, and would take the launcher's for the second. A number above
# those of SIGINT and SIGTERM, as Python handles signals that have come together in the order of their numbers.
ASK = int(getattr(signal, "SIGRTMIN", signal.SIGUSR2))
# By which the system says that the launcher has died. It comes once for each thread of it that ends after another.
DIED = ASK + 1 if hasattr(signal, "SIGRTMIN") else signal.SIGHUP
_PR_SET_PDEATHSIG = 1
if sys.platform == "linux":
    _PRCTL = ctypes.CDLL(None).prctl  # looked up here: between fork and exec nothing may take a lock


def end_with_parent(parent: int, number: int) -> None:
    """Has the system send this process signal `number` when the thread that started it ends, however it does.

    Where the parent's process has ended before, this one ends here. Only on Linux; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        _PRCTL(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)


def interrupt() -> None:
    """Until `install`, SIGTERM and SIGHUP do what Ctrl-C does: they raise KeyboardInterrupt. Main thread only."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def install() -> threading.Event:
    """Sets handlers and gives the event that the first signal sets. Main thread only.

    What ends the process at once is a second SIGINT or SIGTERM, or that a launcher has died after it had asked: of its
    own second one. A launcher that was killed has asked nobody, and batch systems send SIGTERM to whoever it leaves.
    """
    stop = threading.Event()
    num_direct = 0
    was_asked = has_begun = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal num_direct, was_asked, has_begun
        del frame
        num_direct += number in (signal.SIGINT, signal.SIGTERM)
        if num_direct > 1 or (number == DIED and was_asked):
            os._exit(130)
        was_asked |= number == ASK
        if not has_begun:  # not stop.is_set(): a parameter server may have asked for the end before
            has_begun = True
            stop.set()

    # SIGHUP comes beside SIGTERM, or when the terminal is closed; who starts a process with nohup wants neither.
    hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []
    for number in (signal.SIGINT, signal.SIGTERM, *hangup, ASK, DIED):
        signal.signal(number, handle)
    return stop
