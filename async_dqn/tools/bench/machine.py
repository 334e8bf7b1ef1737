"""What a measurement was made on, and who else was using it."""

import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from typing import Any

import psutil

from async_dqn.run import provenance

# Instructions that decide how fast matrices are multiplied.
_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8")
_BUSY_LOAD = 0.5
_BUSY_CORES = 0.1


def describe() -> dict[str, Any]:
    """Plain values for JSON: when, how, with what and on what."""
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


class Others:
    """Processes that are not this one's: what they take of the cores from construction on."""

    def __init__(self) -> None:
        self._time = time.monotonic()
        self._before = {process.pid: seconds for process, seconds in _others()}

    def cores(self) -> dict[str, float]:
        """Cores that each took, on average, by "name (pid)"; those that have ended meanwhile are not known."""
        elapsed = max(time.monotonic() - self._time, 1e-9)
        found = {}
        for process, seconds in _others():
            used = max(0.0, seconds - self._before.get(process.pid, 0.0))
            found[f"{process.info['name']} ({process.pid})"] = used / elapsed
        return found


def _own() -> set[int]:
    """This process and all that descend from it."""
    me = psutil.Process()
    return {me.pid, *(child.pid for child in me.children(recursive=True))}


def _others() -> list[tuple[psutil.Process, float]]:
    """Each other process, with the seconds of a core that it has used."""
    own = _own()
    listed = psutil.process_iter(["name", "cpu_times"])
    return [
        (process, process.info["cpu_times"].user + process.info["cpu_times"].system)
        for process in listed
        if process.pid not in own and process.info["cpu_times"] is not None
    ]


def why_busy(load: float, cores: Mapping[str, float]) -> list[str]:
    """A line on everything that would disturb a measurement; none on a quiet machine.

    Args:
      load: the load average of the last minute.
      cores: what `Others` found.
    """
    lines = [f"load average {load:.1f} when it began"] if load > _BUSY_LOAD else []
    heavy = sorted(((share, who) for who, share in cores.items() if share > _BUSY_CORES), reverse=True)
    return lines + [f"{who} took {share:.1f} cores when it began" for share, who in heavy]


def look(seconds: float = 1.0) -> list[str]:
    """Looks for so long at what the machine does. Gives `why_busy`'s lines."""
    others = Others()
    time.sleep(seconds)
    return why_busy(os.getloadavg()[0], others.cores())
