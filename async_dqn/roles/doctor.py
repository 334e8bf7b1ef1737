"""Whether this machine can run what is asked of it: one line a check, with the remedy where something is amiss.

Every check runs in a thread of its own and has until one common deadline, so that a name server, a driver or a file
system that hangs costs one line and not the answer. TensorFlow is tried in a process of its own first, because on an
unfit CPU importing it ends the process.
"""

import contextlib
import functools
import importlib.metadata
import ipaddress
import json
import math
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout  # another class than the builtin one before Python 3.11
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from async_dqn import devices
from async_dqn.background import Background
from async_dqn.cluster.spec import ClusterSpec, check_port
from async_dqn.config import Config
from async_dqn.errors import UserError
from async_dqn.run_directory import RunDirectory

_CONNECT_SECONDS = 2.0
_PROCESS_GB = 0.7  # resident in one process beside replay; 0.4 of it is TensorFlow's code, which all share
_PROCESS_THREADS = 100  # of one ps or worker, and some more for each core
_PYTHONS = ((3, 10), (3, 13))  # oldest and newest that requirements.lock is made for
_CGROUP = Path("/sys/fs/cgroup")
_COLORS = {"ok": "32", "warning": "33", "failure": "31"}
_GUIDE = "docs/security.md"

_PROBE = """
import json
import tensorflow as tf
gpus = len(tf.config.list_physical_devices("GPU"))
tf.config.set_visible_devices([], "GPU")  # so that none of their memory is taken
ones = tf.ones([8, 8])
print(json.dumps({"version": tf.__version__, "gpus": gpus, "sum": float(tf.reduce_sum(ones @ ones))}))
"""


class Result(NamedTuple):
    """One line: `status` is ok, warning or failure; a remedy for the last two."""

    status: str
    thing: str
    found: str
    remedy: str = ""


class Here(NamedTuple):
    """The processes that are to run on this machine, and all of them together."""

    num_ps: int
    workers: tuple[int, ...]
    num_processes: int


class Card(NamedTuple):
    """What nvidia-smi says of one GPU; memory in GB, nan where it does not say."""

    number: str
    uuid: str
    name: str
    total: float
    free: float


Check = Callable[[], Iterable[Result]]
Address = tuple[int, tuple]  # address family and what `connect` takes, with port 0


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
    lookups = look_up_hosts(spec)
    here = _start(lambda: tasks_here(config, spec, lookups, end))
    tensorflow = _start(lambda: probe_tensorflow(config.gpus != "none", end - 1.0))
    problem = _start(lambda: _make_problem(config, tensorflow))
    path = run.path if run else Path("runs").absolute()
    checks: list[tuple[str, Check]] = [
        ("Python", check_python),
        ("packages", check_packages),
        ("TensorFlow", lambda: [tensorflow.result()[0]]),
        ("GPU", lambda: check_gpus(config, here.result(), tensorflow.result()[1])),
        ("environment", lambda: check_environment(config)),
        ("memory", lambda: check_memory(config, here.result(), problem.result())),
        ("disk", lambda: check_disk(config, path, here.result(), _unless_failed(problem), resume=resume)),
        ("cores", lambda: check_cores(config, here.result(), _cores())),
        ("load", lambda: check_load(os.getloadavg()[0], os.cpu_count() or 1)),
        ("open files", lambda: check_files(config, here.result(), resource.getrlimit(resource.RLIMIT_NOFILE))),
        ("processes", lambda: check_processes(here.result(), _process_limits(), _cores())),
        ("clock", lambda: check_clock(time.time())),
    ]
    if spec is None:
        checks += [("ports", lambda: check_ports(config)), ("private network", lambda: check_private_network(path))]
    else:
        checks += [
            ("cluster", lambda: check_cluster(spec, here.result())),
            ("exposure", lambda: check_exposure(lookups, _own_addresses(), end)),
            *_address_checks(spec, lookups, end),
        ]
    return run_checks(checks, end, output or sys.stdout)


