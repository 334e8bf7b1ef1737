"""Stores in memory that processes share, and forked processes at work on them, each with a deadline."""

import os

import numpy as np
from cluster_helpers import fork, wait_until
from fakes import make_module

from async_dqn.nn import optimizers
from async_dqn.store.shared_memory import SharedMemoryStore, create

DEADLINE = 60.0
SIZE = 32
MODULES = (make_module(SIZE, "q"), make_module(SIZE, "V", optimizer=optimizers.adam(), has_target=False))


class Shared:
    """One file, and the stores that processes or workers open on it."""

    kind = SharedMemoryStore

    def __init__(self, modules=MODULES, **options):
        self.modules = modules
        self.options = {"num_workers": 3, "total_steps": 1_000} | options
        self.descriptor = create(self.kind.required_bytes(modules, self.options["num_workers"]))
        self.store = self.open(0)
        self.store.run_id = 7
        self.store.initialize({module.name: np.zeros(module.size, np.float32) for module in modules})

    def open(self, worker):
        return self.kind(self.descriptor, self.modules, worker=worker, **self.options)

    def in_processes(self, work, number=3):
        """Calls `work(store, worker)` in as many processes at once."""
        pids = [self.start(work, worker) for worker in range(number)]
        assert [wait(pid) for pid in pids] == [0] * number

    def start(self, work, worker):
        """A process that ends with code 0 if `work` has not raised."""
        return fork(lambda: work(self.open(worker), worker))


def wait(pid):
    """The exit code of a process, negative for a signal."""
    _, status = wait_until(lambda: next(filter(any, [os.waitpid(pid, os.WNOHANG)]), None), DEADLINE, "it has ended")
    return os.waitstatus_to_exitcode(status)


def assert_adds_up(store):
    """The counters of the run are those of all workers."""
    counters, workers = store.check()
    for name, value in counters._asdict().items():
        if name not in ("staleness_max", "stopped"):
            assert value == sum(getattr(worker.counters, name) for worker in workers), name
