"""How cost and speed change with size: of replay, and of the cluster and what each worker plays."""

import dataclasses
import functools
from typing import NamedTuple

from async_dqn.data.replay import required_bytes
from async_dqn.envs.registry import resolve
from async_dqn.run.progress import count
from async_dqn.settings.config import Config
from async_dqn.system.memory import available_bytes
from async_dqn.tools.bench import child, programs
from async_dqn.tools.bench.case import Case
from async_dqn.tools.bench.work import Plan, config

_REPLAY_SLOTS = (10_000, 100_000, 1_000_000)
_NUM_ENVS = (1, 4, 8, 16, 32)
_NUM_WORKERS = (1, 2, 4)
_NUM_PS = (1, 2)
_PROGRAM_METRICS = ("agent steps/s", "minibatches/s", "cores used", "resident MB")
_SPARE_BYTES = 2 * 10**9  # of memory, beside the largest replay


class Size(NamedTuple):
    """Of a cluster."""

    num_ps: int
    num_workers: int
    envs_per_worker: int


def cases(plan: Plan) -> list[Case]:
    """Replay alone, and whole clusters."""
    return [*_replay_cases(plan), *(_cluster_case(plan, size) for size in sizes(plan))]


def sizes(plan: Plan) -> list[Size]:
    """The plan's own, and all in which one number is another, each once."""
    own = Size(plan.num_ps, plan.num_workers, config(plan).envs_per_worker)
    num_envs = (1, _NUM_ENVS[-1]) if plan.is_quick else _NUM_ENVS
    num_workers = (1,) if plan.is_quick else _NUM_WORKERS
    varied = [
        own,
        *(own._replace(envs_per_worker=number) for number in num_envs),
        *(own._replace(num_workers=number) for number in num_workers),
        *(own._replace(num_ps=number) for number in _NUM_PS),
    ]
    return list(dict.fromkeys(varied))


def _replay_cases(plan: Plan) -> list[Case]:
    seconds = 1.0 if plan.is_quick else 3.0
    found = []
    for slots in _REPLAY_SLOTS[: 2 if plan.is_quick else None]:
        # One worker's: what matters is how much memory a minibatch is gathered from.
        settings = config(plan, replay_capacity=slots, warmup_steps=1, num_workers=1)
        if _replay_bytes(settings) + _SPARE_BYTES > available_bytes():
            plan.say(f"no replay of {slots:,}: it does not fit into memory")
            continue
        measure = functools.partial(child.measure, "async_dqn.tools.bench.costs:replay", settings, seconds=seconds)
        found.append(Case("scale", f"replay of {slots:,}", measure))
    return found


def _replay_bytes(settings: Config) -> int:
    spec = resolve(settings.env, settings.protocol)
    return required_bytes(
        settings.envs_per_worker, settings.replay_capacity, spec.observation_shape, spec.observation_dtype
    )


def _cluster_case(plan: Plan, size: Size) -> Case:
    workers, envs = count(size.num_workers, "worker"), count(size.envs_per_worker, "environment")
    each = " each" if size.num_workers > 1 else ""
    return Case("scale", f"{size.num_ps} ps, {workers}, {envs}{each}", functools.partial(_measure_cluster, plan, size))


def _measure_cluster(plan: Plan, size: Size) -> dict[str, float]:
    sized = dataclasses.replace(
        plan,
        num_ps=size.num_ps,
        num_workers=size.num_workers,
        overrides={**plan.overrides, "envs_per_worker": size.envs_per_worker},
    )
    _, local = programs.cases(sized)
    values = local.measure()
    return {what: values[what] for what in _PROGRAM_METRICS}
