"""Checks of the machine itself: memory, disk, cores, limits, clock."""

import contextlib
import math
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from async_dqn.base.errors import UserError
from async_dqn.settings.config import Config
from async_dqn.tools.doctor.checks import Result, counted
from async_dqn.tools.doctor.hosts import Here

_PROCESS_GB = 0.7  # resident in one process beside replay; 0.4 of it is TensorFlow's code, which all share
_PROCESS_THREADS = 100  # of one ps or worker, and some more for each core
_CGROUP = Path("/sys/fs/cgroup")


def check_memory(config: Config, here: Here, problem: Any) -> Iterable[Result]:
    """Memory for all replay on this machine once it is full, and for the processes."""
    if problem is None:
        yield Result("warning", "memory", "not checked", "mend TensorFlow, environment or network first")
        return
    from async_dqn.run import preflight
    from async_dqn.system import memory

    fewer = "a smaller --replay_capacity, or fewer workers here"
    try:
        said = preflight.check_replay_memory(config, problem.spec, len(here.workers))
    except UserError as error:
        yield Result("failure", "memory", str(error), fewer)
        return
    needed = replay_gigabytes(config, here, problem) + _PROCESS_GB * here.num_processes
    available = memory.available_bytes() / 1e9
    found = f"{said}; with {here.num_processes} processes about {needed:.1f} GB; {available:.1f} GB available"
    yield Result("ok", "memory", found) if needed <= available else Result("warning", "memory", found, fewer)


def replay_gigabytes(config: Config, here: Here, problem: Any) -> float:
    """All replay on this machine once it is full."""
    from async_dqn.data import replay

    spec, share = problem.spec, config.replay_capacity // config.num_workers
    each = replay.required_bytes(config.envs_per_worker, share, spec.observation_shape, spec.observation_dtype)
    return len(here.workers) * each / 1e9


def check_disk(config: Config, path: Path, here: Here, problem: Any, *, resume: bool) -> Iterable[Result]:
    """Whether the run directory can be written, safely, and has room for checkpoints.

    Args:
      path: the run directory, which need not exist.
      problem: says how large the network is; None: nobody knows.
    """
    above, other = existing(path), "give another --logdir"
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


def existing(path: Path) -> Path:
    """What there is of a path."""
    return next(above for above in (path, *path.parents) if os.path.lexists(above))


def checkpoint_gigabytes(config: Config, problem: Any) -> float:
    """Parameters, target and slots of all checkpoints that are kept, and of the one that is being written."""
    from async_dqn.run import build

    size = problem.layout.num_parameters
    slots = build.make_optimizer(config).initial_slots(size).values()
    return (config.keep_checkpoints + 1) * 4 * (2 * size + sum(slot.size for slot in slots)) / 1e9


def check_cores(config: Config, here: Here, cores: float) -> Iterable[Result]:
    """Threads that compute against the cores that they may use."""
    wanted = len(here.workers) * max(1, config.threads)
    threads = f" x {config.threads} threads" if config.threads > 1 else ""
    found = f"{cores:g} for {counted(len(here.workers), 'worker')}{threads} and {here.num_ps} ps"
    if wanted > cores:
        yield Result("warning", "cores", found, "fewer workers or --threads; more only take turns on the cores")
    else:
        yield Result("ok", "cores", found)


def check_dtype(config: Config, cpu: Mapping[str, str], num_gpus: int | None) -> Iterable[Result]:
    """What the network computes in, against what this processor is good at.

    Args:
      cpu: of the processor, as /proc/cpuinfo has it.
      num_gpus: that TensorFlow sees; None where it does not work. With any it is not the processor that computes.
    """
    found, unit = config.compute_dtype, _bfloat16_unit(cpu)
    if num_gpus and config.gpus != "none":
        yield Result("ok", "dtype", found)
    elif found == "bfloat16" and not unit:
        remedy = "leave out --compute_dtype=bfloat16; bench --sections=limit measures both"
        yield Result("warning", "dtype", "bfloat16, which may be slower than float32 on this processor", remedy)
    elif found == "float32" and unit and config.network != "mlp":
        yield Result("ok", "dtype", f"float32; this processor has {unit}, which --compute_dtype=bfloat16 uses")
    else:
        yield Result("ok", "dtype", found)


def _bfloat16_unit(cpu: Mapping[str, str]) -> str:
    """The instructions by which bfloat16 was seen to pay; "" where there are none."""
    flags = cpu.get("flags", "").split()
    if "amx_bf16" in flags:
        return "amx_bf16"
    # On Intel's without AMX it is slower than float32, by 1.4 on one that was measured.
    return "avx512_bf16" if "avx512_bf16" in flags and cpu.get("vendor_id") == "AuthenticAMD" else ""


def usable_cores() -> float:
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
    """Open files of one process. Measured: up to 18 in worker 0, and 4 for each process that it shares memory with."""
    peers = max(config.num_workers if here.num_ps else 0, config.num_ps if here.workers else 0)
    least, comfortable = 24 + 4 * peers, 64 + 8 * peers
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


def process_limits() -> dict[str, float]:
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
