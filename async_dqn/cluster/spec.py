"""The cluster spec: which processes make up the cluster, and at which addresses.

A spec file is JSON, with one "host:port" a process. The order gives the task indices; worker 0 is the chief:

    {"ps": ["host-a:2222"], "worker": ["host-a:2223", "host-b:2222"]}

The form of TF_CONFIG, {"cluster": {"ps": [...], "worker": [...]}}, is read as well. A "chief" in it is worker 0, and
the workers move up by one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import ipaddress
import json
import os
import re
import reprlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from async_dqn.base.errors import UserError

JOBS = ("ps", "worker")
_CHIEFS = ("chief", "master")  # what others call worker 0
_EVALUATOR = "evaluator"  # takes no part

_MAX_TEXT = 2**22  # a line for each of 50,000 processes

_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[^\[\]]*\]):(?P<port>[0-9]+)")

# Bounded and escaped, so that a message quoting any value stays one line.
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80
_repr.maxlevel = 2


@dataclasses.dataclass(frozen=True)
class ClusterSpec:
    """The addresses of all parameter servers and workers, each "host:port" or "[IPv6]:port"."""

    ps: tuple[str, ...]
    worker: tuple[str, ...]

    def __post_init__(self) -> None:
        seen: dict[tuple[str, int], str] = {}
        for job in JOBS:
            addresses = getattr(self, job)
            if not addresses:
                raise UserError(f'no {job}: "{job}" must list at least one "host:port"')
            for index, address in enumerate(addresses):
                name = f"{job} {index}"
                parts = host_and_port(address, name)
                if parts in seen:
                    raise UserError(f"{name} repeats the address of {seen[parts]}, {address}; each needs its own")
                seen[parts] = name

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ClusterSpec:
        """Read a spec file.

        Raises:
            UserError: the file cannot be read or does not describe a cluster.
        """
        source = f"cluster spec {_show_path(path)}"
        try:
            with open(path, encoding="utf-8-sig") as file:
                text = file.read(_MAX_TEXT + 1)  # /dev/zero never ends
        except UnicodeDecodeError:
            raise UserError(f"{source} is not UTF-8 text, so not JSON") from None
        except OSError as error:
            raise UserError(f"{source} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise UserError(f"{source} cannot be read: {error}") from None
        if len(text) > _MAX_TEXT:
            raise UserError(f"{source} is longer than {_MAX_TEXT:,} characters, so not one of a cluster")
        value = _parse_json(text, source)
        with _named(source):
            if not isinstance(value, dict):
                raise UserError(f'{_repr.repr(value)} is not an object {{"ps": [...], "worker": [...]}}')
            if "cluster" in value:
                if len(value) > 1:
                    raise UserError('nothing may stand beside "cluster"; a task is chosen with --task_index')
                value = value["cluster"]
            return _from_json(value)

    @classmethod
    def from_tf_config(cls, value: str) -> tuple[ClusterSpec, str | None, int | None]:
        """Read the value of the environment variable TF_CONFIG.

        Returns:
            The spec, and this process's job and task index as far as "task" names them.

        Raises:
            UserError: the value does not describe a cluster of ps and workers and a task in it.
        """
        config = _parse_json(value, "TF_CONFIG")
        with _named("TF_CONFIG"):
            if not isinstance(config, dict) or "cluster" not in config:
                raise UserError(f'no "cluster" in {_repr.repr(config)}; it must be an object that has one')
            spec = _from_json(config["cluster"])
            task = config.get("task", {})
            if not isinstance(task, dict):
                raise UserError(f'"task" is {_repr.repr(task)}; it must be like {{"type": "worker", "index": 0}}')
            job, index = task.get("type"), task.get("index")
            if job == _EVALUATOR:
                raise UserError(
                    'its task is an evaluator, which takes no part in training: run "async-dqn evaluate '
                    '--logdir=FOLDER" there instead, once for each checkpoint that is to be played'
                )
            num_chiefs = sum(len(config["cluster"].get(chief, ())) for chief in _CHIEFS)
            if job in _CHIEFS and num_chiefs and index in (None, 0):
                job, index = "worker", 0
            elif job == "worker" and type(index) is int:
                index += num_chiefs  # the others move up
            if job is not None:
                spec.check_task(job, 0 if index is None else index)
            elif index is not None:
                raise UserError('"task" has an "index" but no "type"; it must be "ps" or "worker"')
            return spec, job, index

    @classmethod
    def local(cls, num_ps: int, num_workers: int) -> ClusterSpec:
        """Return a cluster on this machine, on ports that are free now."""
        with contextlib.ExitStack() as stack:
            ports = []
            for _ in range(num_ps + num_workers):
                # Held until all are chosen, so that no port comes up twice. On all interfaces: that is where
                # TensorFlow's servers listen.
                holder = stack.enter_context(socket.socket())
                holder.bind(("", 0))
                ports.append(holder.getsockname()[1])
        addresses = tuple(f"127.0.0.1:{port}" for port in ports)
        return cls(ps=addresses[:num_ps], worker=addresses[num_ps:])

    @property
    def num_ps(self) -> int:
        return len(self.ps)

    @property
    def num_workers(self) -> int:
        return len(self.worker)

    def workers_beside(self, worker: int) -> list[int]:
        """The workers on the host of one of them, as the addresses name it, that one included."""
        hosts = [host_and_port(address)[0] for address in self.worker]
        return [other for other, host in enumerate(hosts) if host == hosts[worker]]

    def address(self, job: str, index: int) -> str:
        """Return the "host:port" of a task; raise UserError when there is no such task."""
        self.check_task(job, index)
        return self.to_dict()[job][index]

    def check_task(self, job: str, index: int) -> None:
        """Raise UserError unless the cluster has this task."""
        _check_job(job)
        count = len(self.to_dict()[job])
        if type(index) is not int or not 0 <= index < count:
            raise UserError(
                f"there is no {job} {_repr.repr(index)}: the cluster has {count} {job}, "
                f"so its index (--task_index) must be {'0' if count == 1 else f'0 to {count - 1}'}"
            )

    def to_dict(self) -> dict[str, list[str]]:
        """Return the form that `tf.train.ClusterSpec` and spec files take."""
        return {"ps": list(self.ps), "worker": list(self.worker)}


def wait_until_reachable(
    addresses: Sequence[str], deadline: float = 0.0, should_stop: Callable[[], bool] = lambda: False
) -> list[str]:
    """Waits until something listens on every address; gives those where nothing does after `deadline` seconds.

    It looks once at least, also where it is to stop.
    """
    end = time.monotonic() + deadline
    missing = list(addresses)
    while True:
        missing = [address for address in missing if not _listens(address)]
        if not missing or should_stop() or time.monotonic() > end:
            return missing
        time.sleep(0.1)


def _listens(address: str) -> bool:
    try:
        with socket.create_connection(host_and_port(address), timeout=1.0):
            return True
    except OSError:
        return False


def check_port(address: str) -> None:
    """Raise UserError unless a server could open the port of `address` on this machine now.

    Tries all interfaces, as `tf.distribute.Server` does.
    """
    _, port = host_and_port(address)
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=dual).close()
    except OSError as error:
        fault = {
            errno.EADDRINUSE: f"port {port} is taken by another process; end that one or choose another port",
            errno.EACCES: f"port {port} is not permitted to this user; choose one from 1024 to 65535",
        }.get(error.errno or 0, error.strerror or str(error))
        raise UserError(f"cannot listen on {address}: {fault}") from error


def host_and_port(address: object, name: str = "address") -> tuple[str, int]:
    """Return the parts of a valid address, an IPv6 host without its brackets.

    Args:
        name: what messages call its owner.

    Raises:
        UserError: it is not a valid address.
    """
    if not isinstance(address, str):
        raise UserError(f'{name} is {_repr.repr(address)}; it must be a string "host:port"')
    match = _ADDRESS.fullmatch(address)
    if match is None or (match["host"].startswith("[") and not _is_ipv6(match["host"][1:-1])):
        raise UserError(f'{name} is {_repr.repr(address)}; it must be "host:port" or "[IPv6 address]:port"')
    if not all(0 < len(label) < 64 for label in match["host"].removesuffix(".").split(".")) and match["host"][0] != "[":
        raise UserError(f"{name} is {_repr.repr(address)}; a part of the host's name is empty or too long")
    digits = match["port"].lstrip("0")
    if not digits or len(digits) > 5 or int(digits) > 65535:
        raise UserError(f"{name} is {_repr.repr(address)}; the port must be 1 to 65535")
    return match["host"].strip("[]").lower(), int(digits)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _from_json(value: Any) -> ClusterSpec:
    """Return the spec that {"ps": [...], "worker": [...]} describes."""
    if not isinstance(value, dict):
        raise UserError(f'"cluster" is {_repr.repr(value)}; it must be {{"ps": [...], "worker": [...]}}')
    for job, addresses in value.items():
        if job not in (*_CHIEFS, _EVALUATOR):
            _check_job(job)
        if not isinstance(addresses, list):
            raise UserError(f'"{job}" is {_repr.repr(addresses)}; it must be a list of "host:port"')
    chiefs = [address for job in _CHIEFS for address in value.get(job, ())]
    if len(chiefs) > 1:
        raise UserError(f"there are {len(chiefs)} chiefs, {_repr.repr(chiefs)}; there can be one, which is worker 0")
    return ClusterSpec(ps=tuple(value.get("ps", ())), worker=(*chiefs, *value.get("worker", ())))


def _check_job(job: object) -> None:
    if job in _CHIEFS:
        raise UserError(f'there is no "{job}" in the cluster; else it would be worker 0')
    if job not in JOBS:
        raise UserError(f'unknown job {_repr.repr(job)}; it must be "ps" or "worker"')


def _parse_json(text: str, source: str) -> Any:
    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise UserError(f"{source} names {_repr.repr(key)} twice")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=without_repeats)
    except json.JSONDecodeError as error:
        raise UserError(f"{source} is not JSON: line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{source} is not JSON of a reasonable size") from None


@contextlib.contextmanager
def _named(source: str) -> Iterator[None]:
    """Put `source` in front of the message of a UserError."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def _show_path(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)