def run_checks(checks: Sequence[tuple[str, Check]], end: float, output: TextIO) -> int:
    """Runs all checks at once and prints their lines in order. Gives the exit code.

    Args:
      checks: (what is checked, the check) each.
      end: the time, by `time.monotonic`, when what has not finished is given up.
    """
    is_terminal = output.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = max(len(thing) for thing, _ in checks)
    running = [(thing, _start(functools.partial(_all, check))) for thing, check in checks]
    counts: Counter[str] = Counter()
    for thing, future in running:
        for result in _results(thing, future, end):
            counts[result.status] += 1
            print(format_line(result, width, color=is_terminal), file=output, flush=True)
    many = {name: f"{counts[name]} {name}{'s' * (counts[name] != 1)}" for name in ("warning", "failure")}
    print(f"{counts['ok']} ok, {many['warning']}, {many['failure']}", file=output, flush=True)
    return 1 if counts["failure"] else 0


def format_line(result: Result, width: int, *, color: bool) -> str:
    """One result as a line: status, thing, what was found, and the remedy behind an arrow."""
    status = f"{result.status:<7}"
    if color:
        status = f"\033[{_COLORS[result.status]}m{status}\033[0m"
    text = " ".join(f"{result.found} -> {result.remedy}".split() if result.remedy else result.found.split())
    return f"{status}  {result.thing:<{width}}  {text}"


def _start(function: Callable[[], Any]) -> Future:
    """The result of a call in a thread that keeps nothing from ending."""
    try:
        thread = Background("doctor")
    except RuntimeError as error:  # no thread can be had
        future: Future = Future()
        future.set_exception(error)
        return future
    future = thread.submit(function)
    thread.close()
    return future


def _all(check: Check) -> list[Result]:
    return list(check())


def _unless_failed(future: Future) -> Any:
    return None if future.exception() else future.result()


def _results(thing: str, future: Future, end: float) -> list[Result]:
    try:
        error = future.exception(max(0.0, end - time.monotonic()))
    except FutureTimeout:
        return [Result("warning", thing, "did not finish in time", "try again when the machine is less busy")]
    if error is None:
        return future.result()
    remedy = "an error of the check itself: please report it, with the command line"
    return [Result("failure", thing, f"{type(error).__name__}: {error}", remedy)]


def check_python(version: tuple[int, ...] = sys.version_info[:2]) -> Iterable[Result]:
    """The interpreter against those that the package is made for."""
    found, oldest, newest = (".".join(map(str, numbers)) for numbers in (version, *_PYTHONS))
    remedy = f"make .venv with Python {oldest} to {newest}; ASYNC_DQN_PYTHON names it to launch/*.sh"
    if version < _PYTHONS[0]:
        yield Result("failure", "Python", f"{found} is older than {oldest}", remedy)
    elif version > _PYTHONS[1]:
        yield Result("warning", "Python", f"{found} is newer than {newest}, the newest that is tested", remedy)
    else:
        yield Result("ok", "Python", found)


