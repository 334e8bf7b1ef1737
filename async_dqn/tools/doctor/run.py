"""The command `doctor`: which checks a run calls for."""

import functools
import os
import resource
import sys
import time
from typing import TextIO

from async_dqn.cluster.spec import ClusterSpec, host_and_port
from async_dqn.run.directory import RunDirectory
from async_dqn.settings.config import Config
from async_dqn.system import processor
from async_dqn.tools.doctor import cluster, machine, software
from async_dqn.tools.doctor.checks import Check, run_checks, start


def run_doctor(
    config: Config,
    spec: ClusterSpec | None,
    run: RunDirectory,
    *,
    resume: bool = False,
    deadline: float = 20.0,
    output: TextIO | None = None,
) -> int:
    """Checks this machine and prints what it finds. Gives the exit code: 0, or 1 if anything failed.

    Args:
      config: the settings of the run; with a spec, those of the whole cluster.
      spec: the cluster whose processes here are checked, and whose hosts are asked. None: a cluster on this machine.
      run, resume: where the run is to be written, and whether one that lies there is to go on.
      deadline: seconds after which a check that has not finished is given up.
    """
    end = time.monotonic() + deadline
    lookups = cluster.look_up_hosts(spec) if spec else {}
    here = start(lambda: cluster.tasks_here(config, spec, lookups, end))
    tensorflow = start(lambda: software.probe_tensorflow(config.gpus != "none", end - 1.0))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    checks: list[tuple[str, Check]] = [
        ("packages", software.check_packages),
        ("TensorFlow", lambda: [tensorflow.result()[0]]),
        ("GPU", lambda: machine.check_gpus(config, here.result(), tensorflow.result()[1])),
        ("environment", lambda: software.check_environment(config)),
        ("memory", lambda: machine.check_memory(config, here.result())),
        ("disk", lambda: machine.check_disk(config, run, here.result(), resume=resume)),
        ("cores", lambda: machine.check_cores(config, here.result(), processor.usable_cores(), os.getloadavg()[0])),
        ("open files", lambda: machine.check_files(config, here.result(), files)),
        ("proxy", cluster.check_proxy),
    ]
    if spec is not None:
        checks.append(("cluster", lambda: cluster.check_cluster(lookups, here.result(), end)))
        for job, addresses in spec.to_dict().items():
            for index, address in enumerate(addresses):
                lookup = lookups[host_and_port(address)[0]]
                checks.append((f"{job} {index}", functools.partial(cluster.check_address, address, lookup, end)))
    elif config.store == "ps":
        checks.append(("private network", lambda: cluster.check_private_network(run.path)))
    return run_checks(checks, end, output or sys.stdout)
