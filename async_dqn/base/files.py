"""Files that are whole or not there: written under another name, synced, renamed; read only if they are files."""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<process>[0-9]{1,9})\.tmp")
_MAX_TEXT = 64 * 2**20  # bytes of a JSON file; ours have a few thousand


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` by `content`: a reader, or whoever comes after a crash, finds the old file or the new one."""
    remove_leftovers(path.parent, re.escape(path.name))
    with temporary(path) as new:
        write(new, content)
        os.replace(new, path)
    sync_directory(path.parent)


def write_json(path: Path, value: Any, indent: int = 2) -> None:
    """Writes a value as JSON, as `write_atomically` does."""
    write_atomically(path, json.dumps(value, indent=indent).encode() + b"\n")


def read_regular(path: Path, limit: int = _MAX_TEXT) -> bytes:
    """The content of a regular file: ValueError for any other kind, which might never end, or for a larger file."""
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it is larger than {limit:,} bytes")
    return content


def json_object(path: Path) -> dict[str, Any] | None:
    """The object that a JSON file holds; None where there is no file, or it holds something else."""
    try:
        value = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):  # its content may be anything
        return None
    return value if isinstance(value, dict) else None


def remove_leftovers(directory: Path, names: str) -> None:
    """Removes the temporary files that dead processes left of files with these names (a regular expression)."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            match = _TEMPORARY.fullmatch(name)
            if match and re.fullmatch(names, match["name"]) and not _is_another(int(match["process"])):
                with contextlib.suppress(OSError):
                    os.unlink(directory / name)


def _is_another(process: int) -> bool:
    """Whether a process of this number lives that is not this one: in a container, numbers come again."""
    return process != os.getpid() and psutil.pid_exists(process)


@contextlib.contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Another name to write `path` under; what is left of it in the end is removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write(path: Path, content: bytes) -> None:
    """Writes a file. Raises OSError, which names it."""
    try:
        with open(path, "wb") as file:
            file.write(content)
            sync(file)
    except OSError as error:  # of a full disk, it would not
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Makes renames last through a power cut, on the file systems that can."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> IO[bytes]:
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # without O_NONBLOCK, opening a FIFO would wait for ever
        file.close()
        raise ValueError(f"{path.name} is not a regular file")
    return file
