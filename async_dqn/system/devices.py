"""Which GPU, how much of it, which cores, how many threads and which kernels a process takes: decided once, for server
and eager runtime alike.

`hide_gpus` and `choose_kernels` must run before TensorFlow is imported, `configure_eager` before its first operation.
"""

import contextlib
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from async_dqn.base.errors import UserError
from async_dqn.settings.config import Config
from async_dqn.system import processor


def _nvidia_smi(*arguments: str) -> list[str]:
    if not shutil.which("nvidia-smi"):
        return []
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError("nvidia-smi does not answer; mend the driver, or give --gpus=none") from error
    return done.stdout.splitlines() if done.returncode == 0 else []


def gpu_of_worker(gpus: str, worker: int, visible: list[str]) -> str | None:
    """The card of one worker: cards are assigned to workers in turn. None: it computes on the CPU.

    Args:
      gpus: the setting: auto, none, or indices into `visible`.
      worker: task index.
      visible: identifiers of the cards that this host has.

    Raises:
      UserError: an index that this host does not have.
    """
    if gpus == "none" or (gpus == "auto" and not visible):
        return None
    indices = range(len(visible)) if gpus == "auto" else [int(part) for part in gpus.split(",")]
    for index in indices:
        if index >= len(visible):
            raise UserError(
                f"--gpus={gpus}: {len(visible)} GPUs may be used here (nvidia-smi, CUDA_VISIBLE_DEVICES), numbered "
                "from 0; or give auto or none"
            )
    return visible[indices[worker % len(indices)]]


def card_of_worker(gpus: str, worker: int) -> str | None:
    """`gpu_of_worker` on this host, which is not asked for its cards where none is wanted. Raises UserError."""
    return gpu_of_worker(gpus, worker, [] if gpus == "none" else visible_gpus(os.environ))


def visible_gpus(environ: MutableMapping[str, str]) -> list[str]:
    """Identifiers of the cards that this process may use, CUDA_VISIBLE_DEVICES respected."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [part.strip() for part in chosen.split(",") if part.strip() not in ("", "-1")]
    return [str(index) for index, _ in enumerate(_nvidia_smi("--query-gpu=index", "--format=csv,noheader"))]


def hide_gpus(card: str | None, environ: MutableMapping[str, str] = os.environ) -> None:
    """Leaves this process one card, or none. Before TensorFlow is imported, so that nothing can touch the others."""
    if "CUDA_VISIBLE_DEVICES" not in environ:
        environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order in which nvidia-smi counts
    environ["CUDA_VISIBLE_DEVICES"] = card if card is not None else "-1"


def choose_kernels(*, is_small: bool, environ: MutableMapping[str, str] = os.environ) -> None:
    """Has TensorFlow compute convolutions by oneDNN on every processor. Before it is imported; else nothing changes.

    By itself it does so only where the processor has AVX-512 for neural networks. With AVX2 alone a minibatch of
    pictures takes three quarters of the time by oneDNN; one of vectors takes longer, and is left as it is.

    Args:
      is_small: a network without convolutions that are worth it.
    """
    if not is_small:
        environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def check_gpu(config: Config, say: Callable[[str], None]) -> None:
    """Says where TensorFlow cannot use the card that this process was left. Before the first operation.

    Raises:
      UserError: the card was asked for by its number.
    """
    import tensorflow as tf

    if os.environ.get("CUDA_VISIBLE_DEVICES", "-1") == "-1" or tf.config.list_physical_devices("GPU"):
        return
    fault = "TensorFlow sees no GPU, though this host has one; launch/doctor.sh says what is missing"
    if config.gpus != "auto":
        raise UserError(f"--gpus={config.gpus}: {fault}; or give none")
    say(f"warning: {fault}; computing on the CPU")


def decided(config: Config, *, is_small: bool) -> Config:
    """The settings with the `compute_dtype` that auto stands for in this process. After `hide_gpus`.

    Args:
      is_small: a network that gains nothing by bfloat16.
    """
    if config.compute_dtype != "auto":
        return config
    best = "float32" if is_small else processor.best_dtype(processor.flags(), on_gpu=_on_gpu())
    return dataclasses.replace(config, compute_dtype=best)


def say_dtype(config: Config, say: Callable[[str], None]) -> None:
    """Says what networks compute in and on, and where that is slow here: a resumed run keeps what it had."""
    if _on_gpu():
        say(f"computing in {config.compute_dtype} on GPU {visible_gpus(os.environ)[0]}")
        return
    is_slow = config.compute_dtype == "bfloat16" and processor.best_dtype(processor.flags(), on_gpu=False) != "bfloat16"
    hint = "; this processor has no instructions for it: float32 is faster here" if is_slow else ""
    say(f"computing in {config.compute_dtype} on the CPU{hint}")


def _on_gpu() -> bool:
    """Whether this process computes on a card that it was left. TensorFlow is asked only where there is one."""
    import tensorflow as tf

    return bool(visible_gpus(os.environ)) and bool(tf.config.list_physical_devices("GPU"))


def threads_of_worker(threads: int, num_here: int) -> int:
    """Threads to compute with: the setting, or the cores that may be used here, shared out over the workers here."""
    return threads or max(1, int(processor.usable_cores()) // num_here)


def cores_of_worker(place: int, num_here: int, cores: Sequence[int]) -> Sequence[int]:
    """The cores that one of a machine's workers keeps to: its own part where they come out even, else all of them.

    Args:
      place: which of this machine's workers it is, from 0.
      num_here: how many there are.
      cores: that the machine has.
    """
    if len(cores) % num_here == 0:
        size = len(cores) // num_here
        return cores[place * size : (place + 1) * size]
    if num_here % len(cores) == 0:
        return [cores[place % len(cores)]]
    return cores


def keep_to_cores(place: int, num_here: int) -> None:
    """Keeps this process to `cores_of_worker`: a worker's threads take turns, so each finds its caches warm there."""
    cores = cores_of_worker(place, num_here, sorted(os.sched_getaffinity(0)))
    for thread in os.listdir("/proc/self/task"):  # those to come inherit it
        with contextlib.suppress(OSError):  # it has ended, or nobody may: slower, that is all
            os.sched_setaffinity(int(thread), cores)


