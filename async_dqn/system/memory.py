"""How much memory there is."""

from pathlib import Path

import psutil


def available_bytes() -> int:
    """Memory that this process may still take: the machine's, or its control group's where that is less."""
    available = psutil.virtual_memory().available
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return available
    return min(available, limit - used)
