"""What made a result: versions of packages, the commit."""

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


def git_revision() -> str | None:
    """The commit, with -dirty where files differ from it; None outside of a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
