"""Checks of a cluster: which of its processes run here, whether the other hosts answer, who else can reach it."""

import functools
import ipaddress
import os
import socket
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout  # another class than the builtin one before Python 3.11
from pathlib import Path
from typing import NamedTuple

import psutil

from async_dqn.base.errors import UserError
from async_dqn.cluster import proxies
from async_dqn.cluster.spec import ClusterSpec, check_port, host_and_port, wait_until_reachable
from async_dqn.run.progress import count
from async_dqn.settings.config import Config
from async_dqn.tools.doctor.checks import Result, start

_RESERVE = 4.0  # seconds that are left for what is done with an address
_GUIDE = "docs/running.md#security"


class Here(NamedTuple):
    """The processes that are to run on this machine, and all of them together."""

    num_ps: int
    workers: tuple[int, ...]
    num_processes: int


def look_up_hosts(spec: ClusterSpec) -> dict[str, Future]:
    """What `socket.getaddrinfo` gives for every host of the spec, all asked for at once."""
    hosts = sorted({host_and_port(address)[0] for address in (*spec.ps, *spec.worker)})
    return {host: start(functools.partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)) for host in hosts}


def resolved(lookup: Future, end: float) -> tuple[list[str], str]:
    """The IP addresses of a host, in time for what is done with them, or nothing and the reason."""
    try:
        found = lookup.result(max(0.0, end - _RESERVE - time.monotonic()))
        return list(dict.fromkeys(address[0] for *_, address in found)), ""
    except FutureTimeout:
        return [], "no answer in time"
    except (OSError, UnicodeError) as error:
        return [], getattr(error, "strerror", None) or str(error)


def own_addresses() -> list[str]:
    """The IP addresses of this machine's interfaces."""
    families = (socket.AF_INET, socket.AF_INET6)
    return [item.address for items in psutil.net_if_addrs().values() for item in items if item.family in families]


def is_local(host: str) -> bool:
    """Whether the name or address means the machine that reads it, whichever that is."""
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    return ip.is_loopback or ip.is_unspecified


def is_own(ip: str) -> bool:
    """Whether the address means this machine."""
    return is_local(ip) or ip in own_addresses()


def tasks_here(config: Config, spec: ClusterSpec | None, lookups: Mapping[str, Future], end: float) -> Here:
    """The processes that run on this machine; a host that does not resolve in time is another one."""
    if spec is None:  # and the launcher
        return Here(config.num_ps, tuple(range(config.num_workers)), config.num_ps + config.num_workers + 1)
    own = {host for host, lookup in lookups.items() if any(map(is_own, resolved(lookup, end)[0]))}
    ps = [address for address in spec.ps if host_and_port(address)[0] in own]
    workers = tuple(i for i, address in enumerate(spec.worker) if host_and_port(address)[0] in own)
    return Here(len(ps), workers, len(ps) + len(workers))


def check_private_network(path: Path) -> Iterable[Result]:
    """Whether `local` can keep its cluster to itself, and write to a folder that need not exist yet."""
    from async_dqn.system.private_network import PrivateNetwork

    network = PrivateNetwork.create(next(above for above in (path, *path.parents) if os.path.exists(above)))
    if isinstance(network, str):
        found, _, remedy = network.rpartition("; ")
        yield Result("warning", found, f"{remedy}: {_GUIDE}")
    else:
        network.close()
        yield Result("ok", "local keeps its ports to itself")


def check_proxy() -> Iterable[Result]:
    """Whether a proxy is set that gRPC would use, and for what."""
    found = proxies.found()
    if not found:
        yield Result("ok", "none is set")
    elif found[1]:
        remedy = "unset it, unless the hosts reach each other in no other way"
        yield Result("warning", f"{found[0]}: hosts of a cluster are reached through it", remedy)
    else:
        yield Result("ok", f"{found[0]} is not used between the processes of a run")


def check_cluster(lookups: Mapping[str, Future], here: Here, end: float) -> Iterable[Result]:
    """What of the cluster runs here; hosts that mean another machine to every reader; addresses that all can reach."""
    remedy = "right if this is none of the hosts; else give an address that this machine has (ip address)"
    found = f"{here.num_processes} processes here, of a cluster on {count(len(lookups), 'host')}"
    yield Result("ok" if here.num_processes else "warning", found, remedy)
    local = list(filter(is_local, lookups))
    if local and len(lookups) > len(local):
        found = f"{', '.join(local)} means a different machine to each host"
        yield Result("warning", found, "give the address by which the others reach it")
    ips = {ip: f"this machine's {ip}" for ip in own_addresses()}
    ips |= {ip: f"{host} ({ip})" for host, lookup in lookups.items() for ip in resolved(lookup, end)[0]}
    public = [name for ip, name in ips.items() if ipaddress.ip_address(ip.partition("%")[0]).is_global]
    found = f"public addresses: {', '.join(public) or 'none'}; TensorFlow's servers ask for no password"
    yield Result("warning" if public else "ok", found, f"let only the cluster's hosts reach the ports: {_GUIDE}")


def check_address(address: str, lookup: Future, end: float) -> Iterable[Result]:
    """One process of the spec: here, whether its port is free; elsewhere, whether it answers."""
    host, port = host_and_port(address)
    ips, why = resolved(lookup, end)
    if why:
        remedy = "correct the name in the spec, or enter it in DNS or /etc/hosts"
        yield Result("failure", f"{address}: {host} does not resolve: {why}", remedy)
    elif any(map(is_own, ips)):
        try:
            check_port(address)
            yield Result("ok", f"{address}, this machine: the port is free")
        except UserError as error:
            status = "failure" if wait_until_reachable([f"localhost:{port}"]) else "warning"
            yield Result(status, str(error), "right if the cluster runs already")
    else:
        silent = wait_until_reachable([address])
        remedy = f"start it there, before or after the others, or open port {port} in that host's firewall"
        yield Result("warning" if silent else "ok", f"{address} {'does not answer' if silent else 'answers'}", remedy)