def check_packages(
    requirements: Sequence[str] | None = None,
    lock: Path = Path(__file__).parents[2] / "requirements.lock",
) -> Iterable[Result]:
    """What setup.py asks for against what is installed, and that against requirements.lock where it is at hand."""
    if requirements is None:
        try:
            requirements = importlib.metadata.requires("async-dqn") or []
        except importlib.metadata.PackageNotFoundError:
            yield Result(
                "warning", "packages", "async-dqn itself is not installed", "use launch/*.sh, or pip install ."
            )
            return
    locked = _read_lock(lock.read_text("utf-8")) if lock.exists() else {}
    failures, warnings, count = [], [], 0
    for requirement in requirements:
        match = re.fullmatch(r"([\w.-]+) *>= *([\d.]+)", requirement)
        if not match:  # one of an extra
            continue
        count += 1
        name, minimum = match.groups()
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            failures.append(f"{name} is missing")
            continue
        if _numbers(found) < _numbers(minimum):
            failures.append(f"{name} is {found}, at least {minimum} is needed")
        elif found != locked.get(name.lower(), found):
            warnings.append(f"{name} is {found}, {locked[name.lower()]} is tested")
    status = "failure" if failures else "warning" if warnings else "ok"
    text = "; ".join(failures + warnings) or f"{count} {'as in requirements.lock' if locked else 'new enough'}"
    what = f"-r {lock}" if locked else "--upgrade ."
    yield Result(status, "packages", text, f"{sys.executable} -m pip install {what}" if status != "ok" else "")


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version, for comparison: 2.21.0rc1 -> (2, 21, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _read_lock(text: str, python: tuple[int, ...] = sys.version_info[:2]) -> dict[str, str]:
    """The versions that the lines `name==version ; python_version < "3.11"` give this Python."""
    versions = {}
    for line in text.splitlines():
        pin, _, marker = line.partition(";")
        name, equal, version = pin.partition("==")
        bounds = [(operator, _numbers(bound)) for operator, bound in re.findall(r'(<|>=) "([\d.]+)"', marker)]
        if equal and not line.startswith("#") and all((python < b) == (operator == "<") for operator, b in bounds):
            versions[name.strip().lower()] = version.strip()
    return versions


def probe_tensorflow(wants_gpus: bool, end: float, program: str = _PROBE) -> tuple[Result, int | None]:
    """Imports TensorFlow and computes, in a process of its own.

    Returns:
      The result, and how many GPUs TensorFlow sees; None where it does not work.
    """
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"} | ({} if wants_gpus else {"CUDA_VISIBLE_DEVICES": "-1"})
    seconds = max(0.1, end - time.monotonic())
    command = [sys.executable, "-c", program]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        remedy = "try again: the first import is slow; on a network file system put .venv on a local disk"
        return Result("warning", "TensorFlow", f"not imported within {seconds:.0f} s", remedy), None
    if done.returncode == -signal.SIGILL:
        found = "illegal instruction: this CPU lacks one that TensorFlow is built with, such as AVX"
        remedy = "use a newer CPU, give a virtual machine its host's CPU model, or build TensorFlow for this one"
        return Result("failure", "TensorFlow", found, remedy), None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        ended = f"exit code {done.returncode}"
        if done.returncode < 0:
            ended = f"killed by {signal.Signals(-done.returncode).name}"
        remedy = f'{sys.executable} -c "import tensorflow" shows all; if it is broken, remove .venv and set it up anew'
        return Result("failure", "TensorFlow", f"{ended}: {lines[-1][:300] if lines else 'no output'}", remedy), None
    said = json.loads(done.stdout.splitlines()[-1])
    if said["sum"] != 8 * 8 * 8:
        found = f"{said['version']} sums to {said['sum']} what is 512"
        return Result("failure", "TensorFlow", found, "remove .venv and set it up anew"), None
    return Result("ok", "TensorFlow", f"{said['version']} imports and computes"), said["gpus"]


def _make_problem(config: Config, tensorflow: Future) -> Any:
    """The run's Problem; None where it cannot be made, which checks of their own tell."""
    if tensorflow.result()[1] is None:
        return None
    from async_dqn.roles import assemble

    try:
        return assemble.make_problem(config)
    except UserError:
        return None


def check_environment(config: Config) -> Iterable[Result]:
    """Whether the environment can be made, and what it is."""
    try:
        from async_dqn import environments

        spec = environments.resolve(config.env, config.protocol)
    except ImportError as error:
        yield Result("failure", "environment", str(error), "install what the line on packages says")
    except UserError as error:
        yield Result("failure", "environment", str(error), "give another --env, or install what it needs")
    else:
        protocol = f", protocol {spec.protocol}" if spec.is_atari else ""
        shape = "x".join(map(str, spec.observation_shape))
        yield Result("ok", "environment", f"{spec.id}{protocol}, {spec.num_actions} actions, observations {shape}")


def check_gpus(config: Config, here: Here, seen: int | None) -> Iterable[Result]:
    """The cards, and how the workers of this machine share them.

    Args:
      seen: how many TensorFlow sees; None where it does not work.
    """
    if config.gpus == "none":
        yield Result("ok", "GPU", "none wanted: workers compute on the CPU")
        return
    try:
        cards = nvidia_cards()
    except (OSError, subprocess.SubprocessError) as error:
        said = " ".join((getattr(error, "stdout", None) or str(error)).split())[:200]
        status = "warning" if config.gpus == "auto" else "failure"
        yield Result(status, "GPU", f"nvidia-smi fails: {said}", "mend the driver, or give --gpus=none")
        return
    visible = devices.visible_gpus(os.environ) if cards else []
    try:
        chosen = [devices.gpu_of_worker(config.gpus, worker, visible) for worker in here.workers]
    except UserError as error:
        yield Result("failure", "GPU", str(error), "nvidia-smi lists the GPUs; CUDA_VISIBLE_DEVICES hides some")
        return
    if not visible:
        yield Result("ok", "GPU", f"{'none visible' if cards else 'no GPU'}: workers compute on the CPU")
        return
    if seen is not None and seen < len(visible):
        remedy = "pip install -c requirements.lock -e '.[gpu]'; then --verbose shows what TensorFlow misses"
        yield Result("warning", "GPU", f"TensorFlow sees {seen} of {len(visible)}", remedy)
    for name, count in Counter(card for card in chosen if card is not None).items():
        card = next((card for card in cards if name == card.number or card.uuid.startswith(name)), None)
        yield _check_card(config, name, card, count)


def _check_card(config: Config, name: str, card: Card | None, count: int) -> Result:
    """One card that `count` workers share."""
    fraction, thing = config.gpu_memory_fraction, f"GPU {name}"
    workers = _workers(count)
    about = f"{card.name}, " if card else ""
    if card and not math.isnan(card.free):
        about += f"{card.free:.1f} of {card.total:.1f} GB free, "
    if fraction * count > 1 + 1e-9:
        found = f"{about}{workers} with --gpu_memory_fraction={fraction:g} each"
        return Result("failure", thing, found, f"--gpu_memory_fraction={math.floor(100 / count) / 100:g} or less")
    if card and fraction * count * card.total > card.free:
        found = f"{about}but {workers} take {fraction * count * card.total:.1f} GB"
        return Result("warning", thing, found, "end what holds it (nvidia-smi shows that), or take a smaller share")
    if count > 1 and not fraction and not config.gpu_memory_growth:
        found = f"{about}{workers}, of which the first takes all of its memory"
        return Result("warning", thing, found, f"--gpu_memory_fraction={math.floor(100 / count) / 100:g}")
    each = f"{fraction:g} of it each" if fraction else "memory as needed" if config.gpu_memory_growth else "all of it"
    return Result("ok", thing, f"{about}{workers}, {each}")


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


def nvidia_cards() -> list[Card]:
    """The GPUs of this machine; none without nvidia-smi. Raises OSError or SubprocessError where it fails."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [Card(row[0], row[1], row[2], _gigabytes(row[3]), _gigabytes(row[4])) for row in rows if len(row) == 5]


def _gigabytes(mebibytes: str) -> float:
    try:
        return float(mebibytes) * 2**20 / 1e9
    except ValueError:  # [N/A], where a card has no memory of its own
        return math.nan


def check_memory(config: Config, here: Here, problem: Any) -> Iterable[Result]:
    """Memory for all replay on this machine once it is full, and for the processes."""
    if problem is None:
        yield Result("warning", "memory", "not checked", "mend TensorFlow, environment or network first")
        return
    from async_dqn.roles import assemble

    fewer = "a smaller --replay_capacity, or fewer workers here"
    try:
        said = assemble.check_replay_memory(config, problem, len(here.workers))
    except UserError as error:
        yield Result("failure", "memory", str(error), fewer)
        return
    needed = replay_gigabytes(config, here, problem) + _PROCESS_GB * here.num_processes
    available = assemble.available_bytes() / 1e9
    found = f"{said}; with {here.num_processes} processes about {needed:.1f} GB; {available:.1f} GB available"
    yield Result("ok", "memory", found) if needed <= available else Result("warning", "memory", found, fewer)


def replay_gigabytes(config: Config, here: Here, problem: Any) -> float:
    """All replay on this machine once it is full."""
    from async_dqn import replay

    spec, share = problem.spec, config.replay_capacity // config.num_workers
    each = replay.required_bytes(config.envs_per_worker, share, spec.observation_shape, spec.observation_dtype)
    return len(here.workers) * each / 1e9


def check_disk(config: Config, path: Path, here: Here, problem: Any, *, resume: bool) -> Iterable[Result]:
    """Whether the run directory can be written, safely, and has room for checkpoints.

    Args:
      path: the run directory, which need not exist.
      problem: says how large the network is; None: nobody knows.
    """
    above, other = _existing(path), "give another --logdir"
    if not above.is_dir():
        yield Result("failure", "disk", f"{path}: {above} is not a folder", other)
        return
    try:
        with tempfile.TemporaryFile(dir=above) as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        yield Result("failure", "disk", f"{above} cannot be written to and flushed: {error.strerror}", other)
        return
    if (path / "config.json").exists() != resume:
        found = f"{path} holds no run" if resume else f"{path} already holds a run"
        remedy = "leave out --resume, or give the folder of a run" if resume else f"--resume to go on, or {other}"
        yield Result("failure", "disk", found, remedy)
        return
    free = shutil.disk_usage(above).free / 1e9
    found = f"{free:.1f} GB free for {path}"
    if problem is None:
        yield Result("ok", "disk", found)
        return
    needed = checkpoint_gigabytes(config, problem)
    stored = replay_gigabytes(config, here, problem) if config.checkpoint_replay else 0.0
    found += f"; checkpoints take about {needed:.2g} GB"
    if free < needed:
        yield Result("failure", "disk", found, f"make room, a smaller --keep_checkpoints, or {other}")
    elif free < needed + stored:
        found += f", replay on disk up to {stored:.1f} GB"
        yield Result("warning", "disk", found, f"make room, --nocheckpoint_replay, or {other}")
    else:
        yield Result("ok", "disk", found)


def _existing(path: Path) -> Path:
    """What there is of a path."""
    return next(above for above in (path, *path.parents) if os.path.lexists(above))


def checkpoint_gigabytes(config: Config, problem: Any) -> float:
    """Parameters, target and slots of all checkpoints that are kept, and of the one that is being written."""
    from async_dqn.roles import assemble

    size = problem.layout.num_parameters
    slots = assemble.make_optimizer(config).initial_slots(size).values()
    return (config.keep_checkpoints + 1) * 4 * (2 * size + sum(slot.size for slot in slots)) / 1e9


def check_cores(config: Config, here: Here, cores: float) -> Iterable[Result]:
    """Threads that compute against the cores that they may use."""
    wanted = len(here.workers) * max(1, config.threads)
    threads = f" x {config.threads} threads" if config.threads > 1 else ""
    found = f"{cores:g} for {_workers(len(here.workers))}{threads} and {here.num_ps} ps"
    if wanted > cores:
        yield Result("warning", "cores", found, "fewer workers or --threads; more only take turns on the cores")
    else:
        yield Result("ok", "cores", found)


def _cores() -> float:
    """Cores that this process may use: the machine's, its affinity's or its control group's."""
    cores = float(len(os.sched_getaffinity(0)))
    with contextlib.suppress(OSError, ValueError):  # no limit reads "max 100000"
        quota, period = map(int, (_CGROUP / "cpu.max").read_text().split())
        cores = min(cores, quota / period)
    return cores


def check_load(load: float, cores: int) -> Iterable[Result]:
    """Whether others use the machine already."""
    found = f"load average {load:.1f} on {cores} cores"
    if load > 0.7 * cores:
        yield Result("warning", "load", found, "wait, or end what runs (top shows it)")
    else:
        yield Result("ok", "load", found)


def check_files(config: Config, here: Here, limits: tuple[int, int]) -> Iterable[Result]:
    """Open files of one process. Measured: 12, and 2 for each process that it talks to."""
    peers = max(config.num_workers if here.num_ps else 0, config.num_ps if here.workers else 0)
    least, comfortable = 16 + 2 * peers, 64 + 4 * peers
    soft, hard = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in limits)
    found = f"{soft:g} allowed, {comfortable} wanted"
    remedy = f"ulimit -n {comfortable}{'' if hard >= comfortable else ', which an administrator has to allow'}"
    if soft < comfortable:
        yield Result("failure" if soft < least else "warning", "open files", found, remedy)
    else:
        yield Result("ok", "open files", found)


