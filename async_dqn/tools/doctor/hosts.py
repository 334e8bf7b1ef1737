"""The hosts of a cluster: their addresses, and what runs on this one."""

import contextlib
import functools
import socket
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout  # another class than the builtin one before Python 3.11
from typing import NamedTuple

from async_dqn.cluster.spec import ClusterSpec
from async_dqn.settings.config import Config
from async_dqn.tools.doctor.checks import start

CONNECT_SECONDS = 2.0


class Here(NamedTuple):
    """The processes that are to run on this machine, and all of them together."""

    num_ps: int
    workers: tuple[int, ...]
    num_processes: int


Address = tuple[int, tuple]  # address family and what `connect` takes, with port 0


def look_up_hosts(spec: ClusterSpec | None) -> dict[str, Future]:
    """The addresses of every host of the spec, all asked for at once."""
    hosts = {host_and_port(address)[0] for address in (*spec.ps, *spec.worker)} if spec else set()
    return {host: start(functools.partial(look_up, host)) for host in sorted(hosts)}


def look_up(host: str) -> list[Address]:
    """The addresses that a name stands for. Raises OSError or UnicodeError where there are none."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of `host:port`, an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]").lower(), int(port)


def is_own(address: Address) -> bool:
    """Whether this machine has the address: then, and only then, can it be bound."""
    family, where = address
    try:
        with socket.socket(family) as holder:
            holder.bind(where)
        return True
    except OSError:
        return False


def own_addresses() -> list[str]:
    """The IP addresses of this machine's interfaces."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    return [item.address for items in psutil.net_if_addrs().values() for item in items if item.family in families]


def resolved(lookup: Future, end: float) -> list[Address]:
    """What was looked up, in time for what is done with it. Raises FutureTimeout where it was not."""
    return lookup.result(max(0.0, end - CONNECT_SECONDS - 2.0 - time.monotonic()))


def tasks_here(config: Config, spec: ClusterSpec | None, lookups: Mapping[str, Future], end: float) -> Here:
    """The processes that run on this machine; a host that does not resolve in time is another one."""
    if spec is None:  # and the launcher
        return Here(config.num_ps, tuple(range(config.num_workers)), config.num_ps + config.num_workers + 1)
    own = set()
    for host, lookup in lookups.items():
        with contextlib.suppress(OSError, UnicodeError, FutureTimeout):
            addresses = resolved(lookup, end)
            own |= {host} if any(map(is_own, addresses)) else set()
    ps = [address for address in spec.ps if host_and_port(address)[0] in own]
    workers = tuple(i for i, address in enumerate(spec.worker) if host_and_port(address)[0] in own)
    return Here(len(ps), workers, len(ps) + len(workers))
