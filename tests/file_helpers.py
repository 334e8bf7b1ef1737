"""Files and processes that tests look at."""

import subprocess
import sys
from pathlib import Path


def names(directory: Path) -> list[str]:
    """What lies there, in order."""
    return sorted(path.name for path in directory.iterdir())


def dead_process() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid
