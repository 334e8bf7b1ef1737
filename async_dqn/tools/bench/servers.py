"""Real parameter servers for a measurement: started, and gone in the end."""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from async_dqn.base.errors import RunError
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.system.private_network import PrivateNetwork
from async_dqn.system.task import Task, kill, wait

_END_DEADLINE = 15.0  # seconds in which a ps ends by itself once its worker has said that it is done
_PATIENT = ("--lease=600", "--start_deadline=600")  # no worker is ever lost


@contextlib.contextmanager
def parameter_servers(num_ps: int) -> Iterator[tuple[ClusterSpec, Callable[[], None]]]:
    """Starts `num_ps` processes, for one worker; where that is possible, nobody else can reach them.

    Gives the cluster's addresses, and what the worker's process has to call first, to be in the same network. It has to
    say to each ps that it is done, as every worker does.

    Raises:
      RunError: on the way out, where a ps has failed, or did not end by itself and was killed.
    """
    spec = ClusterSpec.local(num_ps, 1)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "cluster.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
        network = PrivateNetwork.create(folder)
        enter = _nothing
        if isinstance(network, PrivateNetwork):
            stack.callback(network.close)
            enter = network.enter
        tasks = [_task(index, folder, enter) for index in range(num_ps)]
        stack.callback(kill, tasks)
        for task in tasks:
            task.start()
        yield spec, enter
        wait(tasks, _END_DEADLINE)
        for task in tasks:
            if task.is_running:
                raise RunError(f"{task.name} did not end within {_END_DEADLINE:.0f} s of its worker, and was killed")
            if task.code != 0:
                raise RunError(f"{task.name} ended with exit code {task.code}: {task.last_words()}")


def _nothing() -> None:
    pass


def _task(index: int, folder: Path, enter: Callable[[], None]) -> Task:
    # The preset is named only because it would be looked for by the environment otherwise.
    flags = [f"--task_index={index}", f"--cluster_spec={folder / 'cluster.json'}", "--preset=atari-fast", *_PATIENT]
    return Task(
        f"ps {index}",
        lambda restarts: [sys.executable, "-m", "async_dqn", "ps", *flags],
        max_restarts=0,
        lease=600.0,
        say=lambda line: None,
        log=folder / f"ps-{index}.log",
        enter=enter,
    )
