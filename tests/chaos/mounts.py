"""Disks of the harness's own: small ones, read-only ones, and ones that stand still; nobody else sees them."""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_NEWNS, _NEWUSER = 0x20000, 0x10000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE, _DETACH = 1, 32, 4096, 1 << 14, 1 << 18, 2
_LIBC = ctypes.CDLL(None, use_errno=True)


def enter() -> str:
    """Moves this process, which must have one thread, into a mount namespace. Gives the reason where it cannot."""
    user, group = os.geteuid(), os.getegid()
    try:
        try:
            _call("unshare", _NEWNS)
        except PermissionError:
            _call("unshare", _NEWUSER | _NEWNS)
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                Path(f"/proc/self/{name}").write_text(text)
        _mount("", "/", "", _RECURSIVE | _PRIVATE)
    except (OSError, AttributeError) as error:
        return f"no mount namespace: {error}"
    return ""


@contextlib.contextmanager
def small_disk(path: Path, num_bytes: int) -> Iterator[None]:
    """A disk of this size at `path`."""
    path.mkdir(parents=True)
    _mount("tmpfs", str(path), "tmpfs", 0, f"size={num_bytes}")
    try:
        yield
    finally:
        _unmount(path)


@contextlib.contextmanager
def journaled_disk(path: Path, image: Path, num_bytes: int) -> Iterator[None]:
    """An ext4 disk in a file at `path`, which `standing_still` can stop."""
    path.mkdir(parents=True)
    with open(image, "wb") as file:
        file.truncate(num_bytes)
    _command("mkfs.ext4", "-q", "-F", str(image))
    _command("mount", "-o", "loop", str(image), str(path))
    try:
        yield
    finally:
        _command("umount", str(path))
        image.unlink()


@contextlib.contextmanager
def standing_still(path: Path) -> Iterator[None]:
    """Whoever writes to the disk at `path` waits meanwhile."""
    _command("fsfreeze", "--freeze", str(path))
    try:
        yield
    finally:
        _command("fsfreeze", "--unfreeze", str(path))


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Nothing can be written to the folder, be it by root."""
    _mount(str(path), str(path), "", _BIND)
    try:
        _mount("", str(path), "", _BIND | _REMOUNT | _READ_ONLY)
        yield
    finally:
        _unmount(path)


def _unmount(path: Path) -> None:
    _call("umount2", os.fsencode(path), _DETACH)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    _call("mount", source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), name)


def _command(*words: str) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
