"""What each part of a worker costs when it is all that a core does."""

import functools
import tempfile
from typing import Any

from async_dqn.settings.config import DTYPES, Config
from async_dqn.tools.bench import child
from async_dqn.tools.bench.case import Case
from async_dqn.tools.bench.servers import parameter_servers
from async_dqn.tools.bench.work import Plan, config

_ACTING = (1, 8, 32)  # observations in a batch
_PUSHES = {
    "a gradient": {"local_steps": 0, "locked": False},
    "a gradient, locked": {"local_steps": 0, "locked": True},
    "a delta": {"local_steps": 4},
}


def cases(plan: Plan) -> list[Case]:
    """All parts; every case is a child of its own, with one thread."""
    settings = config(plan)
    seconds = 1.0 if plan.is_quick else 3.0

    def part(name: str, function: str, settings: Config, **options: Any) -> Case:
        measure = functools.partial(child.measure, f"async_dqn.tools.bench.costs:{function}", settings, seconds=seconds)
        return Case("parts", name, functools.partial(measure, **options))

    def trips(num_ps: int, dtype: str) -> Case:
        measure = functools.partial(_trips, config(plan, num_ps=num_ps, wire_dtype=dtype), seconds=seconds)
        return Case("parts", f"trip to {num_ps} ps, {dtype}", measure)

    return [
        part("environment", "environment_step", settings),
        part("acting", "acting", settings, batch_sizes=_ACTING),
        part("replay", "replay", settings),
        *(part(f"minibatch, {dtype}", "minibatch", config(plan, compute_dtype=dtype)) for dtype in DTYPES),
        *(trips(num_ps, dtype) for dtype in DTYPES for num_ps in (1, 2)),
        Case("parts", "checkpoint", functools.partial(_checkpoint, settings, seconds=seconds)),
    ]


def _trips(settings: Config, *, seconds: float) -> dict[str, float]:
    with parameter_servers(settings.num_ps) as (spec, enter):
        return child.measure(
            "async_dqn.tools.bench.trip_costs:trips",
            settings,
            enter=enter,
            seconds=seconds,
            cluster=spec.to_dict(),
            pushes=_PUSHES,
        )


def _checkpoint(settings: Config, *, seconds: float) -> dict[str, float]:
    # Here, where runs are written, as /tmp often lies in memory; and removed by this process, which outlives the child.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as folder:
        return child.measure("async_dqn.tools.bench.costs:checkpoint", settings, seconds=seconds, folder=folder)