def gpu_options(config: Config) -> Any:
    """GPUOptions for a server's ConfigProto: the same share and growth that `configure_eager` gives the eager side."""
    import tensorflow as tf

    fraction = config.gpu_memory_fraction
    return tf.compat.v1.GPUOptions(
        per_process_gpu_memory_fraction=fraction, allow_growth=config.gpu_memory_growth and not fraction
    )


def take_share(config: Config, place: int, num_here: int, say: Callable[[str], None]) -> int:
    """Sets this process up as one of a machine's workers: GPU, threads and cores. Before TensorFlow's first operation.

    Args:
      place: which of them it is, from 0.
      num_here: how many there are.

    Returns:
      The number of threads to compute with.
    """
    check_gpu(config, say)
    if not place:
        say_dtype(config, say)
    num_threads = threads_of_worker(config.threads, num_here)
    if config.pin and not config.threads and num_here > 1:
        keep_to_cores(place, num_here)
    configure_eager(config, num_threads)
    return num_threads


def configure_eager(config: Config, num_threads: int) -> None:
    """Threads and GPU memory of the eager runtime. Before the first operation."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # a notebook may have used TensorFlow before: then all stays as it is
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        for device in tf.config.list_physical_devices("GPU"):
            if config.gpu_memory_fraction:
                query = ("--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i")
                try:
                    total = float(_nvidia_smi(*query, os.environ["CUDA_VISIBLE_DEVICES"])[0])
                except (IndexError, ValueError):
                    raise UserError(
                        f"--gpu_memory_fraction={config.gpu_memory_fraction}: nvidia-smi does not say how much memory "
                        "the card has; leave it out"
                    ) from None
                limit = tf.config.LogicalDeviceConfiguration(memory_limit=int(config.gpu_memory_fraction * total))
                tf.config.set_logical_device_configuration(device, [limit])
            else:
                tf.config.experimental.set_memory_growth(device, config.gpu_memory_growth)
