"""What the tests of async_dqn.tools.doctor share: made-up hosts and settings."""

import socket
from concurrent.futures import Future

from async_dqn.agents.table import make_config
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.tools.doctor.checks import Result
from async_dqn.tools.doctor.cluster import Here

CARTPOLE = make_config("dqn", "cartpole", {"env": "CartPole-v1"})
PPO = make_config("ppo", "cartpole", {"env": "CartPole-v1"})
HERE = Here(1, (0, 1), 4)
IN_TIME = 30.0
SPEC = ClusterSpec(("here:1", "there:1"), ("there:2", "here:2", "nowhere:3"))


def only(results) -> Result:
    (result,) = results
    return result


def host(*ips) -> Future:
    """A host that has these addresses; that does not resolve, without any."""
    future: Future = Future()
    if ips:
        future.set_result([(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 0)) for ip in ips])
    else:
        future.set_exception(socket.gaierror(-2, "Name or service not known"))
    return future


LOOKUPS = {"here": host("127.0.0.1"), "there": host("192.0.2.1"), "nowhere": host()}
