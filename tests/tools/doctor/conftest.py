"""A port for the tests of this folder."""

import socket

import pytest


@pytest.fixture
def free_port():
    with socket.socket() as holder:
        holder.bind(("", 0))
        port = holder.getsockname()[1]
    return port
