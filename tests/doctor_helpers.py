"""What the tests of async_dqn.tools.doctor share: made-up hosts and settings."""

import socket
from concurrent.futures import Future

from async_dqn.cluster.spec import ClusterSpec
from async_dqn.settings.config import make_config
from async_dqn.tools.doctor.checks import Result
from async_dqn.tools.doctor.hosts import Here

CARTPOLE = make_config("cartpole", {"env": "CartPole-v1"})
HERE = Here(1, (0, 1), 4)
IN_TIME = 30.0


def only(results) -> Result:
    (result,) = results
    return result


def done(value=None, error=None) -> Future:
    future: Future = Future()
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
    return future


SPEC = ClusterSpec(("here:1", "there:1"), ("there:2", "here:2", "nowhere:3"))

LOOKUPS = {
    "here": done([(socket.AF_INET, ("127.0.0.1", 0))]),
    "there": done([(socket.AF_INET, ("192.0.2.1", 0))]),
    "nowhere": done(error=socket.gaierror(-2, "Name or service not known")),
}
