"""Real processes for tests: commands of the product, and clients of a parameter store, each with a deadline."""

import contextlib
import errno
import functools
import gc
import importlib
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from async_dqn.base.errors import UserError
from async_dqn.cluster.spec import ClusterSpec, check_port, wait_until_reachable

START = 120.0  # seconds that a process may take to import TensorFlow and to be ready, on a busy machine


def wait_until(condition: Callable[[], Any], deadline: float, what: str) -> Any:
    """Polls until the condition holds, and gives its value; fails after `deadline` seconds."""
    end = time.monotonic() + deadline
    while True:
        is_late = time.monotonic() > end  # before it looks: this process may stand still at any point
        if value := condition():
            return value
        assert not is_late, f"not within {deadline:.0f} s: {what}"
        time.sleep(0.02)


_forks: list[int] = []


def fork(function: Callable[[], Any]) -> int:
    """Calls a function in a process of its own, which ends with code 0, or with 1 if it raises. Gives its number."""
    collects = gc.isenabled()
    gc.disable()
    pid = os.fork()
    if pid:
        if collects:
            gc.enable()
        _forks.append(pid)
        return pid
    gc.freeze()  # what earlier tests left: its destructors may wait for threads that are not in this process
    gc.enable()
    try:
        function()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def end_forks() -> None:
    """Ends those that still run."""
    while _forks:
        with contextlib.suppress(ChildProcessError):  # it was waited for
            pid = _forks.pop()
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Children hear SIGHUP and SIGINT, though a shell may have started the tests with nohup or in the background."""
    with contextlib.ExitStack() as stack:
        for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
            stack.callback(signal.signal, number, signal.signal(number, handler))
        yield


def processes_naming(text: str | os.PathLike[str]) -> list[psutil.Process]:
    """Living processes, this one apart, with the text in their command line: those of a run, by its folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            named = any(os.fspath(text) in part for part in process.cmdline())
            if named and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def is_port_free(address: str) -> bool:
    """Whether a server could open the port now."""
    with contextlib.suppress(UserError):
        check_port(address)
        return True
    return False


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

    def end(self) -> None:
        """Ends by force what still runs."""
        for command in self.started:
            with contextlib.suppress(psutil.Error):
                if command.is_running():
                    parent = psutil.Process(command.process.pid)
                    for process in [parent, *parent.children(recursive=True)]:
                        process.kill()
            command.process.wait()


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


def _module(name: str, optimizer: str, num_parameters: int) -> Any:
    from fakes import make_module

    from async_dqn.nn import optimizers

    rule = getattr(optimizers, optimizer)()
    is_trained = optimizer != "average"
    return make_module(num_parameters, name, optimizer=rule, has_target=not name.isupper(), is_trained=is_trained)


