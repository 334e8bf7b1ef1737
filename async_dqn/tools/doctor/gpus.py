"""Checks of the GPUs, and of how the workers of this machine share them."""

import math
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from async_dqn.base.errors import UserError
from async_dqn.settings.config import Config
from async_dqn.system import devices
from async_dqn.tools.doctor.checks import Result, counted
from async_dqn.tools.doctor.hosts import Here


class Card(NamedTuple):
    """What nvidia-smi says of one GPU; memory in GB, nan where it does not say."""

    number: str
    uuid: str
    name: str
    total: float
    free: float


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
    workers = counted(count, "worker")
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
