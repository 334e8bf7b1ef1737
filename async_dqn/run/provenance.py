"""What made a result: versions of packages, the processor, the commit."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

PACKAGES = ("async-dqn", "tensorflow", "gymnasium", "ale-py", "numpy")


def versions() -> dict[str, str | None]:
    """Of PACKAGES and of Python; None of what is not installed."""
    return {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_info() -> dict[str, str]:
    """What /proc/cpuinfo says of the first core; nothing where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def cpu_name() -> str:
    """The processor's name, or else the machine's kind."""
    return cpu_info().get("model name", platform.machine())


def git_revision() -> str | None:
    """The commit, with -dirty where files differ from it; None outside of a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
