"""HTTP proxies in the environment: gRPC would send even what stays on this host through them."""

import ipaddress
import os
from collections.abc import MutableMapping

from async_dqn.cluster.spec import ClusterSpec, host_and_port

# In the order in which gRPC looks for them. The first is for nothing but gRPC: who sets it asks for a proxy.
_ASKED_FOR = "grpc_proxy"
VARIABLES = (_ASKED_FOR, "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")  # gRPC reads the first that is set


def bypass(spec: ClusterSpec, environ: MutableMapping[str, str] = os.environ) -> None:
    """Has the processes of a cluster talk to each other directly, before the first of gRPC's channels is made.

    Other hosts are reached through a proxy only where `grpc_proxy` names one; this one never is.
    """
    if not any(map(environ.get, VARIABLES)):
        return
    hosts = {host_and_port(address)[0] for address in (*spec.ps, *spec.worker)}
    if environ.get(_ASKED_FOR):
        hosts = set(filter(_is_loopback, hosts))
    given = next((environ[name] for name in _EXCEPTIONS if name in environ), "")
    environ[_EXCEPTIONS[0]] = ",".join(filter(None, [given, *sorted(hosts)]))


def found(environ: MutableMapping[str, str] = os.environ) -> tuple[str, bool] | None:
    """The proxy that is set, as NAME=ADDRESS, and whether processes on other hosts are reached through it."""
    name = next(filter(environ.get, VARIABLES), None)
    return None if name is None else (f"{name}={environ[name]}", name == _ASKED_FOR)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
