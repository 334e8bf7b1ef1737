"""What a child measures as the one worker of a cluster: the cost of a trip to the parameter servers."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from async_dqn.base.errors import RunError
from async_dqn.cluster import server
from async_dqn.cluster.leases import LeaseKeeper
from async_dqn.cluster.remote_store import new_token
from async_dqn.cluster.spec import ClusterSpec, wait_until_reachable
from async_dqn.roles.worker import make_remote_store
from async_dqn.run import build
from async_dqn.settings.config import Config
from async_dqn.store.base import Counters
from async_dqn.system import devices
from async_dqn.tools.bench.stopwatch import median_seconds

_START_DEADLINE = 120.0  # seconds for a ps to listen
_END_DEADLINE = 10.0  # seconds for every ps to hear that this worker is done
_SIZE = 1e-6  # of an update: parameters stay finite however many are pushed


def trips(
    config: Config, *, seconds: float, cluster: Mapping[str, list[str]], pushes: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """One pull, one push of each kind, and a push that pulls by each way, with nothing else going on.

    The parameter servers are left with word that this worker is done, so that they end by themselves.

    Args:
      cluster: its one worker is this process.
      pushes: {name: settings in place of those of `config`}. The last is that of the push that pulls.
    """
    spec = ClusterSpec(ps=tuple(cluster["ps"]), worker=tuple(cluster["worker"]))
    session_config = server.session_config("worker", 0, 1, devices.gpu_options(config))
    target = server.start_server(spec, "worker", 0, session_config).target
    keeper = LeaseKeeper(target, session_config, spec, 0, new_token(), lease=config.lease, on_stop=lambda: None)
    try:
        missing = wait_until_reachable(spec.ps, _START_DEADLINE, lambda: False)
        if missing:
            raise RunError(f"no parameter server listens at {', '.join(missing)} within {_START_DEADLINE:.0f} s")
        measure = functools.partial(_measure, spec, target, session_config, seconds)
        costs: dict[str, float] = {}
        for name, settings in pushes.items():
            changed = dataclasses.replace(config, **settings, shared_memory=False)
            (costs[f"push of {name}, ms"],) = measure(changed, "push")
        pull, costs[f"{name} and back, ms"] = measure(changed, "pull", "push_pull")
        if config.wire_dtype == "float32":
            with contextlib.suppress(RunError):  # no memory is shared here, and the rest is worth having
                shared = dataclasses.replace(changed, shared_memory=True)
                (costs[f"{name} and back, shared memory, ms"],) = measure(shared, "push_pull")
        return {"pull, ms": pull} | costs
    finally:
        keeper.finish(0, _END_DEADLINE)


def _measure(
    spec: ClusterSpec, target: str, session_config: Any, seconds: float, config: Config, *ways: str
) -> list[float]:
    """Milliseconds of each of `ways`, methods of the store, with the parameters and the optimizer set anew.

    Raises RunError where a trip was lost, or memory is to be shared and is not.
    """
    problem = build.make_problem(config)

    def complain(line: str) -> None:
        raise RunError(line)

    store = make_remote_store(
        config,
        problem,
        spec,
        worker=0,
        token=new_token(),
        target=target,
        session_config=session_config,
        warn=complain,  # a trip that was lost and made again says nothing about the others
    )
    store.initialize(build.initial_parameters(config, problem))
    store.join()
    rng = np.random.default_rng(config.seed)
    update = rng.standard_normal(problem.layout.num_parameters, np.float32) * np.float32(_SIZE)
    arguments = (update, config.learning_rate, Counters(minibatches=1, updates=1), 0)
    calls: dict[str, Callable[[], Any]] = {
        "pull": store.pull,
        "push": lambda: store.push(*arguments),
        "push_pull": lambda: store.push_pull(*arguments),
    }
    found = [1e3 * median_seconds(calls[way], seconds) for way in ways]
    if not np.isfinite(store.pull().online).all():
        raise RunError("the parameters are no longer finite")
    store.close()
    return found
