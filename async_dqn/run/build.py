"""Builds the parts of a run from its settings."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.agents import table
from async_dqn.agents.base import Agent, is_small
from async_dqn.base.errors import UserError
from async_dqn.data import shared_queue
from async_dqn.data.experience import Evaluate, Outputs
from async_dqn.data.shared_queue import SharedQueue
from async_dqn.nn import optimizers
from async_dqn.nn.module import Module
from async_dqn.nn.normalization import make_statistics, with_normalization
from async_dqn.run import preflight
from async_dqn.settings.config import Config, QueueSettings
from async_dqn.store.base import ParameterStore, state_shapes
from async_dqn.store.client import DirectClient, ParameterClient
from async_dqn.store.delta_client import DeltaClient
from async_dqn.store.gradient_client import GradientClient
from async_dqn.store.hogwild_client import HogwildClient
from async_dqn.store.local import LocalParameterStore
from async_dqn.store.round_trip import RoundTripClient
from async_dqn.store.shared_memory import SharedMemoryStore, create
from async_dqn.store.synchronous import SynchronousStore
from async_dqn.system import devices
from async_dqn.system.memory import available_bytes


class Part(Enum):
    """What of an agent a worker runs."""

    ACTOR_LEARNER = auto()
    ACTOR = auto()  # what happens crosses a queue to the learner
    LEARNER = auto()
    PLANNER = auto()  # worker 0 acts and learns


def part_of(config: Config, worker: int) -> Part:
    """The part that a worker runs."""
    if config.has_planners and worker:
        return Part.PLANNER
    if not config.separates:
        return Part.ACTOR_LEARNER
    return Part.ACTOR if worker else Part.LEARNER


def make_agent(config: Config, worker: int = 0) -> Agent:
    """One worker's agent, of settings that are decided for this machine.

    Raises UserError where environment, protocol and network do not go together.
    """
    spec = preflight.resolve(config)
    small = is_small(config, spec)
    devices.choose_kernels(is_small=small)
    config = devices.decided(config, is_small=small)
    agent = table.find(config.agent)(config, spec, worker)
    if config.normalize_observations:
        _normalize_observations(agent)
    return agent


def _normalize_observations(agent: Agent) -> None:
    """Puts the running mean and variance among the modules of an agent, and before its networks."""
    config = agent.config
    # Where workers step by themselves, each with an average of its own, that of worker 0 alone counts.
    weight = float(agent.worker == 0) if config.local_steps else 1.0
    has_target = any(module.has_target for module in agent.modules)
    agent.modules = [*agent.modules, make_statistics(agent.spec, weight=weight, has_target=has_target)]
    agent.apply = with_normalization(agent.apply, agent.spec)  # type: ignore[method-assign]


def store_modules(agent: Agent) -> list[Module]:
    """The modules as parameter servers hold them: where workers step by themselves, a push is a delta to add."""
    return [
        module._replace(optimizer=optimizers.add()) if agent.takes_deltas(module) else module
        for module in agent.modules
    ]


def server_bytes(agent: Agent) -> int:
    """What the parameter servers of a run hold: the networks, and a gradient of each worker where updates are means."""
    config, modules = agent.config, store_modules(agent)
    if config.store != "ps":
        return 0
    networks = sum(math.prod(shape) for shape in state_shapes(modules).values())
    gradients = {"async": 0, "sync": config.num_workers, "accumulate": config.num_workers + 1}[config.mode]
    return np.dtype(np.float32).itemsize * (networks + gradients * sum(module.size for module in modules))


def make_local_store(agent: Agent) -> LocalParameterStore:
    """The baseline's store, in its own memory."""
    return LocalParameterStore(agent.modules, agent.config.total_steps, agent.target_period)


def make_direct_client(config: Config, store: LocalParameterStore) -> DirectClient:
    """The baseline's way to that store."""
    return DirectClient(store, max_nonfinite=config.max_nonfinite)


def create_shared_memory(agent: Agent) -> int:
    """The file in which the workers share the networks. Raises UserError where there is not the memory for it."""
    needed, available = _shared_bytes(agent), available_bytes()
    if needed > available:
        raise UserError(
            f"--store=shared_memory needs {needed / 1e9:.2f} GB of memory here for the networks, but "
            f"{available / 1e9:.2f} GB is available"
        )
    try:
        return create(needed)
    except OSError as error:
        raise UserError(
            f"--store=shared_memory: this system gives no memory for it ({error.strerror}); use --store=ps"
        ) from error


