"""Real processes for tests: commands of the product, and clients of a parameter store, each with a deadline."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from async_dqn.cluster.spec import ClusterSpec, is_port_free, wait_until_reachable

START = 60.0  # seconds that a process may take to import TensorFlow and to be ready, on a busy machine


def wait_until(condition: Callable[[], Any], deadline: float, what: str) -> Any:
    """Polls until the condition holds, and gives its value; fails after `deadline` seconds."""
    end = time.monotonic() + deadline
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {deadline:.0f} s: {what}"
        time.sleep(0.02)
    return value


def processes_naming(text: str | os.PathLike[str]) -> list[psutil.Process]:
    """Living processes, this one apart, with the text in their command line: those of a run, by its folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            named = any(os.fspath(text) in part for part in process.cmdline())
            if named and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def assert_ports_free(spec: ClusterSpec) -> None:
    """Fails unless every port of the cluster can be opened again."""
    for address in (*spec.ps, *spec.worker):
        wait_until(lambda address=address: is_port_free(address), 5, f"{address} free again")


def write_spec(folder: Path, spec: ClusterSpec) -> Path:
    """Writes a spec file."""
    path = folder / "spec.json"
    path.write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    return path


class Command:
    """One `python -m async_dqn ...` in a session of its own, its output in files."""

    def __init__(self, folder: Path, name: str, arguments: Sequence[str], environ: dict[str, str] | None = None):
        self.name = name
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "async_dqn", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **(environ or {})},
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        """Standard output so far."""
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        """Standard error so far."""
        return self._err.read_text(errors="replace")

    def wait(self, deadline: float) -> int:
        """The exit code; fails where the process has not ended within `deadline` seconds."""
        try:
            return self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {deadline:.0f} s:\n{self.out}{self.err}") from None

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def wait_for_output(self, text: str, deadline: float = START) -> None:
        """Waits until the text is on standard output; fails where the process ends before."""

        def shown() -> bool:
            assert self.is_running() or text in self.out, f"{self.name} ended:\n{self.out}{self.err}"
            return text in self.out

        wait_until(shown, deadline, f"{self.name} says {text!r}")


class Commands:
    """Starts commands in a folder, and ends what is left of them, children included."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.started: list[Command] = []

    def __call__(self, name: str, *arguments: str, environ: dict[str, str] | None = None) -> Command:
        self.started.append(Command(self.folder, name, arguments, environ))
        return self.started[-1]

    def end(self) -> list[str]:
        """Ends by force what still runs; names what it was."""
        left = []
        for command in self.started:
            with contextlib.suppress(psutil.Error):
                family = [psutil.Process(command.process.pid)] if command.is_running() else []
                for process in [
                    *family,
                    *(child for one in family for child in one.children(recursive=True)),
                ]:
                    left.append(f"{command.name}: {process.pid}")
                    process.kill()
            command.process.wait()
        return left


@contextlib.contextmanager
def commands(folder: Path) -> Iterator[Commands]:
    """Commands that are all ended on the way out, whatever happened."""
    started = Commands(folder)
    try:
        yield started
    finally:
        started.end()
        for process in processes_naming(folder):
            with contextlib.suppress(psutil.Error):
                process.kill()


def _serve(connection: Any, barrier: Any, spec: ClusterSpec, index: int, total_steps: int) -> None:
    """A worker process that does what it is told over a pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    from async_dqn import optimizers
    from async_dqn.cluster import done_queue, server
    from async_dqn.cluster.remote_store import RemoteParameterStore

    config = server.session_config("worker", index, 1)
    target = server.start_server(spec, "worker", index, config).target
    stores: list[RemoteParameterStore] = []

    def open_store(optimizer: str, num_parameters: int) -> None:
        assert wait_until_reachable(spec.ps, START, lambda: False) == []
        stores[:] = [
            RemoteParameterStore(
                spec=spec,
                target=target,
                session_config=config,
                strategy=server.parameter_server_strategy(spec, index),
                num_parameters=num_parameters,
                optimizer=getattr(optimizers, optimizer)(),
                total_steps=total_steps,
                worker=index,
                deadline=30.0,
                warn=print,
            )
        ]

    def lose_next_step(arrives: bool) -> None:
        """The next step never comes back, whether it was made on the parameter servers or not."""
        store, session = stores[0], stores[0]._session

        class LosingSession:
            def run(self, *arguments: Any) -> None:
                if arrives:
                    session.run(*arguments)
                threading.Event().wait()

        store._session, store._patience = LosingSession(), 2.0

    def each(method: str, arguments: list[tuple]) -> list[Any]:
        return [getattr(stores[0], method)(*argument) for argument in arguments]

    def each_at_once(method: str, arguments: list[tuple]) -> list[Any]:
        barrier.wait(START)
        return each(method, arguments)

    def wait_until_initialized(deadline: float) -> None:
        stores[0].wait_until_initialized(deadline, lambda: False)

    def devices() -> dict[str, tuple[str, int]]:
        import tensorflow as tf

        variables = stores[0]._graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        return {variable.op.name: (variable.device, variable.shape.num_elements()) for variable in variables}

    def signal_done(task_index: int, deadline: float) -> list[int]:
        return done_queue.signal_done(
            target,
            config,
            task_index=task_index,
            num_ps=spec.num_ps,
            num_workers=spec.num_workers,
            deadline=deadline,
        )

    def num_unheard(ps: int) -> int:
        import tensorflow as tf

        with tf.Graph().as_default() as graph:
            size = done_queue._queue(ps, spec.num_workers).size()
            with tf.compat.v1.Session(target, graph=graph, config=config) as session:
                return int(session.run(size))

    own = [open_store, lose_next_step, each, each_at_once, wait_until_initialized, devices, signal_done, num_unheard]
    methods = {function.__name__: function for function in own}
    connection.send((True, None))
    while (order := connection.recv()) is not None:
        name, arguments = order
        try:
            method = methods.get(name) or getattr(stores[0], name)
            connection.send((True, method(*arguments)))
        except Exception as error:
            connection.send((False, f"{type(error).__name__}: {error}"))


