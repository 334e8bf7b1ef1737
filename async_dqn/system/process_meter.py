"""What this process takes of the machine."""

import time

import psutil

METER_FIELDS = ("cores_used", "resident_mb")


class ProcessMeter:
    """Reads the CPU time and the memory of the process that it is made in."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._read_at, self._cpu_seconds = time.monotonic(), self._cpu()

    def read(self) -> dict[str, float]:
        """`METER_FIELDS`: CPU seconds a second since the last call, and megabytes (10^6 bytes) in memory now."""
        now, cpu_seconds = time.monotonic(), self._cpu()
        cores = (cpu_seconds - self._cpu_seconds) / max(now - self._read_at, 1e-9)
        self._read_at, self._cpu_seconds = now, cpu_seconds
        return {"cores_used": cores, "resident_mb": self._process.memory_info().rss / 1e6}

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system
