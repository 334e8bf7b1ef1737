"""Tests of async_dqn.cluster.done_queue and the ps role: when a parameter server ends, and when it does not."""

import contextlib
import signal

import pytest
from cluster_helpers import StoreCluster, assert_ports_free, processes_naming

pytestmark = pytest.mark.cluster


@contextlib.contextmanager
def _cluster(folder, num_ps: int, num_workers: int):
    cluster = StoreCluster(folder, num_ps, num_workers)
    try:
        cluster.wait_until_ready()
        yield cluster
    finally:
        cluster.end(by_signal=False)
    assert processes_naming(folder) == []


def test_a_ps_ends_after_the_last_worker_and_not_before(tmp_path):
    with _cluster(tmp_path, num_ps=2, num_workers=2) as cluster:
        first, second = cluster.clients
        assert first("signal_done", 0, 5.0) == []
        for _ in range(5):  # more often than the queue is long
            assert first("signal_done", 0, 5.0) == []
        for ps in cluster.ps:
            with pytest.raises(AssertionError, match="still runs"):
                ps.wait(1.0)
        assert second("signal_done", 1, 5.0) == []
        for k, ps in enumerate(cluster.ps):
            assert ps.wait(5) == 0
            assert ps.out.splitlines()[-1] == f"ps {k}: all 2 workers are done"
            assert ps.err == ""
        assert [client.end() for client in cluster.clients] == [0, 0]
        assert_ports_free(cluster.spec)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_ps_names_the_workers_it_waited_for(tmp_path, number):
    with _cluster(tmp_path, num_ps=1, num_workers=3) as cluster:
        (ps,) = cluster.ps
        assert cluster.clients[1]("signal_done", 1, 5.0) == []
        ps.process.send_signal(number)
        assert ps.wait(5) == 130
        assert ps.out.splitlines()[-1] == "ps 0: interrupted before worker 0, 2 was done"
        assert ps.err == ""
        assert_ports_free(type(cluster.spec)(ps=cluster.spec.ps, worker=("127.0.0.1:1",)))


def test_a_worker_is_told_which_ps_did_not_hear_it(tmp_path):
    with _cluster(tmp_path, num_ps=2, num_workers=1) as cluster:
        cluster.ps[1].process.kill()
        assert cluster.ps[1].wait(5) == -signal.SIGKILL
        assert cluster.clients[0]("signal_done", 0, 2.0, deadline=20.0) == [1]
        assert cluster.ps[0].wait(5) == 0
