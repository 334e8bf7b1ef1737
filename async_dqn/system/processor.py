"""Which processor this machine has, and what it computes best in."""

import contextlib
import os
import platform
from collections.abc import Collection
from pathlib import Path

from async_dqn.system.control_groups import control_groups

BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")  # instructions for bfloat16; without them it is slower than float32


def info() -> dict[str, str]:
    """What /proc/cpuinfo says of the first core; nothing where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def name() -> str:
    """The processor's name, or else the machine's kind."""
    return info().get("model name", platform.machine())


def model() -> str:
    """Family, model and stepping: processors of the same name can differ by a factor of two. Empty: not known."""
    found, names = info(), {"family": "cpu family", "model": "model", "stepping": "stepping"}
    return ", ".join(f"{short} {found[long]}" for short, long in names.items() if long in found)


def flags() -> list[str]:
    """The instructions that it has beside the common ones."""
    return info().get("flags", "").split()


def usable_cores() -> float:
    """Cores that this process may use: the machine's, its affinity's or its control groups'."""
    cores = float(len(os.sched_getaffinity(0)))
    for group in control_groups():
        with contextlib.suppress(OSError, ValueError):  # no limit reads "max 100000"
            quota, period = map(int, (group / "cpu.max").read_text().split())
            cores = min(cores, quota / period)
    return cores


def best_dtype(found: Collection[str], *, on_gpu: bool) -> str:
    """What networks compute in where it is left to the machine.

    It follows from the processor's instructions, not from timing, so that equal runs are equal.

    Args:
      found: as `flags` gives them.
      on_gpu: whether they compute on a GPU.
    """
    return "bfloat16" if not on_gpu and set(found) & set(BFLOAT16_FLAGS) else "float32"