def _serve(connection: Any, barrier: Any, spec: ClusterSpec, index: int, total_steps: int) -> None:
    """A worker process that makes the calls it is told over a pipe: of `_Worker`, or else of its store."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    worker = _Worker(connection, barrier, spec, index, total_steps)
    connection.send((True, None))
    while (order := connection.recv()) is not None:
        name, arguments = order
        try:
            method = getattr(worker, name, None) or getattr(worker.store, name)
            connection.send((True, method(*arguments)))
        except Exception as error:
            connection.send((False, f"{type(error).__name__}: {error}"))


class _Worker:
    """A server, a store, and leases."""

    def __init__(self, connection: Any, barrier: Any, spec: ClusterSpec, index: int, total_steps: int):
        from async_dqn.cluster import server

        self._connection, self._barrier = connection, barrier
        self._spec, self._index, self._total_steps = spec, index, total_steps
        self._config = server.session_config("worker", index, 1)
        self._target = server.start_server(spec, "worker", index, self._config).target
        self._stopped = threading.Event()
        self.wait_for_stop = self._stopped.wait
        self.store: Any = None
        self.queue: Any = None
        self._keepers: list[Any] = []
        self._seconds: list[tuple[Any, str, float]] = []  # those that were set, and what they were

    def open_store(
        self, modules: dict[str, tuple[str, int]], worker: int | None = None, options: dict[str, Any] | None = None
    ) -> int:
        """Gives its token.

        Args:
          modules: {name: (optimizer, parameters)}; one whose name is in capitals has no target,
            and an average is not trained.
          worker: in whose name; None: in its own.
          options: of `RemoteParameterStore`, other than the defaults here; with a quorum of `VersionedStore`.
        """
        from async_dqn.cluster import server
        from async_dqn.cluster.remote_store import RemoteParameterStore, new_token
        from async_dqn.cluster.versioned_store import VersionedStore

        while self._seconds:
            setattr(*self._seconds.pop())
        assert wait_until_reachable(self._spec.ps, START) == []
        token = new_token()
        defaults = {"target_period": 0, "max_staleness": 0, "deadline": 30.0}
        make: Any = VersionedStore if "quorum" in (options or {}) else RemoteParameterStore
        self.store = make(
            spec=self._spec,
            target=self._target,
            session_config=self._config,
            strategy=server.parameter_server_strategy(self._spec, self._index),
            modules=[_module(name, *module) for name, module in modules.items()],
            total_steps=self._total_steps,
            worker=self._index if worker is None else worker,
            token=token,
            warn=lambda text: self._connection.send(("warning", text)),
            **(defaults | (options or {})),
        )
        return token

    def open_queue(self, size: int) -> None:
        """This process's end of the queue of experience, once its store has joined."""
        from async_dqn.cluster.experience_queue import RemoteQueue

        self.queue = RemoteQueue(
            self._target,
            self._config,
            self._spec,
            worker=self._index,
            size=size,
            membership=lambda: self.store.membership,
            deadline=30.0,
        )

    def open_queue_as(self, worker: int, size: int) -> None:
        """The same in the name of another worker."""
        own, self._index = self._index, worker
        self.open_queue(size)
        self._index = own

    def put(self, number: int, *values: int) -> bool:
        return self.queue.put(number, np.array(values, np.uint8))

    def put_and_lose_the_answer(self, number: int, *values: int) -> bool:
        """Puts an item whose first answer is not heard, though it arrived."""
        import store_faults

        store_faults.lose_next_step_of(self.queue._session, arrives=True)
        return self.put(number, *values)

    def put_until_room(self, items: list[tuple[int, int]]) -> int:
        """Puts items one after another, each as soon as there is room. Gives how often there was none."""
        refused = 0
        for number, value in items:
            while not self.put(number, value):
                refused += 1
                time.sleep(0.002)
        return refused

    def take(self) -> tuple | None:
        """Sender, number and values of the oldest item."""
        item = self.queue.take()
        return item and (item.sender, item.number, item.data.tolist())

    def take_all(self, count: int) -> list[tuple]:
        """So many items, each as soon as it is there."""
        found: list[tuple] = []
        while len(found) < count:
            item = self.take()
            if item:
                assert self.queue.size() <= 3
                found.append(item)
        return found

    def queue_size(self) -> int:
        return self.queue.size()

    def fault(self, name: str, *arguments: Any) -> Any:
        """Injects one of `store_faults` into the store."""
        import store_faults

        return getattr(store_faults, name)(self.store, *arguments)

    def share_memory(self) -> list[str]:
        """Addresses of the segments that are shared with each ps, by module; empty for those that are not."""
        shared = self.store._segments.get().values()
        return [segment.address if segment else "" for segments in shared for segment in segments]

    def be_elsewhere(self, ps: int) -> None:
        """One ps finds nothing under the addresses of segments that are made from now on."""
        from async_dqn.cluster import shared_memory

        made = itertools.count()

        class Unreachable(shared_memory.Segment):
            def __init__(segment, size: int):
                super().__init__(size)
                if next(made) % self._spec.num_ps == ps:
                    segment.address = f"/proc/self/fd/987654 {size} 1"

        shared_memory.Segment = Unreachable

    def be_without_memory(self) -> None:
        """The system refuses all segments from now on."""
        from async_dqn.cluster import shared_memory

        class Refused(shared_memory.Segment):
            def __init__(segment, size: int):
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        shared_memory.Segment = Refused

    def be_patient(self, seconds: float, losses: int = 0) -> None:
        """So long a step may take; after so many lost ones each may take its time."""
        for session in (self.store._counts.session, self.store._pushes.session):
            session.patience = seconds
            if losses:
                session._lost = functools.partial(self._lose, session, [None] * losses)

    def _lose(self, session: Any, left: list, reason: str) -> Exception:
        if left:
            left.pop()
        if not left:
            session.patience = START
        return type(session)._lost(session, reason)

    def ask_nobody(self, is_so: bool) -> None:
        """Whether a step that asks the servers is an error."""
        for session in (self.store._counts.session, self.store._pushes.session):
            if is_so:
                session.run = _refuse
            else:
                del session.run

    def set_seconds(self, module: str, name: str, seconds: float) -> None:
        """Sets a time of a module of the cluster package, until the store is opened anew."""
        found = importlib.import_module(f"async_dqn.cluster.{module}")
        self._seconds.append((found, name, getattr(found, name)))
        setattr(found, name, seconds)

    def join(self, is_start: bool = True) -> Any:
        return self.store.join(is_start=is_start)

    def each(self, method: str, arguments: list[tuple]) -> list[Any]:
        return [getattr(self.store, method)(*argument) for argument in arguments]

    def each_at_once(self, method: str, arguments: list[tuple]) -> list[Any]:
        self._barrier.wait(START)
        return self.each(method, arguments)

    def train(self, gradients: Sequence[Any], leaves: bool) -> list[Any]:
        """Makes a round trip with each gradient, computed on what the one before pulled. Gives all that was pulled."""
        from async_dqn.store.base import Counters, Update

        pulled = [self.store.pull()]
        for gradient in gradients:
            update, counts = {"q": Update(gradient, 0.1)}, Counters(updates=1, minibatches=1)
            pulled.append(self.store.push_pull(update, counts, pulled[-1].counters.updates)[1])
            pulled[-1].online["q"] = pulled[-1].online["q"].copy()
        if leaves:
            self.store.leave()
        return pulled

    def copy(self, whole: bool) -> dict[str, np.ndarray] | None:
        return self.store.copy(whole=whole)

    def wait_until_ready(self, deadline: float) -> None:
        self.store.wait_until_ready(deadline, lambda: False)

    def reconnect(self, deadline: float) -> None:
        self.store.reconnect(deadline, lambda: False)

    def devices(self) -> dict[str, tuple[str, int]]:
        import tensorflow as tf

        variables = self.store._nodes.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        return {variable.op.name: (variable.device, variable.shape.num_elements()) for variable in variables}

    def awaited_in_locks(self) -> list[str]:
        """Operations of critical sections that take what is not on their ps yet."""
        return [
            operation.name
            for operation in self.store._nodes.graph.get_operations()
            if "critical_section_execute" in operation.name and "/job:ps" in operation.device
            for tensor in operation.inputs
            if tensor.device != operation.device
        ]

    def keep_lease(self, worker: int, lease: float) -> None:
        """Says to every ps that a worker lives."""
        from async_dqn.cluster.leases import LeaseKeeper
        from async_dqn.cluster.remote_store import new_token

        how = {"lease": lease, "on_stop": self._stopped.set}
        self._keepers.append(LeaseKeeper(self._target, self._config, self._spec, worker, new_token(), **how))

    def end_lease(self, code: int, deadline: float) -> list[int]:
        return self._keepers.pop().finish(code, deadline)

    def signal_done(self, worker: int, deadline: float, code: int = 0) -> list[int]:
        self.keep_lease(worker, 60.0)
        return self.end_lease(code, deadline)


