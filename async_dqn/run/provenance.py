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
    here = Path(__file__)
    if not _git("ls-files", here.name):  # installed within a checkout of something else
        return None
    return _git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
