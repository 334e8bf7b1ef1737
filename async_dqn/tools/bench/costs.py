"""What each part of a worker costs: functions for `child.measure`, which give {metric, with its unit: value}.

This file alone knows how a worker is built. It asks any agent through what `agents.base` and `data.experience` say.
"""

import dataclasses
import functools
import itertools
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from async_dqn.base.errors import RunError
from async_dqn.base.types import StepResult
from async_dqn.cluster import server
from async_dqn.cluster.remote_store import new_token
from async_dqn.cluster.spec import ClusterSpec, wait_until_reachable
from async_dqn.data.recurrent_state import RecurrentState
from async_dqn.envs import registry
from async_dqn.nn.module import initial_parameters
from async_dqn.roles.worker import make_remote_store
from async_dqn.run import build, preflight
from async_dqn.run.actor_learner import ActorLearner
from async_dqn.settings.config import Config
from async_dqn.store.base import Counters, Update
from async_dqn.system.program import own_command

_ROUND_TRIPS: dict[str, tuple[str, dict[str, Any]]] = {  # the store's method, and settings
    "pull": ("pull", {"shared_memory": False}),
    "push of a gradient": ("push", {"shared_memory": False, "local_steps": 0, "averages": "own"}),
    "a delta and back": ("push_pull", {"shared_memory": False}),
    "a delta and back, shared memory": ("push_pull", {"shared_memory": True}),
}


