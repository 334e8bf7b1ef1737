"""Keeps TensorFlow's start-up noise off the terminal, and nothing else."""

import os
import re
import threading

# glog and absl lines (I0000 00:00:..., 2026-11-21 10:00:00.0: I tensorflow/...) of levels info and warning.
_NOISE = re.compile(
    rb"^([IWE]\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IW] |WARNING: All log messages before absl|"
    rb"To enable the following instructions|WARNING:tensorflow:)"
)


def quiet_stderr() -> None:
    """Passes standard error through a filter that drops the noise. Before TensorFlow is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    terminal = os.dup(2)
    read_end, write_end = os.pipe()
    os.dup2(write_end, 2)
    os.close(write_end)
    thread = threading.Thread(target=_pump, args=(read_end, terminal), name="quiet-stderr", daemon=True)
    thread.start()


def _pump(source: int, destination: int) -> None:
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            if not _NOISE.match(line):
                os.write(destination, line)
