"""What a measurement is made on, and how busy it is."""

import os
import platform
import shlex
import sys
import time
from typing import Any

import psutil

from async_dqn.run import provenance
from async_dqn.system import processor

# Instructions that decide how fast matrices are multiplied.
_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8")


def describe() -> dict[str, Any]:
    """When, how, with what and on what, as plain values."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(["async-dqn", *sys.argv[1:]]),
        "git revision": provenance.git_revision(),
        "versions": provenance.versions(),
        "system": platform.platform(),
        "cpu": processor.name(),
        "cpu model": processor.model(),
        "cpu flags": [flag for flag in _FLAGS if flag in processor.flags()],
        "cores": len(os.sched_getaffinity(0)),
        "memory GB": round(psutil.virtual_memory().total / 1e9, 1),
    }


class Others:
    """What everything but this process and its children takes of the cores, from the making of this object on."""

    def __init__(self) -> None:
        self._begin = _clocks()

    def share(self) -> float:
        """0 to 1 of all cores that this process may use. Its children are its own once they have ended."""
        wall, machine, own = (now - before for now, before in zip(_clocks(), self._begin, strict=True))
        return min(1.0, max(0.0, (machine - own) / (wall * len(os.sched_getaffinity(0)))))


def _clocks() -> tuple[float, float, float]:
    """Seconds: of the clock, of work on this process's cores by anybody, of work by this process and its children."""
    cores = psutil.cpu_times(percpu=True)
    work = ("user", "nice", "system", "irq", "softirq", "steal")
    here = [cores[index] for index in os.sched_getaffinity(0) if index < len(cores)]
    machine = sum(getattr(core, name, 0.0) for core in here for name in work)
    return time.perf_counter(), machine, sum(os.times()[:4])


def busy() -> list[str]:
    """A line on what would disturb a measurement that begins now."""
    load = os.getloadavg()[0]
    return [f"load average {load:.1f} when it began"] if load > 0.5 else []
