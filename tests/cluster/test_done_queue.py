"""Tests of async_dqn.cluster.done_queue and the ps role: when a parameter server ends, and when it does not."""

import contextlib
import signal

import pytest
from cluster_helpers import PATIENT, StoreCluster, num_unheard, processes_naming, tell, wait_until

from async_dqn.cluster.done_queue import ALIVE

pytestmark = pytest.mark.cluster

SHORT = ("--lease=2", "--start_deadline=600", "--ps_deadline=1")
A, B, C = 11, 12, 13  # tokens


@contextlib.contextmanager
def _cluster(folder, num_ps: int, num_workers: int, *, num_clients: int = 0, flags=PATIENT):
    """Parameter servers, and processes that speak in the name of any worker."""
    cluster = StoreCluster(folder, num_ps, num_workers, num_clients=num_clients, flags=flags)
    try:
        cluster.wait_until_ready()
        yield cluster
    finally:
        cluster.end(by_signal=False)  # ports are free again
    assert processes_naming(folder) == []


def _tell(cluster, *messages):
    """Tells every ps."""
    for ps in range(len(cluster.ps)):
        for message in messages:
            tell(cluster.spec, ps, *message)


def _last_line(ps):
    return ps.out.splitlines()[-1]


def _assert_goes_on(ps, seconds):
    with pytest.raises(AssertionError, match=f"{ps.name} still runs after"):
        ps.wait(seconds)


def test_a_ps_ends_after_the_last_worker_and_not_before(tmp_path):
    with _cluster(tmp_path, num_ps=2, num_workers=2, num_clients=1) as cluster:
        (client,) = cluster.clients
        for _ in range(6):
            assert client("signal_done", 1, 10.0) == []
        for ps in range(2):
            wait_until(lambda ps=ps: num_unheard(cluster.spec, ps) == 0, 30, f"ps {ps} has heard all signals")
        assert [ps.is_running() for ps in cluster.ps] == [True, True]
        _assert_goes_on(cluster.ps[0], 1.0)
        assert client("signal_done", 0, 10.0) == []
        for k, ps in enumerate(cluster.ps):
            assert ps.wait(5) == 0
            assert _last_line(ps) == f"ps {k}: all workers are done"
            assert ps.err == ""


def test_an_interrupted_ps_tells_the_workers_and_names_those_it_waited_for(tmp_path):
    with _cluster(tmp_path, num_ps=1, num_workers=3, num_clients=1) as cluster:
        (ps,), (client,) = cluster.ps, cluster.clients
        assert client("signal_done", 1, 10.0) == []
        wait_until(lambda: num_unheard(cluster.spec, 0) == 0, 30, "the ps has heard the signal")
        client("keep_lease", 0, 2.0)
        assert client("wait_for_stop", 0.5) is False
        ps.process.send_signal(signal.SIGTERM)
        assert client("wait_for_stop", 5.0) is True
        _assert_goes_on(ps, 0.5)  # they have a while to save and to end
        assert ps.wait(15) == 130
        assert _last_line(ps) == "ps 0: ended by a signal, before worker 0, 2 was done"
        assert ps.err == ""


def test_a_worker_that_was_interrupted_before_it_joined_ends_the_others(tmp_path):
    with _cluster(tmp_path, num_ps=2, num_workers=2, num_clients=1) as cluster:
        (client,) = cluster.clients
        client("keep_lease", 0, 2.0)
        assert client("wait_for_stop", 0.5) is False
        _tell(cluster, (1, B, 130))
        assert client("wait_for_stop", 5.0) is True
        assert [ps.is_running() for ps in cluster.ps] == [True, True]


def test_an_interrupted_ps_ends_at_once_when_its_workers_have(tmp_path):
    with _cluster(tmp_path, num_ps=2, num_workers=2, num_clients=2) as cluster:
        for worker, client in enumerate(cluster.clients):
            client("keep_lease", worker, 5.0)
        cluster.ps[1].process.send_signal(signal.SIGTERM)
        for client in cluster.clients:  # told by one ps, they tell both
            assert client("wait_for_stop", 10.0) is True
        for client in cluster.clients:
            assert client("end_lease", 130, 10.0) == []
        assert cluster.ps[1].wait(4) == 130
        assert _last_line(cluster.ps[1]) == "ps 1: ended by a signal"
        assert cluster.ps[0].wait(4) == 0
        assert _last_line(cluster.ps[0]) == "ps 0: all workers are done"


def test_a_ps_that_has_ended_holds_up_no_other(tmp_path):
    with _cluster(tmp_path, num_ps=2, num_workers=1, num_clients=1, flags=SHORT) as cluster:
        (client,) = cluster.clients
        client("keep_lease", 0, 2.0)
        cluster.ps[1].process.kill()
        assert cluster.ps[1].wait(30) == -signal.SIGKILL
        _assert_goes_on(cluster.ps[0], 5.0)  # longer than a lease: it still hears of the worker
        assert "lost" not in cluster.ps[0].out
        # And a worker is told which ps did not hear it.
        assert client("end_lease", 0, 6.0, deadline=60.0) == [1]
        assert cluster.ps[0].wait(5) == 0