def check_processes(here: Here, limits: Mapping[str, float], cores: float) -> Iterable[Result]:
    """Processes and threads.

    Args:
      limits: how many more there may be, by what bounds them.
    """
    wanted = math.ceil(here.num_processes * (_PROCESS_THREADS + 4 * cores))
    source, left = min(limits.items(), key=lambda item: item[1], default=("", math.inf))
    if left < wanted:
        found = f"{max(0, left):g} more threads allowed by {source}, about {wanted} wanted"
        yield Result("warning", "processes", found, f"raise {source}, or fewer workers here")
    else:
        yield Result("ok", "processes", f"{here.num_processes}, with about {wanted} threads, are allowed")


def _process_limits() -> dict[str, float]:
    """How many more processes and threads this user and this control group may have, by what says so."""
    import psutil

    limits: dict[str, float] = {}
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.getuid():  # root is exempt
        used = 0
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                used += process.num_threads() if process.uids().real == os.getuid() else 0
        limits["ulimit -u"] = soft - used
    with contextlib.suppress(OSError, ValueError):  # no limit reads "max"
        maximum, current = (int((_CGROUP / name).read_text()) for name in ("pids.max", "pids.current"))
        limits["the container's limit of processes"] = maximum - current
    return limits


def check_clock(now: float) -> Iterable[Result]:
    """Whether the clock is obviously wrong: times in metrics, names of run directories and certificates rest on it."""
    date = time.strftime("%Y-%m-%d", time.gmtime(now))
    if date < "2025-01-01":
        yield Result("warning", "clock", f"says {date}", "set it: timedatectl set-ntp true")
    else:
        yield Result("ok", "clock", date)


