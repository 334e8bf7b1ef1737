"""SIGINT and SIGTERM: the first asks a role to end well, a second one ends it at once."""

import os
import signal
import threading
from types import FrameType


def install() -> threading.Event:
    """Sets handlers and gives the event that the first signal sets. Main thread only."""
    stop = threading.Event()
    num_signals = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal num_signals
        del number, frame
        num_signals += 1
        if num_signals > 1:  # not stop.is_set(): a parameter server may have asked for the end before
            os._exit(130)
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return stop
