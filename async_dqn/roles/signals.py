"""SIGINT and SIGTERM: the first asks a role to end well, a second one ends it at once."""

import os
import signal
import threading
from types import FrameType


def install() -> threading.Event:
    """Sets handlers and gives the event that the first signal sets. Main thread only."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        if stop.is_set():
            os._exit(130)
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return stop