class Client:
    """A worker process with a server of its own and, once opened, a `RemoteParameterStore`."""

    def __init__(self, spec: ClusterSpec, index: int, total_steps: int = 0, barrier: Any = None):
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, barrier, spec, index, total_steps), daemon=True)
        self._process.start()
        other.close()

    def begin(self, name: str, *arguments: Any) -> None:
        """Has a method called, without waiting."""
        self._connection.send((name, arguments))

    def result(self, deadline: float = START) -> Any:
        """What the method gave. Raises RuntimeError with its error."""
        assert self._connection.poll(deadline), f"no answer within {deadline:.0f} s"
        good, value = self._connection.recv()
        if not good:
            raise RuntimeError(value)
        return value

    def __call__(self, name: str, *arguments: Any, deadline: float = START) -> Any:
        self.begin(name, *arguments)
        return self.result(deadline)

    def end(self, deadline: float = 10.0) -> int | None:
        """Ends the process, by force after the deadline. Gives its exit code."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._process.join(deadline)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        return self._process.exitcode


class StoreCluster:
    """K parameter servers and N clients, all of them processes."""

    def __init__(
        self,
        folder: Path,
        num_ps: int,
        num_workers: int,
        total_steps: int = 0,
        *,
        num_clients: int | None = None,
    ):
        self.spec = ClusterSpec.local(num_ps, num_workers)
        self.commands = Commands(folder)
        path = write_spec(folder, self.spec)
        num_clients = num_workers if num_clients is None else num_clients
        self._barrier = multiprocessing.get_context("spawn").Barrier(num_clients)
        flags = ["--env=CartPole-v1", f"--cluster_spec={path}"]
        self.ps = [self.commands(f"ps-{k}", "ps", f"--task_index={k}", *flags) for k in range(num_ps)]
        self.clients = [Client(self.spec, index, total_steps, self._barrier) for index in range(num_clients)]

    def wait_until_ready(self) -> None:
        """Until every server listens."""
        for client in self.clients:
            client.result()
        for ps in self.ps:
            ps.wait_for_output("serving")

    def open(self, optimizer: str, num_parameters: int) -> None:
        """Every client opens the store."""
        for client in self.clients:
            client.begin("open_store", optimizer, num_parameters)
        for client in self.clients:
            client.result()

    def end(self, *, by_signal: bool = True) -> tuple[list[int], list[int | None]]:
        """Ends everything, the way workers end a run. Gives the exit codes of ps and clients."""
        try:
            for index, client in enumerate(self.clients):
                if by_signal:
                    client("signal_done", index, 5.0)
            codes = [ps.wait(5) for ps in self.ps] if by_signal else []
        finally:
            self.commands.end()
            client_codes = [client.end() for client in self.clients]
        assert_ports_free(self.spec)
        return codes, client_codes


@contextlib.contextmanager
def store_cluster(folder: Path, num_ps: int, num_workers: int, total_steps: int = 0) -> Iterator[StoreCluster]:
    """A cluster that has to end well: ports free again, every process with exit code 0."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = StoreCluster(folder, num_ps, num_workers, total_steps)
    try:
        cluster.wait_until_ready()
        yield cluster
    except BaseException:
        cluster.end(by_signal=False)
        raise
    assert cluster.end() == ([0] * num_ps, [0] * num_workers)
