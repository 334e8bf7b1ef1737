"""Keeps TensorFlow's start-up noise off the terminal, and nothing else."""

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator

# glog and absl lines (I0000 00:00:..., 2026-11-21 10:00:00.0: I tensorflow/...), and what comes before them.
_NOISE = re.compile(
    rb"^([IWE]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] |WARNING: All log messages before absl|"
    rb"To enable the following instructions|WARNING:tensorflow:|"
    # gRPC on a connection that broke, which is told in a line of ours.
    rb"Additional GRPC error information|:UNKNOWN:Error received from peer|=+$)"
)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Passes standard error through a filter that drops the noise. Entered before TensorFlow is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    terminal = os.dup(2)
    read_end, write_end = os.pipe()
    os.dup2(write_end, 2)
    os.close(write_end)
    thread = threading.Thread(target=_pump, args=(read_end, terminal), name="quiet-stderr", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)  # closes the pipe's last end here, so that the pump sees its end
        thread.join(1.0)  # a child that holds the pipe open must not keep this process


def _pump(source: int, destination: int) -> None:
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            if not _NOISE.match(line):
                with contextlib.suppress(OSError):  # a log on a full disk must not hold up whoever writes to it
                    os.write(destination, line)
