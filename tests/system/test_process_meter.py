"""Tests of async_dqn.system.process_meter: work is CPU time, and what is held is memory.

In processes of their own: what other tests have left may be at work in this one.
"""

import json
import subprocess
import sys
from pathlib import Path

from async_dqn.system.process_meter import METER_FIELDS

WORK = """
import json, time
from async_dqn.system.process_meter import ProcessMeter
first = time.monotonic()
meter, begun = ProcessMeter(), time.process_time()
while time.process_time() - begun < 0.3:
    pass
busy, second = meter.read(), time.monotonic()
time.sleep(0.3)
third, idle = time.monotonic(), meter.read()
print(json.dumps([busy, second - first, idle, third - second]))
"""
HOLD = """
import json
import numpy as np
from async_dqn.system.process_meter import ProcessMeter
meter = ProcessMeter()
before, held = meter.read()["resident_mb"], np.ones(10_000_000)
print(json.dumps(meter.read()["resident_mb"] - before))
"""


def printed(program):
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_work_is_cpu_time_and_sleep_is_none():
    busy, at_most, idle, at_least = printed(WORK)
    assert tuple(busy) == METER_FIELDS
    assert busy["cores_used"] * at_most >= 0.25  # CPU seconds, by a time that is no shorter than that which was metered
    assert idle["cores_used"] * at_least < 0.1  # and by one that is no longer


def test_what_is_held_is_memory():
    assert 70 < printed(HOLD) < 100  # of 80 MB
