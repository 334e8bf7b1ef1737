"""The sections of the report: which cases each has."""

import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

from async_dqn.agents import table
from async_dqn.run.progress import count
from async_dqn.settings.config import DTYPES, Config
from async_dqn.system import devices
from async_dqn.tools.bench import child, programs
from async_dqn.tools.bench.work import WORKS, Case, Plan, config
from async_dqn.tools.report import studies

# Fast DQN acts ahead of its learner within a period of the target network: a window has to have several of them.
_SHORT_PERIOD = {"target_period": 200}
_SHARED_MEMORY = {"store": "shared_memory", "local_steps": 0, "num_ps": 0}


def program_cases(plan: Plan) -> list[Case]:
    """The baseline, fast DQN where the work is DQN's, the cluster and shared memory on the same work."""
    workers, unshared = count(plan.num_workers, "worker"), _unshared(WORKS[plan.work].agent)
    cases = [_program("programs", "baseline", "baseline", plan, config(plan, **unshared))]
    if WORKS[plan.work].agent == "dqn":
        settings = config(plan, "fast_dqn", **unshared, **_SHORT_PERIOD)
        cases.append(_program("programs", "fast_dqn", "baseline", plan, settings))
    return cases + [
        _program("programs", f"local, {_size(plan.num_ps, plan.num_workers)}", "local", plan, config(plan)),
        _program("programs", f"local, shared memory, {workers}", "local", plan, config(plan, **_SHARED_MEMORY)),
    ]


def _unshared(agent: str) -> dict[str, Any]:
    return table.find(agent).Config.unshared()


def _program(section: str, name: str, job: str, plan: Plan, settings: Config) -> Case:
    return Case(section, name, functools.partial(programs.measure, programs.ours(job, settings), plan.seconds))


def _size(num_ps: int, num_workers: int) -> str:
    return f"{num_ps} ps + {count(num_workers, 'worker')}"


def part_cases(plan: Plan) -> list[Case]:
    """Each part of a worker when it is all that one core does."""
    functions: dict[str, tuple[str, dict[str, Any]]] = {
        **{name: (name, {}) for name in ("environment", "acting", "experience")},
        **{f"minibatch, {dtype}": ("minibatch", {"compute_dtype": dtype}) for dtype in DTYPES},
        **{f"round trip to {num_ps} ps": ("round_trips", {"num_ps": num_ps}) for num_ps in (1, 2)},
    }

    def measure(function: str, settings: Config) -> dict[str, float]:
        return _measure(plan, function, settings)[0]

    return [
        Case("parts", name, functools.partial(measure, function, config(plan, **changes)))
        for name, (function, changes) in functions.items()
    ]


def _measure(
    plan: Plan, function: str, settings: Config, processes: int = 1, threads: int = 1, **arguments: int
) -> list[dict[str, float]]:
    arguments["seconds"] = 1 if plan.is_quick else 3
    return child.measure(f"async_dqn.tools.bench.costs:{function}", settings, processes, threads, arguments)


def limit_cases(plan: Plan) -> list[Case]:
    """Workers that do nothing but learn, and one process with a thread for each core."""
    sizes = {  # processes, and threads of each
        count(plan.num_workers, "process"): (plan.num_workers, devices.threads_of_worker(0, plan.num_workers)),
        "1 process, all threads": (1, len(os.sched_getaffinity(0))),
    }

    def measure(dtype: str, num_processes: int, num_threads: int) -> dict[str, float]:
        settings, arguments = config(plan, compute_dtype=dtype), {"num_processes": num_processes}
        found = _measure(plan, "minibatch_rate", settings, num_processes, num_threads, **arguments)
        return {metric: sum(one[metric] for one in found) for metric in found[0]}

    return [
        Case("limit", f"learner only, {name}, {dtype}", functools.partial(measure, dtype, *size))
        for dtype, (name, size) in itertools.product(DTYPES, sizes.items())
    ]


def scale_cases(plan: Plan) -> list[Case]:
    """The baseline, and clusters with 1, 2, 4 ... workers: as many as there are cores, but at least 4."""
    most = max(4, len(os.sched_getaffinity(0)))
    numbers = {1, plan.num_workers} | {2**i for i in range(most.bit_length()) if not plan.is_quick}
    unshared = _unshared(WORKS[plan.work].agent)
    return [_program("scale", "baseline", "baseline", plan, config(plan, **unshared))] + [
        _program("scale", _size(plan.num_ps, number), "local", plan, config(plan, num_workers=number))
        for number in sorted(numbers)
    ]


def sharing_cases(plan: Plan) -> list[Case]:
    """The kinds of run of `compare --study=sharing`, which are of DQN."""
    cases = []
    for name, job, agent, own in studies.STUDIES["sharing"][studies.CARTPOLE](plan.is_quick):
        changes = own | (_unshared(agent) if job == "baseline" else {"num_workers": plan.num_workers})
        changes |= _SHARED_MEMORY if own.get("store") == "shared_memory" else {}
        changes |= _SHORT_PERIOD if agent == "fast_dqn" else {}
        cases.append(_program("sharing", name, job, plan, config(plan, agent, **changes)))
    return cases


SECTIONS: dict[str, Callable[[Plan], list[Case]]] = {
    "programs": program_cases,
    "parts": part_cases,
    "limit": limit_cases,
    "scale": scale_cases,
    "sharing": sharing_cases,
}