def make_shared_store(
    agent: Agent, descriptor: int, should_stop: Callable[[], bool] = lambda: False
) -> SharedMemoryStore:
    """The networks in that file, as one worker sees them. Raises UserError where the descriptor is of no such file.

    Args:
      should_stop: whether the worker was asked to end, and waits for no other.
    """
    config = agent.config
    try:
        size = os.fstat(descriptor).st_size
    except OSError:
        size = 0
    if size != _shared_bytes(agent):
        raise UserError(f"--memory={descriptor}: is no memory that `local` shares with this worker; start `local`")
    options: dict[str, Any] = {
        "worker": agent.worker,
        "num_workers": config.num_workers,
        "total_steps": config.total_steps,
        "target_period": agent.target_period,
    }
    if config.mode == "sync":
        own = {"backup_workers": config.backup_workers, "max_norm": config.max_mean_norm}
        return SynchronousStore(descriptor, agent.modules, should_stop=should_stop, **own, **options)
    return SharedMemoryStore(descriptor, agent.modules, max_staleness=config.max_staleness, **options)


def _shared_bytes(agent: Agent) -> int:
    """What the file takes in which the workers share the networks."""
    kind = SynchronousStore if agent.config.mode == "sync" else SharedMemoryStore
    return kind.required_bytes(agent.modules, agent.config.num_workers)


def create_shared_queue(config: Config) -> int | None:
    """The queue by which experience crosses where there are no parameter servers; None where it does not."""
    return shared_queue.create(config.num_workers) if config.separates else None


def make_shared_queue(agent: Agent, store: SharedMemoryStore, descriptor: int | None) -> SharedQueue | None:
    """That queue as one worker sees it. Raises UserError where the descriptor is of no such file."""
    config = agent.config
    if not (isinstance(config, QueueSettings) and config.separates):
        return None
    try:
        return SharedQueue(
            -1 if descriptor is None else descriptor,
            worker=agent.worker,
            num_workers=config.num_workers,
            size=config.queue_size,
            membership=lambda: store.membership,
        )
    except (OSError, ValueError) as error:
        raise UserError(f"--experience={descriptor}: is no queue that `local` has made; start `local`") from error


def make_client(agent: Agent, store: ParameterStore) -> ParameterClient:
    """A worker's way to the shared store."""
    config = agent.config
    if part_of(config, agent.worker) is Part.ACTOR:
        return RoundTripClient(store, overlap=False, max_nonfinite=config.max_nonfinite, max_staleness=0)
    if config.mode == "hogwild":
        assert isinstance(store, SharedMemoryStore)
        return HogwildClient(store, max_nonfinite=config.max_nonfinite)
    options: dict[str, Any] = {
        "overlap": config.overlap,
        "max_nonfinite": config.max_nonfinite,
        "max_staleness": config.max_staleness,
        "drops_stale": config.mode == "sync",
        "trained": agent.trained,
        "trains_model": part_of(config, agent.worker) is Part.PLANNER,
    }
    if all(map(agent.takes_deltas, agent.trained)):
        return DeltaClient(store, local_steps=config.local_steps, wire_dtype=config.wire_dtype, **options)
    return GradientClient(store, **options)


def make_evaluate(
    agent: Agent, online: Mapping[str, tf.Variable], noise: np.random.Generator | None = None
) -> Evaluate:
    """The function stacked observations [N, S, ...] -> {head: [N, ...]}, by the values that the variables [P] have.

    Of an agent with a recurrent state it takes this as well, [N, M] float32.

    Args:
      noise: of an agent that has some, each call draws the seed of its own from here; None: there is none.
    """
    spec = agent.spec
    signature = [tf.TensorSpec([None, spec.stack, *spec.observation_shape], spec.observation_dtype)]
    if agent.recurrent_size:
        signature.append(tf.TensorSpec([None, agent.recurrent_size]))
    if noise is not None:
        signature.append(tf.TensorSpec([2], tf.int32))

    @tf.function(autograph=False, input_signature=signature)
    def apply(stacked: tf.Tensor, *others: tf.Tensor) -> dict[str, tf.Tensor]:
        params = {one.name: one.layout.unflatten(online[one.name].read_value()) for one in agent.modules}
        return agent.apply(params, stacked, *others)

    traced = apply.get_concrete_function()  # calls cost less Python, and cannot trace again

    def evaluate(stacked: np.ndarray, *recurrent_state: np.ndarray) -> Outputs:
        seed = [] if noise is None else [tf.constant(noise.integers(2**31, size=2, dtype=np.int32))]
        return {
            name: one.numpy()
            for name, one in traced(tf.constant(stacked), *map(tf.constant, recurrent_state), *seed).items()
        }

    return evaluate


def make_seeds(config: Config, worker: int, env_steps: int) -> tuple[np.random.SeedSequence, int]:
    """Seeds of one worker: its agent's, and its environments'. A resumed run does not repeat its first games."""
    sequence = np.random.SeedSequence([config.seed, worker, env_steps])
    agent, environment = sequence.spawn(2)
    return agent, int(environment.generate_state(1)[0]) % 2**30
