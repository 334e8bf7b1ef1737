"""proxies.py: which hosts gRPC is to reach directly."""

import pytest

from async_dqn.cluster import proxies
from async_dqn.cluster.spec import ClusterSpec

SPEC = ClusterSpec(ps=("127.0.0.1:1",), worker=("127.0.0.1:2", "host-b:2", "[::1]:4"))


@pytest.mark.parametrize(
    "environ, exceptions",
    [
        ({}, None),
        ({"http_proxy": ""}, None),
        ({"http_proxy": "http://p:1"}, "127.0.0.1,::1,host-b"),
        ({"https_proxy": "http://p:1", "no_proxy": "other"}, "other,127.0.0.1,::1,host-b"),
        ({"https_proxy": "http://p:1", "no_proxy": "other", "no_grpc_proxy": "third"}, "third,127.0.0.1,::1,host-b"),
        ({"grpc_proxy": "http://p:1", "http_proxy": "http://q:1"}, "127.0.0.1,::1"),
    ],
)
def test_the_hosts_of_a_cluster_are_reached_without_a_proxy_unless_grpc_is_given_one(environ, exceptions):
    before = dict(environ)
    proxies.bypass(SPEC, environ)
    assert environ.get("no_grpc_proxy") == exceptions
    assert {name: environ[name] for name in before if name != "no_grpc_proxy"} == {
        name: value for name, value in before.items() if name != "no_grpc_proxy"
    }


def test_the_proxy_that_grpc_would_take_is_named():
    assert proxies.found({}) is None
    assert proxies.found({"http_proxy": "http://p:1", "https_proxy": ""}) == ("http_proxy=http://p:1", False)
    assert proxies.found({"http_proxy": "http://p:1", "grpc_proxy": "q:2"}) == ("grpc_proxy=q:2", True)
