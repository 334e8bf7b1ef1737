"""Builds the parts of a run from its settings."""

from typing import Any, NamedTuple

import numpy as np

from async_dqn.agents import dqn
from async_dqn.base import schedules
from async_dqn.data import replay
from async_dqn.envs.frame_stack import FrameStack
from async_dqn.envs.vector_env import EnvironmentSpec
from async_dqn.nn import networks, optimizers
from async_dqn.nn.layout import Layout
from async_dqn.nn.policies import worker_epsilon
from async_dqn.run import preflight
from async_dqn.settings.config import Config
from async_dqn.store.base import ParameterStore
from async_dqn.store.client import LocalClient, ParameterClient
from async_dqn.store.local import LocalParameterStore
from async_dqn.store.round_trips import DeltaClient, GradientClient, TravellingClient


class Problem(NamedTuple):
    """What is learned: the environment, the network for it, and where its parameters lie."""

    spec: EnvironmentSpec
    network: networks.Network
    layout: Layout


def make_problem(config: Config) -> Problem:
    """Raises UserError where environment, protocol and network do not go together."""
    spec, name = preflight.resolve(config)
    network = networks.make_network(
        name,
        spec.observation_shape,
        spec.stack,
        {"q_values": networks.Head(spec.num_actions)},
        dueling=config.dueling,
        center_frames=config.center_frames,
        compute_dtype=config.compute_dtype,
    )
    return Problem(spec, network, Layout(network.shapes))


_ADAM_DECAYS = (0.9, 0.999)  # beta1 and beta2 of Kingma & Ba 2015


def make_optimizer(config: Config, *, num_learners: int = 1) -> optimizers.Optimizer:
    """The update rule of the settings.

    Args:
      num_learners: optimizers that share the minibatches out between them. Each sees one of so many, and its averages
        forget as much over that one as a single optimizer's would over all of them. Else momentum would span
        `num_learners` times the minibatches, a delay that adds to staleness (Mitliagkas et al. 2016).
    """
    if config.optimizer == "adam":
        beta1, beta2 = (decay**num_learners for decay in _ADAM_DECAYS)
        return optimizers.adam(beta1=beta1, beta2=beta2, epsilon=config.optimizer_epsilon, use_locking=config.locked)
    return optimizers.rmsprop(
        decay=config.rmsprop_decay**num_learners,
        epsilon=config.optimizer_epsilon,
        centered=config.optimizer == "centered_rmsprop",
        use_locking=config.locked,
    )


def make_store_optimizer(config: Config) -> optimizers.Optimizer:
    """What parameter servers do with a push: a worker that steps by itself pushes deltas, which are only added."""
    return optimizers.add() if config.local_steps else make_optimizer(config)


def make_learning_rate(config: Config) -> schedules.Schedule:
    """The step size over global agent steps."""
    if config.final_learning_rate < 0:
        return schedules.constant(config.learning_rate)
    steps = config.learning_rate_steps or config.total_steps
    return schedules.linear(config.learning_rate, config.final_learning_rate, begin=0, steps=steps)


def make_local_client(config: Config, store: LocalParameterStore) -> ParameterClient:
    """The baseline's way to the store in its own memory."""
    return LocalClient(store, make_learning_rate(config), max_nonfinite=config.max_nonfinite)


def make_client(config: Config, store: ParameterStore) -> TravellingClient:
    """A worker's way to the parameter servers."""
    rate = make_learning_rate(config)
    options: dict[str, Any] = {
        "overlap": config.overlap,
        "max_nonfinite": config.max_nonfinite,
        "max_staleness": config.max_staleness,
    }
    if config.local_steps:
        is_shared = config.averages == "shared" or (config.averages == "auto" and config.num_workers > 2)
        optimizer = make_optimizer(config, num_learners=config.num_workers if is_shared else 1)
        options |= {"optimizer": optimizer, "wire_dtype": config.wire_dtype}
        return DeltaClient(store, rate, local_steps=config.local_steps, **options)
    return GradientClient(store, rate, push_period=config.push_period, pull_period=config.pull_period, **options)


def initial_parameters(config: Config, problem: Problem) -> np.ndarray:
    """The network's start [P], from the seed alone."""
    return problem.layout.flatten(problem.network.init(np.random.default_rng(config.seed)))


def make_epsilon(config: Config, worker: int) -> schedules.Schedule:
    """One worker's exploration over global agent steps."""
    if config.exploration == "ape_x":
        return schedules.constant(worker_epsilon(0.4, worker, config.num_workers))
    return schedules.linear(
        config.epsilon_start, config.epsilon_final, begin=config.warmup_steps, steps=config.epsilon_steps
    )


def make_replay(config: Config, problem: Problem) -> replay.Replay:
    """One worker's share of replay."""
    spec = problem.spec
    return replay.Replay(
        num_envs=config.envs_per_worker,
        capacity=config.replay_capacity // config.num_workers,
        observation_shape=spec.observation_shape,
        observation_dtype=spec.observation_dtype,
        stack=spec.stack,
        n_step=config.n_step,
        discount=config.discount,
    )


def make_agent(
    config: Config,
    problem: Problem,
    client: ParameterClient,
    memory: replay.Replay,
    *,
    worker: int,
    seeds: np.random.SeedSequence,
) -> dqn.DQN:
    """One worker's agent, with its share of warm-up, on `memory` from `make_replay`."""
    spec = problem.spec
    return dqn.DQN(
        network=problem.network,
        layout=problem.layout,
        client=client,
        replay=memory,
        frame_stack=FrameStack(config.envs_per_worker, spec.stack, spec.observation_shape, spec.observation_dtype),
        epsilon=make_epsilon(config, worker),
        gradient=dqn.make_gradient(
            problem.network, problem.layout, double=config.double, max_norm=config.max_gradient_norm
        ),
        batch_size=config.batch_size,
        train_period=config.train_period,
        warmup_steps=max(1, config.warmup_steps // config.num_workers),
        clip_rewards=config.clip_rewards,
        prefetch=config.prefetch,
        rng=np.random.default_rng(seeds),
    )


def make_seeds(config: Config, worker: int, env_steps: int) -> tuple[np.random.SeedSequence, int]:
    """Seeds of one worker: its agent's, and its environments'. A resumed run does not repeat its first games."""
    sequence = np.random.SeedSequence([config.seed, worker, env_steps])
    agent, environment = sequence.spawn(2)
    return agent, int(environment.generate_state(1)[0]) % 2**30
