"""Disks of the harness's own: small ones, read-only ones, and ones that stand still; nobody else sees them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_ENTERED = "CHAOS_MOUNTS"  # in the environment of a process that has a mount namespace of its own


def enter() -> str:
    """Starts this program again, in a mount namespace of its own. Gives the reason where it cannot."""
    if _ENTERED in os.environ:
        return ""
    reason = "there is no unshare"
    for options in (["--mount"], ["--mount", "--map-root-user"]):
        with contextlib.suppress(FileNotFoundError):
            tried = subprocess.run(["unshare", *options, "true"], stderr=subprocess.PIPE, text=True)
            if tried.returncode == 0:
                command = ["unshare", *options, sys.executable, *sys.orig_argv[1:]]
                os.execvpe(command[0], command, os.environ | {_ENTERED: "yes"})
            reason = tried.stderr.strip()
    return f"no mount namespace: {reason}"


@contextlib.contextmanager
def small_disk(path: Path, num_bytes: int) -> Iterator[None]:
    """A disk of this size at `path`."""
    path.mkdir(parents=True)
    with _mounted(path, "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs"):
        yield


@contextlib.contextmanager
def journaled_disk(path: Path, image: Path, num_bytes: int) -> Iterator[None]:
    """An ext4 disk in a file at `path`, which `standing_still` can stop."""
    path.mkdir(parents=True)
    with open(image, "wb") as file:
        file.truncate(num_bytes)
    _run("mkfs.ext4", "-q", "-F", image)
    with _mounted(path, "-o", "loop", image):
        yield
    image.unlink()


@contextlib.contextmanager
def standing_still(path: Path) -> Iterator[None]:
    """Whoever writes to the disk at `path` waits meanwhile."""
    _run("fsfreeze", "--freeze", path)
    try:
        yield
    finally:
        _run("fsfreeze", "--unfreeze", path)


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Nothing can be written to the folder, be it by root."""
    with _mounted(path, "--bind", path):
        _run("mount", "-o", "remount,bind,ro", path)
        yield


@contextlib.contextmanager
def _mounted(path: Path, *what: str | Path) -> Iterator[None]:
    _run("mount", *what, path)
    try:
        yield
    finally:
        _run("umount", "--lazy", path)


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
