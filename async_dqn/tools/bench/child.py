"""A measurement in processes of its own, as TensorFlow's threads can be set only once in a process."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from async_dqn.agents import table
from async_dqn.agents.base import is_small
from async_dqn.base.errors import RunError, one_line
from async_dqn.run import preflight
from async_dqn.settings.config import Config
from async_dqn.system import devices
from async_dqn.system.private_network import PrivateNetwork
from async_dqn.system.program import python

_DEADLINE = 300.0  # seconds for one measurement, with TensorFlow's import on a busy machine


def measure(
    function: str, config: Config, num_processes: int, num_threads: int, arguments: Mapping[str, Any]
) -> list[dict[str, float]]:
    """Calls "module:function" with the settings and `arguments` in new processes at the same time.

    Each has cores of its own, like a worker, and they share a temporary folder, their current one. Nobody else can
    reach the ports that they open, where the system allows that. Gives what each measured, {metric: value}. Raises
    RunError where one failed or took too long.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="async-dqn-bench-"))
        network = PrivateNetwork.create(folder)
        if not isinstance(network, str):
            stack.callback(network.close)
        environ = dict(os.environ)
        small = is_small(config, preflight.resolve(config))
        devices.choose_kernels(is_small=small, environ=environ)  # the child has imported TensorFlow before it could
        processes = []
        for index in range(num_processes):
            request = [function, config.to_dict(), index, num_processes, num_threads, folder, arguments]
            process = subprocess.Popen(
                [*python(), "-m", __name__, json.dumps(request)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environ,
                start_new_session=True,
                preexec_fn=None if isinstance(network, str) else network.enter,
            )
            stack.callback(_kill, process)
            processes.append(process)
        found = []
        for process in processes:
            try:
                output, _ = process.communicate(timeout=_DEADLINE)
            except subprocess.TimeoutExpired:
                raise RunError(f"{function}: not done after {_DEADLINE:.0f} s") from None
            last = (output.splitlines() or ["it said nothing"])[-1]
            if process.returncode:
                raise RunError(f"{function}: exit code {process.returncode}: {one_line(last)}")
            found.append(json.loads(last))
        return found


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends it, and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _call(
    function: str, settings: dict, index: int, num_processes: int, num_threads: int, folder: str, arguments: dict
) -> dict[str, float]:
    """In the new process: calls the function."""
    config = table.config_from_dict(settings)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    devices.keep_to_cores(index, num_processes)
    devices.hide_gpus(devices.card_of_worker(config.gpus, index))
    devices.configure_eager(config, num_threads)
    module, _, name = function.partition(":")
    measured = getattr(importlib.import_module(module), name)
    os.chdir(folder)
    return measured(config, **arguments)


if __name__ == "__main__":
    try:
        print(json.dumps(_call(*json.loads(sys.argv[1]))), flush=True)
        os._exit(0)  # TensorFlow's server can be ended in no other way
    except Exception as error:
        print(one_line(f"{type(error).__name__}: {error}"), flush=True)
        os._exit(1)
