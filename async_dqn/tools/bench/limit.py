"""The limit of this machine: nothing but minibatches, in as many processes as there are workers."""

import functools
import os

from async_dqn.settings.config import DTYPES, Config
from async_dqn.system import devices
from async_dqn.tools.bench import child
from async_dqn.tools.bench.case import Case
from async_dqn.tools.bench.work import Plan, config


def cases(plan: Plan) -> list[Case]:
    """Workers without games, replay and trips, with their threads; and one process with a thread for each core."""
    several = f"{plan.num_workers} process{'es' if plan.num_workers > 1 else ''}"
    num_cores = len(os.sched_getaffinity(0))
    seconds = 1.0 if plan.is_quick else 3.0
    return [
        Case(
            "limit",
            f"learner only, {name}, {dtype}",
            functools.partial(_measure, config(plan, compute_dtype=dtype), num_processes, num_threads, seconds),
        )
        for dtype in DTYPES
        for name, num_processes, num_threads in (
            (several, plan.num_workers, devices.threads_of_worker(0, plan.num_workers)),
            ("1 process, all threads", 1, num_cores),
        )
    ]


def _measure(settings: Config, num_processes: int, num_threads: int, seconds: float) -> dict[str, float]:
    results = child.measure_together(
        "async_dqn.tools.bench.costs:minibatch_rate", settings, num_processes, num_threads=num_threads, seconds=seconds
    )
    minibatches = sum(result["minibatches/s"] for result in results)
    return {"minibatches/s": minibatches, "agent steps/s": minibatches * settings.train_period}
