"""Runs of `local`: how far one is, its workers and their end, and what it says when it is over."""

import contextlib
import json

import psutil
from cluster_helpers import START, assert_ports_free, processes_naming, wait_until

from async_dqn.cluster.spec import ClusterSpec
from async_dqn.run.csv_log import rows

RUN = 300.0  # seconds for a whole small run on a busy machine


def steps_of(run):
    found = rows(run.metrics) if run.metrics.exists() else []
    return int(found[-1]["env_steps"] or 0) if found else 0


def wait_until_at(run, steps):
    wait_until(lambda: steps_of(run) >= steps, START + RUN, f"{steps} agent steps")


def find(local, worker):
    """The process that is a worker of a `local` run; None while there is none."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(local.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                if "async_dqn" in line and "worker" in line and f"--task_index={worker}" in line:
                    return process
    return None


def kill(local, worker):
    """Kills one worker, and waits for its end; nothing where the run is over by then."""
    wait_until(lambda: find(local, worker) or local.process.poll() is not None, START, f"worker {worker} is there")
    if found := find(local, worker):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.kill()
            found.wait(START)


def summary_of(run):
    wait_until(lambda: not processes_naming(run.path), 10, "every process of the run has ended")
    if (spec := run.path / "cluster.json").exists():  # else it was in shared memory
        assert_ports_free(ClusterSpec.load(spec))
    return json.loads(run.summary.read_text())
