"""Hosts: names, addresses, and what of a cluster is here."""

import socket
import time
from concurrent.futures import Future

from doctor_helpers import IN_TIME, LOOKUPS, SPEC

from async_dqn.settings.config import Config
from async_dqn.tools.doctor import hosts
from async_dqn.tools.doctor.hosts import Here


def test_ipv6_addresses_are_taken_apart():
    assert hosts.host_and_port("[::1]:2222") == ("::1", 2222)
    assert hosts.host_and_port("Host-A:2222") == ("host-a", 2222)


def test_addresses_of_this_machine_are_known():
    assert hosts.is_own((socket.AF_INET, ("127.0.0.1", 0)))
    assert not hosts.is_own((socket.AF_INET, ("192.0.2.1", 0)))  # RFC 5737: nobody's


def test_the_processes_of_this_machine_are_picked_out():
    end = time.monotonic() + IN_TIME
    assert hosts.tasks_here(Config(), SPEC, LOOKUPS, end) == Here(1, (1,), 2)
    assert hosts.tasks_here(Config(num_ps=2, num_workers=3), None, {}, end) == Here(2, (0, 1, 2), 6)
    assert hosts.tasks_here(Config(), SPEC, LOOKUPS | {"here": Future()}, time.monotonic()) == Here(0, (), 0)


def test_this_machine_s_own_addresses_are_found():
    assert "127.0.0.1" in hosts.own_addresses()