def test_a_ps_that_stands_still_holds_up_no_other(tmp_path):
    with _cluster(tmp_path, num_ps=2, num_workers=1, num_clients=1, flags=SHORT) as cluster:
        (client,) = cluster.clients
        cluster.ps[1].process.send_signal(signal.SIGSTOP)
        client("keep_lease", 0, 2.0)
        _assert_goes_on(cluster.ps[0], 5.0)
        assert client("end_lease", 0, 6.0, deadline=60.0) == [1]
        assert cluster.ps[0].wait(5) == 0


def test_a_worker_that_is_not_heard_from_is_lost_and_named(tmp_path):
    with _cluster(tmp_path, num_ps=2, num_workers=2, flags=SHORT) as cluster:
        _tell(cluster, (1, B, ALIVE), (0, A, 130))
        for k, ps in enumerate(cluster.ps):
            assert ps.wait(15) == 1
            lost = f"ps {k}: worker 1 counts as lost: nothing was heard from it for 2 s (--lease)"
            assert ps.out.splitlines()[-2:] == [lost, f"ps {k}: work was cut short: worker 1 was lost"]
            assert ps.err == ""


def test_a_ps_ends_when_all_its_workers_are_lost(tmp_path):
    with _cluster(
        tmp_path, num_ps=1, num_workers=2, flags=("--lease=2", "--start_deadline=10", "--ps_deadline=1")
    ) as cluster:
        _tell(cluster, (0, A, ALIVE))
        (ps,) = cluster.ps
        assert ps.wait(26) == 1
        assert ps.out.splitlines()[-3:] == [
            "ps 0: worker 0 counts as lost: nothing was heard from it for 2 s (--lease)",
            "ps 0: worker 1 counts as lost: it has not come within 10 s (--start_deadline)",
            "ps 0: work was cut short: worker 0, 1 was lost",
        ]


def test_a_run_that_is_finished_is_a_success_although_a_worker_was_lost(tmp_path):
    with _cluster(tmp_path, num_ps=1, num_workers=3, flags=SHORT) as cluster:
        (ps,) = cluster.ps
        _tell(cluster, (1, B, ALIVE))
        wait_until(lambda: "worker 1 counts as lost" in ps.out, 30, "worker 1 is lost")
        _tell(cluster, (2, C, 0), (0, A, 0))
        assert ps.wait(10) == 0
        assert _last_line(ps) == "ps 0: the run is finished, though worker 1 did not say that it was done"


def test_a_run_that_is_finished_waits_but_a_moment_for_the_others(tmp_path):
    with _cluster(tmp_path, num_ps=1, num_workers=2) as cluster:
        (ps,) = cluster.ps
        _tell(cluster, (1, B, ALIVE), (0, A, 0))
        assert ps.wait(10) == 0  # though the lease is much longer
        assert _last_line(ps) == "ps 0: the run is finished, though worker 1 did not say that it was done"


def test_a_worker_that_failed_is_waited_for_and_may_come_again(tmp_path):
    with _cluster(tmp_path, num_ps=1, num_workers=2, num_clients=1, flags=("--lease=8", "--start_deadline=600")) as c:
        (ps,), (client,) = c.ps, c.clients
        _tell(c, (1, B, ALIVE), (1, B, 1), (0, A, 130))
        _assert_goes_on(ps, 1.0)
        _tell(c, (1, C, ALIVE))  # a new process
        _tell(c, (1, B, ALIVE), (1, B, 0))  # the old one has nothing to say any more
        client("keep_lease", 1, 8.0)
        _assert_goes_on(ps, 9.0)
        assert "lost" not in ps.out
        assert client("end_lease", 0, 5.0) == []
        assert ps.wait(5) == 0
        assert _last_line(ps) == "ps 0: all workers are done"


def test_a_ps_that_stood_still_does_not_take_its_workers_for_lost(tmp_path):
    # It must not look at the leases before the heartbeats that came in meanwhile have found their way to it.
    with _cluster(tmp_path, num_ps=1, num_workers=3, num_clients=1, flags=SHORT) as cluster:
        (ps,), (client,) = cluster.ps, cluster.clients
        for worker in range(3):
            client("keep_lease", worker, 2.0)
        wait_until(lambda: num_unheard(cluster.spec, 0) == 0, 30, "the ps hears its workers")
        for _ in range(3):
            ps.process.send_signal(signal.SIGSTOP)
            assert client("wait_for_stop", 4.0) is False  # nothing happens for two leases
            ps.process.send_signal(signal.SIGCONT)
            _assert_goes_on(ps, 0.5)
        assert "lost" not in ps.out
        for _ in range(3):
            assert client("end_lease", 130, 10.0) == []
        assert ps.wait(10) == 0
