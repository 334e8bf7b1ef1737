"""How this program starts processes of its own."""

import contextlib
import os
import sys


def python() -> list[str]:
    """The Python of this process, at the start of a command line; it finds modules where this process finds them.

    `python -m` and `python -c` look into the current folder first, where a user may have a `queue.py`, or another
    checkout. Python 3.10 cannot be told not to.
    """
    here = {""}
    with contextlib.suppress(OSError):  # it may have been removed
        here.add(os.getcwd())
    looks_here = not here.isdisjoint(sys.path)
    return [sys.executable] if looks_here or sys.version_info < (3, 11) else [sys.executable, "-P"]


def own_command(*arguments: str) -> list[str]:
    """The command line of one of this program's own commands, such as `ps`, with its flags."""
    return [*python(), "-m", "async_dqn", *arguments]