def _refuse(*arguments: Any) -> None:
    raise AssertionError("it asks the servers")


class Client:
    """A worker process with a server of its own and, once opened, a `RemoteParameterStore`.

    Attributes:
      warnings: what its store has warned of so far.
    """

    def __init__(self, spec: ClusterSpec, index: int, total_steps: int = 0, barrier: Any = None):
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, barrier, spec, index, total_steps), daemon=True)
        self._process.start()
        other.close()
        self.warnings: list[str] = []

    def begin(self, name: str, *arguments: Any) -> None:
        """Has a method called, without waiting."""
        self._connection.send((name, arguments))

    def wait_for_warning(self, deadline: float = START) -> str:
        """The next warning, while a method is under way."""
        assert self._connection.poll(deadline), f"no warning within {deadline:.0f} s"
        kind, text = self._connection.recv()
        assert kind == "warning", text
        self.warnings.append(text)
        return text

    def result(self, deadline: float = START) -> Any:
        """What the method gave. Raises RuntimeError with its error."""
        end = time.monotonic() + deadline
        while True:
            assert self._connection.poll(max(0.0, end - time.monotonic())), f"no answer within {deadline:.0f} s"
            good, value = self._connection.recv()
            if good == "warning":
                self.warnings.append(value)
            elif good:
                return value
            else:
                raise RuntimeError(value)

    def __call__(self, name: str, *arguments: Any, deadline: float = START) -> Any:
        self.begin(name, *arguments)
        return self.result(deadline)

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.join()

    def end(self, deadline: float = START) -> int | None:
        """Ends the process, by force after the deadline. Gives its exit code."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._process.join(deadline)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        return self._process.exitcode


def tell(spec: ClusterSpec, ps: int, worker: int, token: int, code: int) -> None:
    """Puts a message to one ps into its queue, from this process."""
    from async_dqn.cluster.done_queue import Message

    _run_on_queue(spec, ps, lambda queue: queue.enqueue([list(Message(worker, token, code))]))


def num_unheard(spec: ClusterSpec, ps: int) -> int:
    """Messages that one ps has not taken yet."""
    return int(_run_on_queue(spec, ps, lambda queue: queue.size()))


def _run_on_queue(spec: ClusterSpec, ps: int, make: Callable[[Any], Any]) -> Any:
    import tensorflow as tf

    from async_dqn.cluster.done_queue import done_queue

    with tf.Graph().as_default() as graph:
        operation = make(done_queue(ps))
    config = tf.compat.v1.ConfigProto(device_filters=[f"/job:ps/task:{ps}"])
    options = tf.compat.v1.RunOptions(timeout_in_ms=int(1_000 * START))
    with tf.compat.v1.Session(f"grpc://{spec.ps[ps]}", graph=graph, config=config) as session:
        return session.run(operation, options=options)


PATIENT = ("--lease=36000", "--start_deadline=36000")  # no worker is ever lost, however slow the machine


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
        flags: Sequence[str] = PATIENT,
    ):
        self.spec = ClusterSpec.local(num_ps, num_workers)
        self.commands = Commands(folder)
        path = write_spec(folder, self.spec)
        num_clients = num_workers if num_clients is None else num_clients
        self._barrier = multiprocessing.get_context("spawn").Barrier(max(1, num_clients))
        self._flags = ["--env=CartPole-v1", f"--cluster_spec={path}", *flags]
        self.ps = [self._start_ps(k, f"ps-{k}") for k in range(num_ps)]
        self.clients = [Client(self.spec, index, total_steps, self._barrier) for index in range(num_clients)]

    def _start_ps(self, ps: int, name: str) -> Command:
        return self.commands(name, "ps", f"--task_index={ps}", *self._flags)

    def start_ps_again(self, ps: int) -> None:
        """Starts one that has ended anew, on the same port."""
        assert not self.ps[ps].is_running()
        wait_until(lambda: is_port_free(self.spec.ps[ps]), 10, f"the port of ps {ps} free again")
        self.ps[ps] = self._start_ps(ps, f"ps-{ps}-again")
        self.ps[ps].wait_for_output("serving")

    def wait_until_ready(self) -> None:
        """Until every server listens."""
        for client in self.clients:
            client.result()
        for ps in self.ps:
            ps.wait_for_output("serving")

    def open(self, modules: dict[str, tuple[str, int]], **options: Any) -> None:
        """Every client opens the store; arguments as for its `open_store`."""
        for index, client in enumerate(self.clients):
            client.begin("open_store", modules, index, options)
        for client in self.clients:
            client.result()

    def end(self, *, by_signal: bool = True) -> tuple[list[int], list[int | None]]:
        """Ends everything, the way workers end a run. Gives the exit codes of ps and clients."""
        try:
            for index, client in reversed([*enumerate(self.clients)]):  # the chief last, as in a run
                if by_signal:
                    client("signal_done", index, 30.0)
            codes = [ps.wait(10) for ps in self.ps] if by_signal else []
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
