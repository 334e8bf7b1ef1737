"""The command `doctor`: which checks a run calls for."""

import os
import resource
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TextIO

from async_dqn.base.errors import UserError
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.run import provenance
from async_dqn.run.directory import RunDirectory
from async_dqn.settings.config import Config
from async_dqn.tools.doctor import cluster, gpus, hosts, machine, software
from async_dqn.tools.doctor.checks import Check, run_checks, start


def run_doctor(
    config: Config,
    spec: ClusterSpec | None,
    run: RunDirectory | None,
    *,
    resume: bool = False,
    deadline: float = 20.0,
    output: TextIO | None = None,
) -> int:
    """Checks this machine and prints what it finds.

    Args:
      config: the settings of the run; with a spec, those of the whole cluster.
      spec: the cluster whose processes here are checked, and whose hosts are asked. None: a cluster on this machine.
      run: where the run is to be written; None: somewhere below the current folder.
      resume: whether that run is to go on.
      deadline: seconds after which a check that has not finished is given up.
      output: where to print; None: standard output.

    Returns:
      The exit code: 0, or 1 if anything failed.
    """
    end = time.monotonic() + deadline
    lookups = hosts.look_up_hosts(spec)
    here = start(lambda: hosts.tasks_here(config, spec, lookups, end))
    tensorflow = start(lambda: software.probe_tensorflow(config.gpus != "none", end - 1.0))
    problem = start(lambda: _make_problem(config, tensorflow))
    path = run.path if run else Path("runs").absolute()
    checks: list[tuple[str, Check]] = [
        ("Python", software.check_python),
        ("packages", software.check_packages),
        ("TensorFlow", lambda: [tensorflow.result()[0]]),
        ("GPU", lambda: gpus.check_gpus(config, here.result(), tensorflow.result()[1])),
        ("environment", lambda: software.check_environment(config)),
        ("memory", lambda: machine.check_memory(config, here.result(), problem.result())),
        ("disk", lambda: machine.check_disk(config, path, here.result(), _unless_failed(problem), resume=resume)),
        ("cores", lambda: machine.check_cores(config, here.result(), machine.usable_cores())),
        ("dtype", lambda: machine.check_dtype(config, provenance.cpu_info(), tensorflow.result()[1])),
        ("load", lambda: machine.check_load(os.getloadavg()[0], os.cpu_count() or 1)),
        ("open files", lambda: machine.check_files(config, here.result(), resource.getrlimit(resource.RLIMIT_NOFILE))),
        ("processes", lambda: machine.check_processes(here.result(), machine.process_limits(), machine.usable_cores())),
        ("clock", lambda: machine.check_clock(time.time())),
    ]
    if spec is None:
        checks += [
            ("ports", lambda: cluster.check_ports(config)),
            ("private network", lambda: cluster.check_private_network(path)),
        ]
    else:
        checks += [
            ("cluster", lambda: cluster.check_cluster(spec, here.result())),
            ("exposure", lambda: cluster.check_exposure(lookups, hosts.own_addresses(), end)),
            *cluster.address_checks(spec, lookups, end),
        ]
    return run_checks(checks, end, output or sys.stdout)


def _make_problem(config: Config, tensorflow: Future) -> Any:
    """The run's Problem; None where it cannot be made, which checks of their own tell."""
    if tensorflow.result()[1] is None:
        return None
    try:
        from async_dqn.run import build

        return build.make_problem(config)
    except (ImportError, UserError):
        return None


def _unless_failed(future: Future) -> Any:
    return None if future.exception() else future.result()
