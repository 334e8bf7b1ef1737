"""The cluster: what runs here, hosts that answer or do not, public addresses."""

import socket
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from doctor_helpers import CARTPOLE, IN_TIME, LOOKUPS, SPEC, host, only

from async_dqn.cluster.spec import ClusterSpec
from async_dqn.system import private_network
from async_dqn.tools.doctor import cluster
from async_dqn.tools.doctor.cluster import Here


def soon():
    return time.monotonic() + IN_TIME


def port_of(server):
    return server.getsockname()[1]


def address_line(port, *ips, seconds=IN_TIME):
    return only(cluster.check_address(f"127.0.0.1:{port}", host(*ips), time.monotonic() + seconds))


def test_the_processes_of_this_machine_are_known():
    assert cluster.tasks_here(CARTPOLE, SPEC, LOOKUPS, soon()) == Here(1, (1,), 2)
    assert cluster.tasks_here(CARTPOLE, None, {}, soon()) == Here(1, (0, 1), 4)
    real = cluster.look_up_hosts(ClusterSpec(("LocalHost:1",), ("[::1]:2", "localhost:3")))
    assert list(real) == ["::1", "localhost"]
    assert all(map(cluster.is_own, cluster.resolved(real["localhost"], soon())[0]))
    assert all(map(cluster.is_own, cluster.own_addresses())) and not cluster.is_own("192.0.2.1")


def test_a_port_of_this_machine_is_free_held_or_of_a_running_cluster():
    with socket.socket() as holder:
        holder.bind(("", 0))
        port = port_of(holder)
        assert address_line(port, "127.0.0.1").status == "failure"
    assert address_line(port, "127.0.0.1").status == "ok"
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert address_line(port_of(server), "127.0.0.1").status == "warning"


def test_another_host_answers_or_not_yet(monkeypatch):
    monkeypatch.setattr(cluster, "is_own", lambda ip: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = port_of(server)
        assert address_line(port, "127.0.0.1").status == "ok"
    result = address_line(port, "127.0.0.1")
    assert result.status == "warning" and "firewall" in result.remedy


@pytest.mark.parametrize("lookup", [host(), Future()], ids=["unknown", "no answer"])
def test_a_name_that_does_not_resolve_is_a_failure(lookup):
    result = only(cluster.check_address("host-x:2222", lookup, time.monotonic() + 4.2))
    assert result.status == "failure" and "host-x does not resolve" in result.found


@pytest.mark.parametrize(
    ("hosts", "num_here", "statuses"),
    [
        (["here", "there"], 2, ["ok", "ok"]),
        (["there"], 0, ["warning", "ok"]),
        (["127.0.0.1"], 2, ["ok", "ok"]),
        (["localhost", "there"], 1, ["ok", "warning", "ok"]),
        (["0.0.0.0", "there"], 1, ["ok", "warning", "ok"]),
    ],
)
def test_the_cluster_is_summed_up(hosts, num_here, statuses, monkeypatch):
    monkeypatch.setattr(cluster, "own_addresses", lambda: ["10.0.0.1"])
    lookups = {name: host("192.168.0.7") for name in hosts}
    results = list(cluster.check_cluster(lookups, Here(0, (), num_here), soon()))
    assert [result.status for result in results] == statuses


@pytest.mark.parametrize(
    ("ip", "is_public"),
    [
        ("8.8.8.8", True),
        ("2001:4860:4860::8888", True),
        ("10.1.2.3", False),
        ("127.0.0.1", False),
        ("100.64.0.1", False),  # shared address space, as of VPNs
        ("fe80::1%eth0", False),
        ("fd00::1", False),
    ],
)
def test_public_addresses_are_pointed_out(ip, is_public, monkeypatch):
    for own, lookups in (([], {"far": host(ip)}), ([ip], {"far": host(), "slow": Future()})):
        monkeypatch.setattr(cluster, "own_addresses", lambda own=own: own)
        *_, result = cluster.check_cluster(lookups, Here(1, (), 1), time.monotonic())
        assert (result.status, ip in result.found) == (("warning", True) if is_public else ("ok", False))


@pytest.mark.parametrize("answer", ["unshare: Operation not permitted; close this machine's ports", None])
def test_a_private_network_is_tried_and_closed(answer, tmp_path, monkeypatch):
    events: list = []
    network = answer or SimpleNamespace(close=lambda: events.append("closed"))
    monkeypatch.setattr(private_network.PrivateNetwork, "create", lambda folder: events.append(folder) or network)
    result = only(cluster.check_private_network(tmp_path / ("r" * 300)))
    assert result.status == ("warning" if answer else "ok")
    assert events == ([tmp_path] if answer else [tmp_path, "closed"])
