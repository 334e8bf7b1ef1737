"""Checks of the cluster: ports, the private network, exposure, and whether the other hosts answer."""

import contextlib
import functools
import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout  # another class than the builtin one before Python 3.11
from pathlib import Path

from async_dqn.base.errors import UserError
from async_dqn.cluster.spec import ClusterSpec, check_port
from async_dqn.settings.config import Config
from async_dqn.tools.doctor import hosts
from async_dqn.tools.doctor.checks import Check, Result
from async_dqn.tools.doctor.hosts import Address, Here
from async_dqn.tools.doctor.machine import existing

_GUIDE = "docs/security.md"


def check_ports(config: Config) -> Iterable[Result]:
    """Whether a cluster on this machine finds ports."""
    count = config.num_ps + config.num_workers
    try:
        ClusterSpec.local(config.num_ps, config.num_workers)
    except OSError as error:
        found = f"{count} free ports cannot be had: {error.strerror}"
        yield Result("failure", "ports", found, "end what holds them (ss -tanp shows it), or allow more open files")
    else:
        yield Result("ok", "ports", f"{count} free ones found")


def check_private_network(path: Path) -> Iterable[Result]:
    """Whether `local` can keep its cluster to itself.

    Args:
      path: the run directory, which need not exist.
    """
    from async_dqn.system.private_network import PrivateNetwork

    network = PrivateNetwork.create(existing(path))
    if isinstance(network, str):
        found, _, remedy = network.rpartition("; ")
        yield Result("warning", "private network", found, f"{remedy}: {_GUIDE}")
    else:
        network.close()
        yield Result("ok", "private network", "local keeps its ports to itself")


def check_cluster(spec: ClusterSpec, here: Here) -> Iterable[Result]:
    """What of the cluster runs here, and addresses that mean another machine to every reader."""
    addresses = (*spec.ps, *spec.worker)
    names = {hosts.host_and_port(address)[0] for address in addresses}
    everywhere = sorted(name for name in names if _is_anyone(name))
    found = f"{len(addresses)} processes on {len(names)} hosts, {here.num_processes} of them here"
    if everywhere and len(names) > len(everywhere):
        found = f"{', '.join(everywhere)} means a different machine to each host"
        yield Result("warning", "cluster", found, "give the address by which the others reach it")
    elif not here.num_processes:
        remedy = "right if this is none of its hosts; else give an address that this machine has (ip address)"
        yield Result("warning", "cluster", found, remedy)
    else:
        yield Result("ok", "cluster", found)


def _is_anyone(host: str) -> bool:
    """Whether the name means the machine that reads it."""
    if host == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    return ip.is_loopback or ip.is_unspecified


def check_exposure(lookups: Mapping[str, Future], own: Iterable[str], end: float) -> Iterable[Result]:
    """Public addresses: TensorFlow's servers know no password, and listen on every interface that this machine has.

    Args:
      own: the IP addresses of this machine's interfaces.
    """
    public: dict[str, str] = {}
    for host, lookup in lookups.items():
        with contextlib.suppress(OSError, UnicodeError, FutureTimeout):
            ips = [address[0] for _, address in hosts.resolved(lookup, end) if _is_public(address[0])]
            public |= {ip: ip if ip == host else f"{host} ({ip})" for ip in ips}
    public |= {ip: f"this machine's {ip}" for ip in own if _is_public(ip) and ip not in public}
    if public:
        found = f"public: {', '.join(public.values())}; TensorFlow's servers ask for no password"
        yield Result("warning", "exposure", found, f"let only the cluster's hosts reach the ports: {_GUIDE}")
    else:
        yield Result("ok", "exposure", "no public address in the spec or on this machine")


def _is_public(ip: str) -> bool:
    return ipaddress.ip_address(ip.partition("%")[0]).is_global


def address_checks(spec: ClusterSpec, lookups: Mapping[str, Future], end: float) -> list[tuple[str, Check]]:
    """A check of each process of the spec, by its task."""
    checks: list[tuple[str, Check]] = []
    for job, addresses in spec.to_dict().items():
        for index, address in enumerate(addresses):
            task, lookup = f"{job} {index}", lookups[hosts.host_and_port(address)[0]]
            checks.append((task, functools.partial(check_address, task, address, lookup, end)))
    return checks


def check_address(task: str, address: str, lookup: Future, end: float) -> Iterable[Result]:
    """One process of the spec: here, whether its port is free; elsewhere, whether it answers."""
    host, port = hosts.host_and_port(address)
    try:
        found = hosts.resolved(lookup, end)
    except (OSError, UnicodeError, FutureTimeout) as error:
        why = f": {getattr(error, 'strerror', None) or error}" if lookup.done() else " in time"
        remedy = "correct the name in the spec, or enter it in DNS or /etc/hosts"
        yield Result("failure", task, f"{address}: {host} does not resolve{why}", remedy)
        return
    if any(map(hosts.is_own, found)):
        yield _check_own_port(task, address)
        return
    start = "start it there, before or after the others"
    try:
        _connect(found, port)
    except ConnectionRefusedError:
        yield Result("warning", task, f"{address}: nothing listens there yet", start)
    except TimeoutError:
        remedy = f"{start}, or open port {port} in that host's firewall"
        yield Result("warning", task, f"{address}: no answer within {hosts.CONNECT_SECONDS:g} s", remedy)
    except OSError as error:
        yield Result("warning", task, f"{address}: {error.strerror or error}", "check the network between the hosts")
    else:
        yield Result("ok", task, f"{address} answers")


def _check_own_port(task: str, address: str) -> Result:
    try:
        check_port(address)
    except UserError as error:
        _, port = hosts.host_and_port(address)
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), hosts.CONNECT_SECONDS):
            remedy = f"right if the cluster runs already; else end it (ss -ltnp 'sport = :{port}'), or change the spec"
            return Result("warning", task, f"{address}, this machine: something listens there", remedy)
        return Result("failure", task, str(error), "give another port in the spec")
    return Result("ok", task, f"{address}, this machine: the port is free")


def _connect(addresses: Sequence[Address], port: int) -> None:
    """Reaches one of the addresses in time, or raises what the last one said."""
    for index, (family, where) in enumerate(addresses):
        try:
            with socket.socket(family) as connection:
                connection.settimeout(hosts.CONNECT_SECONDS / len(addresses))
                connection.connect((where[0], port, *where[2:]))
            return
        except OSError:
            if index == len(addresses) - 1:
                raise