def check_ports(config: Config) -> Iterable[Result]:
    """Whether a cluster on this machine finds ports."""
    count = config.num_ps + config.num_workers
    try:
        ClusterSpec.local(config.num_ps, config.num_workers)
    except OSError as error:
        found = f"{count} free ports cannot be had: {error.strerror}"
        yield Result("failure", "ports", found, "end what holds them (ss -tanp shows it), or allow more open files")
    else:
        yield Result("ok", "ports", f"{count} free ones found")


def check_private_network(path: Path) -> Iterable[Result]:
    """Whether `local` can keep its cluster to itself.

    Args:
      path: the run directory, which need not exist.
    """
    from async_dqn.roles.private_network import PrivateNetwork

    network = PrivateNetwork.create(_existing(path))
    if isinstance(network, str):
        found, _, remedy = network.rpartition("; ")
        yield Result("warning", "private network", found, f"{remedy}: {_GUIDE}")
    else:
        network.close()
        yield Result("ok", "private network", "local keeps its ports to itself")


def look_up_hosts(spec: ClusterSpec | None) -> dict[str, Future]:
    """The addresses of every host of the spec, all asked for at once."""
    hosts = {_host_and_port(address)[0] for address in (*spec.ps, *spec.worker)} if spec else set()
    return {host: _start(functools.partial(look_up, host)) for host in sorted(hosts)}


