"""On the PYTHONPATH of a run: its wall clock (`time.time`) is as many seconds off as the file CHAOS_CLOCK says."""

import os
import time

_real_time = time.time


def _jumping_time() -> float:
    try:
        with open(os.environ["CHAOS_CLOCK"]) as file:
            return _real_time() + float(file.read())
    except (OSError, KeyError, ValueError):
        return _real_time()


time.time = _jumping_time
