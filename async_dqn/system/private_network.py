"""A network namespace of its own for the processes of one run: nobody else can reach the ports they listen on.

TensorFlow's servers listen on all interfaces, without authentication, and run any graph that is sent to them.

A helper (this file run as a script, hence no imports from the package) makes the namespace. It ends once the caller
has opened it. The namespace lives as long as it is open or a process is in it, so that nothing can be left over.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

_PYTHON = (sys.executable, "-I", "-S")
_DEADLINE = 30  # seconds for a helper that normally takes a twentieth of one
_NEWNET, _NEWUSER = 0x40000000, 0x10000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_LIBC = ctypes.CDLL(None, use_errno=True)  # os.setns and os.unshare came with Python 3.12
if sys.platform == "linux":
    _SETNS = _LIBC.setns  # looked up here: between fork and exec nothing may take a lock

# What may forbid namespaces: setting, the value that does, and the one that does not.
_SETTINGS = (
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user.max_user_namespaces", "0", "1000"),
    ("user.max_net_namespaces", "0", "1000"),
)


class PrivateNetwork:
    """A network with a loopback interface and nothing else.

    Args:
      namespaces: open files, in the order in which to enter them.
    """

    def __init__(self, namespaces: Sequence[IO[bytes]]):
        self._namespaces = namespaces

    @classmethod
    def create(
        cls, folder: str | os.PathLike[str], helper: Sequence[str] = (*_PYTHON, os.path.abspath(__file__))
    ) -> "PrivateNetwork | str":
        """Makes one, or gives the reason why this system does not allow it, with the remedy.

        Args:
          folder: what processes in the namespace must be able to write to.
          helper: how to run this file.
        """
        if sys.platform != "linux":
            return f"{sys.platform} has no network namespaces; close this machine's ports with a firewall"
        try:
            network = cls(_open_new([*helper, os.fspath(folder)]))
            subprocess.run([*_PYTHON, "-c", ""], preexec_fn=network.enter, timeout=_DEADLINE, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            return f"{_describe(error)}; {_remedy()}"
        return network

    def enter(self) -> None:
        """Moves the calling process, which must have one thread, into it: made for Popen's preexec_fn.

        A new user namespace maps the caller's ids to themselves, so that files stay whose they are.
        """
        for namespace in self._namespaces:
            if _SETNS(namespace.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), "cannot enter the private network")

    def close(self) -> None:
        """Nobody enters it any more; it goes with the last process in it."""
        for namespace in self._namespaces:
            namespace.close()


def _open_new(helper: Sequence[str]) -> list[IO[bytes]]:
    """Has a helper make namespaces, and opens them. Raises OSError with the reason where it could not."""
    process = subprocess.Popen(
        helper,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # a Ctrl-C is for the launcher
    )
    with process as helping:  # it ends where its standard input does
        assert helping.stdout
        what, _, rest = helping.stdout.readline().strip().partition(" ")
        if what != "made":
            raise OSError(rest or "the helper gave no answer")
        return [open(f"/proc/{helping.pid}/ns/{name}", "rb", buffering=0) for name in rest.split()]


def _describe(error: Exception) -> str:
    """What went wrong, in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _remedy() -> str:
    """What would allow namespaces on this system, or protect without them."""
    changes = []
    for name, forbids, allows in _SETTINGS:
        with contextlib.suppress(OSError), open(f"/proc/sys/{name.replace('.', '/')}") as file:
            if file.read().strip() == forbids:
                changes.append(f"sysctl {name}={allows}")
    allow = f"{' and '.join(changes)} would allow it, or " if changes else ""
    return f"{allow}close this machine's ports with a firewall"


def _unshare(flags: int) -> None:
    """Moves this process into new namespaces."""
    if _LIBC.unshare(flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "unshare")


def _make() -> list[str]:
    """Moves this process into a new network namespace, loopback up. Gives the kinds of namespaces that it took."""
    user, group = os.geteuid(), os.getegid()
    kinds = ["net"]
    try:
        _unshare(_NEWNET)
    except PermissionError:
        _unshare(_NEWUSER | _NEWNET)
        kinds = ["user", "net"]
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    return kinds


def _check(folder: str) -> None:
    """Raises OSError unless loopback works and the folder can be written to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=_DEADLINE).close()
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise OSError(f"{folder} could not be written to from inside, as it is not this user's own")


def _help(folder: str) -> None:
    """What the helper does: says what it has made, or why it could not, and waits until that is opened."""
    signal.alarm(_DEADLINE)
    try:
        kinds = _make()
        _check(folder)
    except OSError as error:
        print("failed", _describe(error), flush=True)
    else:
        print("made", *kinds, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _help(*sys.argv[1:])