def look_up(host: str) -> list[Address]:
    """The addresses that a name stands for. Raises OSError or UnicodeError where there are none."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]").lower(), int(port)


def is_own(address: Address) -> bool:
    """Whether this machine has the address: then, and only then, can it be bound."""
    family, where = address
    try:
        with socket.socket(family) as holder:
            holder.bind(where)
        return True
    except OSError:
        return False


def _resolved(lookup: Future, end: float) -> list[Address]:
    """What was looked up, in time for what is done with it. Raises FutureTimeout where it was not."""
    return lookup.result(max(0.0, end - _CONNECT_SECONDS - 2.0 - time.monotonic()))


def tasks_here(config: Config, spec: ClusterSpec | None, lookups: Mapping[str, Future], end: float) -> Here:
    """The processes that run on this machine; a host that does not resolve in time is another one."""
    if spec is None:  # and the launcher
        return Here(config.num_ps, tuple(range(config.num_workers)), config.num_ps + config.num_workers + 1)
    own = set()
    for host, lookup in lookups.items():
        with contextlib.suppress(OSError, UnicodeError, FutureTimeout):
            addresses = _resolved(lookup, end)
            own |= {host} if any(map(is_own, addresses)) else set()
    ps = [address for address in spec.ps if _host_and_port(address)[0] in own]
    workers = tuple(i for i, address in enumerate(spec.worker) if _host_and_port(address)[0] in own)
    return Here(len(ps), workers, len(ps) + len(workers))


def check_cluster(spec: ClusterSpec, here: Here) -> Iterable[Result]:
    """What of the cluster runs here, and addresses that mean another machine to every reader."""
    addresses = (*spec.ps, *spec.worker)
    hosts = {_host_and_port(address)[0] for address in addresses}
    everywhere = sorted(host for host in hosts if _is_anyone(host))
    found = f"{len(addresses)} processes on {len(hosts)} hosts, {here.num_processes} of them here"
    if everywhere and len(hosts) > len(everywhere):
        found = f"{', '.join(everywhere)} means a different machine to each host"
        yield Result("warning", "cluster", found, "give the address by which the others reach it")
    elif not here.num_processes:
        remedy = "right if this is none of its hosts; else give an address that this machine has (ip address)"
        yield Result("warning", "cluster", found, remedy)
    else:
        yield Result("ok", "cluster", found)


def _is_anyone(host: str) -> bool:
    """Whether the name means the machine that reads it."""
    if host == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    return ip.is_loopback or ip.is_unspecified


def check_exposure(lookups: Mapping[str, Future], own: Iterable[str], end: float) -> Iterable[Result]:
    """Public addresses: TensorFlow's servers know no password, and listen on every interface that this machine has.

    Args:
      own: the IP addresses of this machine's interfaces.
    """
    public: dict[str, str] = {}
    for host, lookup in lookups.items():
        with contextlib.suppress(OSError, UnicodeError, FutureTimeout):
            ips = [address[0] for _, address in _resolved(lookup, end) if _is_public(address[0])]
            public |= {ip: ip if ip == host else f"{host} ({ip})" for ip in ips}
    public |= {ip: f"this machine's {ip}" for ip in own if _is_public(ip) and ip not in public}
    if public:
        found = f"public: {', '.join(public.values())}; TensorFlow's servers ask for no password"
        yield Result("warning", "exposure", found, f"let only the cluster's hosts reach the ports: {_GUIDE}")
    else:
        yield Result("ok", "exposure", "no public address in the spec or on this machine")


def _is_public(ip: str) -> bool:
    return ipaddress.ip_address(ip.partition("%")[0]).is_global


def _own_addresses() -> list[str]:
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    return [item.address for items in psutil.net_if_addrs().values() for item in items if item.family in families]


def _address_checks(spec: ClusterSpec, lookups: Mapping[str, Future], end: float) -> list[tuple[str, Check]]:
    checks: list[tuple[str, Check]] = []
    for job, addresses in spec.to_dict().items():
        for index, address in enumerate(addresses):
            task, lookup = f"{job} {index}", lookups[_host_and_port(address)[0]]
            checks.append((task, functools.partial(check_address, task, address, lookup, end)))
    return checks


def check_address(task: str, address: str, lookup: Future, end: float) -> Iterable[Result]:
    """One process of the spec: here, whether its port is free; elsewhere, whether it answers."""
    host, port = _host_and_port(address)
    try:
        found = _resolved(lookup, end)
    except (OSError, UnicodeError, FutureTimeout) as error:
        why = f": {getattr(error, 'strerror', None) or error}" if lookup.done() else " in time"
        remedy = "correct the name in the spec, or enter it in DNS or /etc/hosts"
        yield Result("failure", task, f"{address}: {host} does not resolve{why}", remedy)
        return
    if any(map(is_own, found)):
        yield _check_own_port(task, address)
        return
    start = "start it there, before or after the others"
    try:
        _connect(found, port)
    except ConnectionRefusedError:
        yield Result("warning", task, f"{address}: nothing listens there yet", start)
    except TimeoutError:
        remedy = f"{start}, or open port {port} in that host's firewall"
        yield Result("warning", task, f"{address}: no answer within {_CONNECT_SECONDS:g} s", remedy)
    except OSError as error:
        yield Result("warning", task, f"{address}: {error.strerror or error}", "check the network between the hosts")
    else:
        yield Result("ok", task, f"{address} answers")


def _check_own_port(task: str, address: str) -> Result:
    try:
        check_port(address)
    except UserError as error:
        _, port = _host_and_port(address)
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), _CONNECT_SECONDS):
            remedy = f"right if the cluster runs already; else end it (ss -ltnp 'sport = :{port}'), or change the spec"
            return Result("warning", task, f"{address}, this machine: something listens there", remedy)
        return Result("failure", task, str(error), "give another port in the spec")
    return Result("ok", task, f"{address}, this machine: the port is free")


def _connect(addresses: Sequence[Address], port: int) -> None:
    """Reaches one of the addresses in time, or raises what the last one said."""
    for index, (family, where) in enumerate(addresses):
        try:
            with socket.socket(family) as connection:
                connection.settimeout(_CONNECT_SECONDS / len(addresses))
                connection.connect((where[0], port, *where[2:]))
            return
        except OSError:
            if index == len(addresses) - 1:
                raise
