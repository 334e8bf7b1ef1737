"""The cluster: ports here, hosts that answer or do not, public addresses."""

import contextlib
import socket
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from doctor_helpers import IN_TIME, LOOKUPS, SPEC, done, only

from async_dqn.cluster.spec import ClusterSpec
from async_dqn.settings.config import Config
from async_dqn.tools.doctor import cluster, hosts
from async_dqn.tools.doctor.checks import Result
from async_dqn.tools.doctor.hosts import Here


@contextlib.contextmanager
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def address_line(address, lookup=None, seconds=IN_TIME):
    host = address.rpartition(":")[0].strip("[]")
    lookup = lookup or done(hosts.look_up(host))
    return only(cluster.check_address("worker 1", address, lookup, time.monotonic() + seconds))


def test_a_port_of_this_machine_is_free_or_taken(free_port):
    assert address_line(f"127.0.0.1:{free_port}").status == "ok"
    assert address_line(f"{socket.gethostname()}:{free_port}").found.endswith("this machine: the port is free")
    with listener() as port:
        result = address_line(f"127.0.0.1:{port}")
    assert (result.status, "something listens there" in result.found) == ("warning", True)


def test_a_port_that_is_held_but_does_not_answer_is_a_failure():
    with socket.socket() as holder:
        holder.bind(("", 0))
        port = holder.getsockname()[1]
        result = address_line(f"127.0.0.1:{port}")
    assert (result.status, f"port {port} is taken" in result.found) == ("failure", True)


def test_another_host_answers_or_not_yet(free_port, monkeypatch):
    monkeypatch.setattr(hosts, "is_own", lambda address: False)
    with listener() as port:
        assert address_line(f"127.0.0.1:{port}") == Result("ok", "worker 1", f"127.0.0.1:{port} answers")
    result = address_line(f"127.0.0.1:{free_port}")
    assert (result.status, "nothing listens there yet" in result.found) == ("warning", True)


def test_a_host_that_swallows_packets_takes_no_longer_than_its_share(monkeypatch):
    monkeypatch.setattr(hosts, "is_own", lambda address: False)
    monkeypatch.setattr(hosts, "CONNECT_SECONDS", 0.5)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(8):  # its backlog is full then: further attempts get no answer
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        started = time.monotonic()
        result = address_line(f"127.0.0.1:{server.getsockname()[1]}")
    assert time.monotonic() - started < 5
    assert (result.status, "no answer within 0.5 s" in result.found) == ("warning", True)
    assert "firewall" in result.remedy


def test_a_host_without_a_way_to_it_is_a_warning(monkeypatch):
    def connect(addresses, port):
        raise OSError(113, "No route to host")

    monkeypatch.setattr(hosts, "is_own", lambda address: False)
    monkeypatch.setattr(cluster, "_connect", connect)
    result = address_line("10.0.0.1:2222", done([]))
    assert (result.status, result.found) == ("warning", "10.0.0.1:2222: No route to host")


def test_the_second_address_of_a_host_is_tried_too(free_port):
    with listener() as port:
        good, bad = (socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET6, ("::1", 0, 0, 0))
        cluster._connect([bad, good], port)
        cluster._connect([good, bad], port)
    with pytest.raises(OSError):
        cluster._connect([bad, good], free_port)


@pytest.mark.parametrize(
    "lookup", [done(error=socket.gaierror(-2, "Name or service not known")), Future()], ids=["unknown", "no answer"]
)
def test_a_name_that_does_not_resolve_is_a_failure(lookup):
    result = address_line("host-x:2222", lookup, seconds=4.2)
    assert (result.status, "host-x does not resolve" in result.found) == ("failure", True)
    assert "/etc/hosts" in result.remedy


@pytest.mark.parametrize(
    ("spec", "here", "status", "text"),
    [
        (SPEC, Here(1, (1,), 2), "ok", "5 processes on 3 hosts, 2 of them here"),
        (SPEC, Here(0, (), 0), "warning", "0 of them here"),
        (ClusterSpec(("127.0.0.1:1",), ("127.0.0.1:2",)), Here(1, (0,), 2), "ok", "2 processes on 1 hosts"),
        (ClusterSpec(("localhost:1",), ("there:2",)), Here(1, (), 1), "warning", "localhost means a different machine"),
        (ClusterSpec(("0.0.0.0:1",), ("there:2",)), Here(1, (), 1), "warning", "0.0.0.0 means a different machine"),
    ],
)
def test_the_cluster_is_summed_up(spec, here, status, text):
    result = only(cluster.check_cluster(spec, here))
    assert result.status == status
    assert text in result.found


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
def test_public_addresses_are_pointed_out(ip, is_public):
    family, end = socket.AF_INET6 if ":" in ip else socket.AF_INET, time.monotonic() + IN_TIME
    of_spec = only(cluster.check_exposure(LOOKUPS | {"far": done([(family, (ip, 0))])}, ["10.0.0.1"], end))
    of_machine = only(cluster.check_exposure(LOOKUPS | {"slow": Future()}, [ip], time.monotonic()))
    assert {of_spec.status, of_machine.status} == {"warning" if is_public else "ok"}
    if is_public:
        assert f"far ({ip})" in of_spec.found
        assert f"this machine's {ip}" in of_machine.found
        assert "docs/security.md" in of_spec.remedy


def test_ports_that_cannot_be_had_are_a_failure(monkeypatch):
    def refuse(num_ps, num_workers):
        raise OSError(24, "Too many open files")

    assert only(cluster.check_ports(Config())).found == "3 free ones found"
    monkeypatch.setattr(ClusterSpec, "local", refuse)
    assert only(cluster.check_ports(Config())).status == "failure"


@pytest.mark.parametrize("answer", ["unshare: Operation not permitted; close this machine's ports", None])
def test_a_private_network_is_tried_and_closed(answer, tmp_path, monkeypatch):
    from async_dqn.system import private_network

    events: list = []
    network = answer or SimpleNamespace(close=lambda: events.append("closed"))
    monkeypatch.setattr(private_network.PrivateNetwork, "create", lambda folder: events.append(folder) or network)
    result = only(cluster.check_private_network(tmp_path / "run"))
    if answer:
        assert result.found == "unshare: Operation not permitted"
        assert result.remedy == "close this machine's ports: docs/security.md"
        assert events == [tmp_path]
    else:
        assert result.status == "ok"
        assert events == [tmp_path, "closed"]
