"""Checks of the machine itself: memory, disk, cores, open files, GPUs."""

import contextlib
import math
import os
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

from async_dqn.agents.table import find
from async_dqn.base.errors import UserError
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import count
from async_dqn.settings.config import Config
from async_dqn.system import devices, memory
from async_dqn.tools.doctor.checks import Result, preflight
from async_dqn.tools.doctor.cluster import Here

_PROCESS_GB = 0.7  # resident in one process beside replay; 0.4 of it is TensorFlow's code, which all share
_CHECKPOINTS_GB = 1.0  # room for those of any network here
_CARD = "index,uuid,name,memory.total,memory.free"  # in MiB


def experience_gigabytes(config: Config, here: Here) -> float:
    """All experience on this machine once it is full; 0 where the environment is unknown."""
    with contextlib.suppress(UserError, ImportError):  # which the check of the environment tells
        run = preflight()
        return float(run.experience_bytes(config, run.resolve(config), here.workers) / 1e9)
    return 0.0


def check_memory(config: Config, here: Here) -> Iterable[Result]:
    """Memory for all experience on this machine once it is full, and for the processes."""
    stored, available = experience_gigabytes(config, here), memory.available_bytes() / 1e9
    needed = stored + _PROCESS_GB * here.num_processes
    found = f"{needed:.1f} GB wanted, {stored:.2f} of them for experience; {available:.1f} GB available"
    status = "ok" if needed <= available else "warning" if stored <= available else "failure"
    yield Result(status, found, f"fewer workers here, or a smaller --{find(config.agent).experience_flag}")


def check_disk(config: Config, run: RunDirectory, here: Here, *, resume: bool) -> Iterable[Result]:
    """Whether the run directory, which need not exist, can be written, and has room."""
    try:
        run.check(resume=resume)
        free = shutil.disk_usage(next(path for path in (run.path, *run.path.parents) if path.exists())).free / 1e9
    except (OSError, UserError) as error:
        yield Result("failure", str(error), "give another --logdir")
        return
    kept = experience_gigabytes(config, here) if getattr(config, "checkpoint_replay", False) else 0.0
    needed = _CHECKPOINTS_GB + kept
    remedy = f"make room,{' --nocheckpoint_replay,' if kept else ''} or give another --logdir"
    yield Result("ok" if free >= needed else "warning", f"{free:.1f} GB free, {needed:.1f} GB wanted", remedy)


def check_cores(config: Config, here: Here, cores: float, load: float) -> Iterable[Result]:
    """Threads that compute and the load that others cause, against the cores that they may use."""
    wanted = len(here.workers) * max(1, config.threads)
    found = f"{cores:g}; {count(wanted, 'computing thread')} of {count(len(here.workers), 'worker')}; load {load:.1f}"
    remedy = "fewer workers or --threads, or end what else runs (top shows it)"
    yield Result("warning" if wanted > cores or load > 0.7 * cores else "ok", found, remedy)


def check_files(config: Config, here: Here, limits: tuple[int, int]) -> Iterable[Result]:
    """Open files of one process. Measured: up to 18 in worker 0, and 4 for each process that it shares memory with."""
    peers = max(config.num_workers if here.num_ps else 0, config.num_ps if here.workers else 0)
    least, comfortable = 24 + 4 * peers, 64 + 8 * peers
    soft, hard = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in limits)
    status = "ok" if soft >= comfortable else "warning" if soft >= least else "failure"
    remedy = f"ulimit -n {comfortable}{'' if hard >= comfortable else ', which an administrator has to allow'}"
    yield Result(status, f"{soft:g} allowed, {comfortable} wanted", remedy)


def check_gpus(config: Config, here: Here, seen: int | None) -> Iterable[Result]:
    """The cards, and how the workers of this machine share their memory.

    Args:
      seen: how many TensorFlow sees; None where it does not work.
    """
    try:
        cards = []
        if config.gpus != "none" and shutil.which("nvidia-smi"):
            query = ["nvidia-smi", f"--query-gpu={_CARD}", "--format=csv,noheader,nounits"]
            said = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
            cards = [row for line in said.splitlines() if len(row := line.split(", ")) == 5]
        visible = devices.visible_gpus(os.environ) if cards else []
        chosen = [devices.gpu_of_worker(config.gpus, worker, visible) for worker in here.workers]
    except (UserError, OSError, subprocess.SubprocessError) as error:
        said = " ".join((getattr(error, "stdout", None) or str(error)).split())[:200]
        status = "warning" if config.gpus == "auto" else "failure"
        yield Result(status, said, "see nvidia-smi and CUDA_VISIBLE_DEVICES, mend the driver, or give --gpus=none")
        return
    if not visible:
        yield Result("ok", "none used: workers compute on the CPU")
    elif seen is not None and seen < len(visible):
        ask = "import tensorflow as tf; tf.config.list_physical_devices('GPU')"
        remedy = (
            f"{sys.executable} -m pip install -c requirements.lock -e '.[gpu]'; "
            f'then {sys.executable} -c "{ask}" shows what is missing'
        )
        yield Result("warning", f"TensorFlow sees {seen} of {len(visible)}", remedy)
    for name, sharers in Counter(card for card in chosen if card is not None).items():
        row = next((row for row in cards if name == row[0] or row[1].startswith(name)), [name, "", "", "", ""])
        total, free = (float(cell) * 2**20 / 1e9 if cell.isdecimal() else math.inf for cell in row[3:])
        share = config.gpu_memory_fraction or (0.0 if config.gpu_memory_growth else 1.0)  # of all, for each worker
        known = f", {free:.1f} of {total:.1f} GB free" if math.isfinite(total) else ""
        found = f"{name}: {row[2]}{known}, {count(sharers, 'worker')}, "
        found += f"{share:g} of it each" if share else "memory as needed"
        fits, is_free = share * sharers <= 1 + 1e-9, not share or share * sharers * total <= free
        room = 100 * free / total if math.isfinite(free / total) else 100  # percent
        remedy = f"--gpu_memory_fraction={math.floor(room / sharers) / 100:g} or less, or end what holds its memory"
        yield Result("ok" if fits and is_free else "warning" if fits else "failure", found, remedy)
