"""Tests of async_dqn.system.process_meter: work is CPU time, and what is held is memory."""

import time

import numpy as np

from async_dqn.system.process_meter import METER_FIELDS, ProcessMeter


def test_work_is_cpu_time_and_sleep_is_none():
    meter = ProcessMeter()
    begun = time.process_time()
    while time.process_time() - begun < 0.3:
        pass
    busy = meter.read()
    assert tuple(busy) == METER_FIELDS
    wall = time.monotonic()
    time.sleep(0.3)
    idle = meter.read()
    seconds = time.monotonic() - wall
    assert idle["cores_used"] < busy["cores_used"]
    assert idle["cores_used"] * seconds < 0.1  # CPU seconds, in a process whose other threads have nothing to do


def test_what_is_held_is_memory():
    meter = ProcessMeter()
    before = meter.read()["resident_mb"]
    held = np.ones(10_000_000)  # 80 MB
    assert meter.read()["resident_mb"] - before > 70
    assert held.sum() == 10_000_000
