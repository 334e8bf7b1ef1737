"""Tests of async_dqn.cluster.done_queue and the ps role: when a parameter server ends, and when it does not."""

import contextlib
import signal

import pytest
from cluster_helpers import StoreCluster, processes_naming, wait_until

pytestmark = pytest.mark.cluster


@contextlib.contextmanager
def _cluster(folder, num_ps: int, num_workers: int):
    """Parameter servers and one process that signals in the name of any worker."""
    cluster = StoreCluster(folder, num_ps, num_workers, num_clients=1)
    try:
        cluster.wait_until_ready()
        yield cluster
    finally:
        cluster.end(by_signal=False)  # ports are free again
    assert processes_naming(folder) == []


def test_a_ps_ends_after_the_last_worker_and_not_before(tmp_path):
    with _cluster(tmp_path, num_ps=2, num_workers=2) as cluster:
        (client,) = cluster.clients
        for _ in range(6):  # more often than the queue is long
            assert client("signal_done", 0, 10.0) == []
        for ps in range(2):
            wait_until(lambda ps=ps: client("num_unheard", ps) == 0, 5, f"ps {ps} has heard all signals")
        assert [ps.is_running() for ps in cluster.ps] == [True, True]
        with pytest.raises(AssertionError, match="ps-0 still runs after 1 s"):
            cluster.ps[0].wait(1.0)
        assert client("signal_done", 1, 10.0) == []
        for k, ps in enumerate(cluster.ps):
            assert ps.wait(5) == 0
            assert ps.out.splitlines()[-1] == f"ps {k}: all 2 workers are done"
            assert ps.err == ""


def test_an_interrupted_ps_names_the_workers_it_waited_for(tmp_path):
    with _cluster(tmp_path, num_ps=1, num_workers=3) as cluster:
        (ps,), (client,) = cluster.ps, cluster.clients
        assert client("signal_done", 1, 10.0) == []
        wait_until(lambda: client("num_unheard", 0) == 0, 5, "the ps has heard the signal")
        ps.process.send_signal(signal.SIGTERM)
        assert ps.wait(5) == 130
        assert ps.out.splitlines()[-1] == "ps 0: interrupted before worker 0, 2 was done"
        assert ps.err == ""


def test_a_worker_is_told_which_ps_did_not_hear_it(tmp_path):
    with _cluster(tmp_path, num_ps=2, num_workers=1) as cluster:
        cluster.ps[1].process.kill()
        assert cluster.ps[1].wait(5) == -signal.SIGKILL
        assert cluster.clients[0]("signal_done", 0, 2.0, deadline=20.0) == [1]
        assert cluster.ps[0].wait(5) == 0
