"""A network namespace of its own for the processes of one run: nobody else can reach the ports they listen on.

TensorFlow's servers listen on all interfaces, without authentication, and run any graph that is sent to them.

A helper (this file run as a script, hence no imports from the package) makes the namespace, hands descriptors of it
over and ends. The namespace then lives as long as a descriptor or a process in it, so that nothing can be left over.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence

_HELPER = (sys.executable, "-I", "-S", os.path.abspath(__file__))
_DEADLINE = 30.0  # seconds for a helper that normally takes a twentieth of one
_NEWNET, _NEWUSER = 0x40000000, 0x10000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_LIBC = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":
    _SETNS, _UNSHARE = _LIBC.setns, _LIBC.unshare  # looked up here: between fork and exec nothing may take a lock

# What may forbid namespaces: setting, the value that does, and the one that does not.
_SETTINGS = (
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user.max_user_namespaces", "0", "1000"),
    ("user.max_net_namespaces", "0", "1000"),
)


class PrivateNetwork:
    """A network with a loopback interface and nothing else."""

    def __init__(self, descriptors: Sequence[int]):
        self._descriptors = list(descriptors)

    @classmethod
    def create(cls, folder: str | os.PathLike[str], helper: Sequence[str] = _HELPER) -> "PrivateNetwork | str":
        """Makes one, or gives the reason why this system does not allow it, with the remedy.

        Args:
          folder: what processes in the namespace must be able to write to.
          helper: how to run this file.
        """
        if sys.platform != "linux":
            return f"{sys.platform} has no network namespaces; close this machine's ports with a firewall"
        try:
            network = cls(_ask_for_namespace(helper))
        except (OSError, subprocess.SubprocessError) as error:
            return f"{_describe(error)}; {_remedy()}"
        try:
            network._check(folder, helper)
        except (OSError, subprocess.SubprocessError) as error:
            network.close()
            return f"{_describe(error)}; {_remedy()}"
        return network

    def enter(self) -> None:
        """Moves the calling process, which must have one thread, into it: made for Popen's preexec_fn.

        A new user namespace maps the caller's ids to themselves, so that files stay whose they are.
        """
        for descriptor in self._descriptors:
            if _SETNS(descriptor, 0) != 0:
                raise OSError(ctypes.get_errno(), "cannot enter the private network")

    def close(self) -> None:
        """Nobody enters it any more; it goes with the last process in it."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _check(self, folder: str | os.PathLike[str], helper: Sequence[str]) -> None:
        """Raises OSError where a process in it cannot do what a run needs."""
        done = subprocess.run(
            [*helper, "check", os.fspath(folder)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE,
            preexec_fn=self.enter,
            start_new_session=True,  # a Ctrl-C is for the launcher
        )
        if done.returncode != 0:
            raise OSError(done.stdout.strip() or f"the helper ended with exit code {done.returncode}")


def _ask_for_namespace(helper: Sequence[str]) -> list[int]:
    """Has a helper make the namespaces; gives their descriptors. Raises OSError with the reason where it could not."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [*helper, "make"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            ours.settimeout(_DEADLINE)
            answer, descriptors, _, _ = socket.recv_fds(ours, 1000, 2)
        finally:
            process.kill()
            process.wait()
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if not descriptors:
        raise OSError(answer.decode(errors="replace") or "the helper gave no answer")
    return descriptors


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
    if _UNSHARE(flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "unshare")


def _make(unshare: Callable[[int], None] = _unshare) -> list[int]:
    """Moves this process into a new network namespace, loopback up. Gives descriptors in the order to enter them."""
    user, group = os.geteuid(), os.getegid()
    names = ["net"]
    try:
        unshare(_NEWNET)
    except PermissionError:
        unshare(_NEWUSER | _NEWNET)
        names = ["user", "net"]
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        name, flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", name, flags | _IFF_UP))
    return [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in names]


def _check_inside(folder: str) -> None:
    """Raises OSError unless loopback works and the folder can be written to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=_DEADLINE).close()
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise OSError(f"{folder} could not be written to from inside, as it is not this user's own")


def _help(task: str, *arguments: str) -> int:
    """The helper's two tasks. Gives the exit code."""
    if task == "make":
        with socket.socket(fileno=sys.stdin.fileno()) as launcher:
            try:
                socket.send_fds(launcher, [b"made"], _make())
            except OSError as error:
                launcher.sendall(_describe(error).encode())
        return 0
    try:
        _check_inside(*arguments)
    except OSError as error:
        print(_describe(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_help(*sys.argv[1:]))
