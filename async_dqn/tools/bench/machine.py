"""What a measurement is made on, and how busy it is."""

import os
import platform
import shlex
import sys
import time
from typing import Any

import psutil

from async_dqn.run import provenance

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
        "cpu": provenance.cpu_name(),
        "cpu flags": [flag for flag in _FLAGS if flag in provenance.cpu_info().get("flags", "").split()],
        "cores": len(os.sched_getaffinity(0)),
        "memory GB": round(psutil.virtual_memory().total / 1e9, 1),
    }


def busy() -> list[str]:
    """A line on what would disturb a measurement that begins now."""
    load = os.getloadavg()[0]
    return [f"load average {load:.1f} when it began"] if load > 0.5 else []
