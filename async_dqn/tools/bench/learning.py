"""What learning pays for speed: steps and time to a stated return, for every way to travel and to compute."""

import functools
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from async_dqn.base.errors import RunError
from async_dqn.run.directory import RunDirectory
from async_dqn.settings.config import make_config
from async_dqn.system.task import POLL_PERIOD
from async_dqn.tools.bench.case import Case
from async_dqn.tools.bench.processes import running
from async_dqn.tools.bench.work import Plan

GOAL = 195.0  # mean return of 100 games
_TOTAL_STEPS = 60_000  # twice what most runs need
_DEADLINE = 600.0  # seconds of one run
_VARIANTS: dict[str, dict[str, Any]] = {
    "gradients": {"local_steps": 0},
    "deltas of 1": {"local_steps": 1},
    "deltas of 4": {"local_steps": 4},
    "deltas of 8": {"local_steps": 8},
    "deltas of 1, trips beside the computation": {"local_steps": 1, "overlap": True},
    "deltas of 1, bfloat16 on the wire": {"local_steps": 1, "wire_dtype": "bfloat16"},
    "deltas of 1, computed in bfloat16": {"local_steps": 1, "compute_dtype": "bfloat16"},
}


def cases(plan: Plan) -> list[Case]:
    """CartPole-v1, whatever the plan's work is; every repetition has a seed of its own, the same for all cases."""
    cluster = {"num_ps": plan.num_ps, "num_workers": plan.num_workers}
    variants = _VARIANTS | {"deltas of 1, twice the workers": {"local_steps": 1, "num_workers": 2 * plan.num_workers}}
    shared = dict(plan.overrides)
    jobs: dict[str, tuple[str, dict[str, Any]]] = {"baseline": ("baseline", shared)}
    jobs |= {f"local, {name}": ("local", shared | cluster | variant) for name, variant in variants.items()}
    return [
        Case("learning", name, functools.partial(_next_seed, job, settings, itertools.count()))
        for name, (job, settings) in jobs.items()
    ]


def _next_seed(job: str, settings: Mapping[str, Any], seeds: Iterator[int]) -> dict[str, float]:
    return learn(job, settings, next(seeds))


def learn(job: str, settings: Mapping[str, Any], seed: int, total_steps: int = _TOTAL_STEPS) -> dict[str, float]:
    """Trains one agent until it reaches the goal or its budget is spent, which then counts as what it took.

    Raises RunError where it does not end by itself, with exit code 0.
    """
    overrides = {**settings, "env": "CartPole-v1", "seed": seed, "total_steps": total_steps, "stop_at_return": GOAL}
    config = make_config("cartpole", overrides)
    with tempfile.TemporaryDirectory(prefix="async-dqn-bench-", ignore_cleanup_errors=True) as folder:
        run = RunDirectory(Path(folder) / "run")
        flags = [f"--{name}={value}" for name, value in config.to_dict().items()]
        command = [sys.executable, "-m", "async_dqn", job, *flags, f"--logdir={run.path}"]
        with running(command, Path(folder) / "output.log", Path(folder)) as task:
            deadline = time.monotonic() + _DEADLINE
            while not task.is_over:
                if time.monotonic() > deadline:
                    raise RunError(f"seed {seed}: had not ended after {_DEADLINE:.0f} s")
                time.sleep(POLL_PERIOD)
                task.poll()
        if task.code:
            raise RunError(f"seed {seed}: exit code {task.code}: {task.last_words()}")
        summary = json.loads(run.summary.read_text())
    is_reached = summary["solved_at_steps"] is not None
    return {
        f"steps to {GOAL:g}": summary["solved_at_steps"] if is_reached else summary["env_steps"],
        f"seconds to {GOAL:g}": summary["solved_at_seconds"] if is_reached else summary["wall_seconds"],
        "% of seeds that reached it": 100.0 * is_reached,
    }