def median_ms(call: Callable[[], object], seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """The median milliseconds of one call, of all in about `seconds` and five at least, after as many to warm up."""
    for _ in range(2):
        found: list[float] = []
        begin = now = clock()
        while now - begin < seconds / 2 or len(found) < 5:
            before = now
            call()
            now = clock()
            found.append(now - before)
    return 1e3 * statistics.median(found)


def environment(config: Config, *, seconds: float) -> dict[str, float]:
    """One agent step of an environment, of as many as a worker has."""
    spec = preflight.resolve(config)
    env = registry.make_vector_env(spec, config.envs_per_worker, config.seed, num_threads=1)
    rng = np.random.default_rng(config.seed)
    actions = itertools.cycle([registry.random_actions(spec, config.envs_per_worker, rng) for _ in range(1_000)])
    env.reset()
    step = median_ms(lambda: env.step(next(actions)), seconds)
    env.close()
    return {"ms/agent step": step / config.envs_per_worker}


def acting(config: Config, *, seconds: float) -> dict[str, float]:
    """What the networks say of 1, 8 and 32 observations at once."""
    worker = _Worker(config)
    batches = {size: np.resize(worker.stacked, (size, *worker.stacked.shape[1:])) for size in (1, 8, 32)}
    evaluate, size = worker.actor_learner.evaluate, worker.actor_learner.agent.recurrent_size
    return {
        f"batch of {n}, ms": median_ms(functools.partial(RecurrentState(n, size).evaluate, evaluate, one), seconds)
        for n, one in batches.items()
    }


def experience(config: Config, *, seconds: float) -> dict[str, float]:
    """Taking in a step, and drawing a minibatch, from a replay that is full."""
    worker = _Worker(config)
    added = median_ms(lambda: worker.observe(0), seconds) / config.envs_per_worker
    return {"add, µs/agent step": 1e3 * added, "draw, µs/minibatch": 1e6 * worker.learn(seconds)["experience"]}


def minibatch(config: Config, *, seconds: float) -> dict[str, float]:
    """One minibatch: its gradient and the optimizer's step."""
    found = _Worker(config).learn(seconds)
    return {"ms/minibatch": 1e3 * (found["gradient"] + found["copying"])}


def minibatch_rate(config: Config, *, seconds: float, num_processes: int) -> dict[str, float]:
    """Minibatches a second when nothing else is done, in so many processes at the same time."""
    worker = _Worker(config)
    Path(f"{os.getpid()}.ready").touch()
    while len(list(Path().glob("*.ready"))) < num_processes:
        time.sleep(0.005)
    found = worker.learn(seconds)
    worker.learn(0.1)  # the others may still measure
    rate = 1 / (found["gradient"] + found["copying"])
    return {"minibatches/s": rate, "agent steps/s": rate * found["agent steps"]}


class _Worker:
    """An actor-learner beside a store in its own memory, which lives on one made-up step again and again.

    Attributes:
      stacked: [N, S, ...] observations.
    """

    def __init__(self, config: Config):
        agent = build.make_agent(config)
        spec, num_envs, rng = agent.spec, config.envs_per_worker, np.random.default_rng(config.seed)
        store = build.make_local_store(agent)
        store.initialize(initial_parameters(agent.modules, config.seed))
        self._client = build.make_direct_client(config, store)
        self.actor_learner = ActorLearner(agent, self._client, np.random.SeedSequence(config.seed))
        shape = (num_envs, *spec.observation_shape)
        noise = rng.integers(256, size=shape) if spec.observation_dtype == np.uint8 else rng.standard_normal(shape)
        observation, never = noise.astype(spec.observation_dtype), np.zeros(num_envs, bool)
        self._result = StepResult(observation, observation, np.ones(num_envs, np.float32), never, never, [])
        self.stacked = np.repeat(observation[:, None], spec.stack, axis=1)  # [N, S, ...]
        self.actor_learner.reset(observation)
        self._actions = self.actor_learner.act()
        for _ in range(getattr(config, "replay_capacity", 0) // config.num_workers // num_envs):
            self.observe(0)  # until replay is full
        self.learn(0.0)  # everything is compiled then

    def observe(self, num_steps: int) -> None:
        """Takes in one step of all environments, `num_steps` of which count."""
        self.actor_learner.observe(self._actions, self._result, num_steps)

    def learn(self, seconds: float) -> dict[str, float]:
        """Learns for so long. Gives for one minibatch the seconds in each part of the cycle, and "agent steps"."""
        client, num_steps, begin = self._client, 0, time.perf_counter()
        before, first = client.clock.seconds(), client.own_minibatches
        while time.perf_counter() < begin + seconds or client.own_minibatches < first + 5:
            client.clock.enter("other")
            while not self.actor_learner.experience.due():
                self.observe(len(self._actions))
                num_steps += len(self._actions)
            self.actor_learner.learn()
        client.clock.enter("other")
        spent = {part: after - before[part] for part, after in client.clock.seconds().items()}
        return {
            what: value / (client.own_minibatches - first)
            for what, value in (spent | {"agent steps": num_steps}).items()
        }


def round_trips(config: Config, *, seconds: float) -> dict[str, float]:
    """Round trips of the one worker of a cluster, with nothing else going on.

    Starts the parameter servers, which `child.measure` ends.
    """
    spec = ClusterSpec.local(config.num_ps, 1)
    Path("cluster.json").write_text(json.dumps(spec.to_dict()))
    flags = [f"--env={config.env}", "--cluster_spec=cluster.json", "--start_deadline=300"]
    with open("ps.log", "w") as log:  # not this process's own output, which is read to its end
        for index in range(config.num_ps):
            command = own_command("ps", f"--task_index={index}", *flags)
            subprocess.Popen(command, stdout=log, stderr=log)
    if missing := wait_until_reachable(spec.ps, 120.0):
        raise RunError(f"no parameter server listens at {', '.join(missing)}")
    session_config = server.session_config("worker", 0, 1)
    target = server.start_server(spec, "worker", 0, session_config).target

    def refuse(line: str) -> None:
        raise RunError(line)

    def milliseconds(method: str, changed: Config) -> float:
        agent, options = build.make_agent(changed), {"target": target, "session_config": session_config}
        store = make_remote_store(agent, spec, token=new_token(), warn=refuse, **options)
        store.initialize(initial_parameters(agent.modules, config.seed))
        store.join()
        # So small that parameters stay finite.
        updates = {module.name: Update(np.full(module.size, 1e-6, np.float32), 1e-4) for module in agent.modules}
        arguments = (updates, Counters(minibatches=1, updates=1), 0) if method != "pull" else ()
        found = median_ms(lambda: getattr(store, method)(*arguments), seconds)
        store.close()
        return found

    costs = {}
    for name, (method, changes) in _ROUND_TRIPS.items():
        try:
            costs[f"{name}, ms"] = milliseconds(method, dataclasses.replace(config, **changes))
        except RunError:
            if not changes["shared_memory"]:  # it cannot be shared everywhere
                raise
    return costs
