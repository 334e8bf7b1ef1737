"""What a child measures: the cost of each part of a worker, a call at a time, and how many minibatches it can compute.

Every function takes the settings first and gives {what, with its unit: value}, as `child.Child` has it.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import psutil
import tensorflow as tf

from async_dqn.agents import dqn
from async_dqn.base.errors import RunError
from async_dqn.base.types import Transition
from async_dqn.data.replay import Replay
from async_dqn.envs import registry
from async_dqn.run import build, checkpoints
from async_dqn.settings.config import Config
from async_dqn.store.client import ParameterClient
from async_dqn.store.local import LocalParameterStore
from async_dqn.tools.bench.stopwatch import median_seconds, rate

_OVERHANG = 0.1  # seconds for which the load goes on after a common window, whatever the others' clocks say
_GAME_LENGTH = 500  # agent steps of a game in a made-up replay
_NUM_STEPS = 16  # different steps in it


def environment_step(config: Config, *, seconds: float) -> dict[str, float]:
    """One agent step of an environment, of as many as a worker has."""
    spec = registry.resolve(config.env, config.protocol)
    env = registry.make_vector_env(spec, config.envs_per_worker, config.seed, num_threads=1)
    rng = np.random.default_rng(config.seed)
    actions = rng.integers(spec.num_actions, size=(1_000, config.envs_per_worker))
    env.reset()
    several = itertools.cycle(actions)
    step = median_seconds(lambda: env.step(next(several)), seconds)
    env.close()
    return {"ms/agent step": 1e3 * step / config.envs_per_worker}


def acting(config: Config, *, seconds: float, batch_sizes: Sequence[int]) -> dict[str, float]:
    """Action values of N observations at once."""
    problem, client, batch = _make_learning(config)
    q_values = dqn.make_actor(problem.network, problem.layout, client, batch)

    def milliseconds(size: int) -> float:
        stacked = np.resize(batch.s_tm1, (size, *batch.s_tm1.shape[1:]))
        return 1e3 * median_seconds(lambda: q_values(stacked).numpy(), seconds)

    return {f"batch of {size}, ms": milliseconds(size) for size in batch_sizes}


def minibatch(config: Config, *, seconds: float) -> dict[str, float]:
    """One minibatch: its gradient, and the optimizer's step."""
    return {"ms/minibatch": 1e3 * median_seconds(_make_learn(config), seconds)}


def minibatch_rate(config: Config, *, seconds: float, wait_for_start: Callable[[], float]) -> dict[str, float]:
    """Minibatches a second when nothing else is done, in a window that begins at a common time."""
    learn = _make_learn(config)
    median_seconds(learn, 0.0)  # is compiled and warm then
    begin, times = wait_for_start(), []
    while time.monotonic() < begin + seconds + _OVERHANG:
        learn()
        times.append(time.monotonic())
    return {"minibatches/s": rate(times, begin, begin + seconds)}


def replay(config: Config, *, seconds: float) -> dict[str, float]:
    """Adding a step, sampling a minibatch, and the memory of a replay that is really full.

    It is all one worker's, filled with frames in place.
    """
    problem = build.make_problem(config)
    resident = psutil.Process().memory_info().rss
    memory = build.make_replay(config, problem)
    rng = np.random.default_rng(config.seed)
    add = _make_add(memory, problem, rng)
    while (memory.added < memory.slots_per_env).any():
        add()
    resident = psutil.Process().memory_info().rss - resident
    batch = memory.make_batch(config.batch_size)
    added = 1e6 * median_seconds(add, seconds) / memory.num_envs
    sampled = 1e6 * median_seconds(lambda: memory.sample(config.batch_size, rng, batch), seconds)
    return {
        "add, µs/agent step": added,
        "sample, µs/minibatch": sampled,
        "both, µs/agent step": added + sampled / config.train_period,
        "memory, GB": resident / 1e9,
    }


def checkpoint(config: Config, *, seconds: float, folder: str) -> dict[str, float]:
    """Writing a checkpoint of network and optimizer to `folder`, as safely as a run does, and restoring it."""
    problem = build.make_problem(config)
    store = _make_store(config, problem)
    state = store.state()
    numbers = itertools.count()

    def write() -> None:
        checkpoints.save(Path(folder), next(numbers), state, {}, keep=config.keep_checkpoints)

    def restore() -> None:
        newest, faults = checkpoints.load_newest(Path(folder))
        if newest is None:
            raise RunError(f"no checkpoint can be read: {'; '.join(faults)}")
        store.restore(newest.arrays)

    return {
        "write, ms": 1e3 * median_seconds(write, seconds),
        "restore, ms": 1e3 * median_seconds(restore, seconds),
    }


def _make_store(config: Config, problem: build.Problem) -> LocalParameterStore:
    store = LocalParameterStore(problem.layout.num_parameters, build.make_optimizer(config), config.total_steps)
    store.initialize(build.initial_parameters(config, problem))
    return store


def _make_learning(config: Config) -> tuple[build.Problem, ParameterClient, Transition]:
    """What a minibatch is computed with, and one of random observations."""
    problem = build.make_problem(config)
    client = build.make_local_client(config, _make_store(config, problem))
    return problem, client, _random_batch(config, problem, np.random.default_rng(config.seed))


def _make_learn(config: Config) -> Callable[[], None]:
    """A function that computes the same minibatch again, and steps."""
    problem, client, batch = _make_learning(config)
    tensors = Transition(*map(tf.constant, batch))
    gradient = dqn.make_gradient(
        problem.network, problem.layout, double=config.double, max_norm=config.max_gradient_norm
    )
    learn_from = dqn.make_learner(gradient, client, batch)
    learning_rate = tf.constant(config.learning_rate, tf.float32)

    def learn() -> None:
        loss, is_finite = learn_from(tensors, learning_rate)
        if not is_finite:
            raise RunError(f"the loss of a minibatch is {float(loss)}, or its gradient is not finite")

    return learn


def _random_batch(config: Config, problem: build.Problem, rng: np.random.Generator) -> Transition:
    spec, size = problem.spec, config.batch_size
    shape = (size, spec.stack, *spec.observation_shape)
    return Transition(
        s_tm1=_random_observations(shape, spec.observation_dtype, rng),
        a_tm1=rng.integers(spec.num_actions, size=size, dtype=np.int32),
        r_t=rng.integers(-1, 2, size).astype(np.float32),
        discount_t=np.full(size, config.discount**config.n_step, np.float32),
        s_t=_random_observations(shape, spec.observation_dtype, rng),
    )


def _random_observations(shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    if np.issubdtype(dtype, np.integer):
        return rng.integers(np.iinfo(dtype).max + 1, size=shape, dtype=dtype)
    return rng.standard_normal(shape).astype(dtype)


def _make_add(memory: Replay, problem: build.Problem, rng: np.random.Generator) -> Callable[[], None]:
    """A function that adds a step of every environment, each at another moment of its game."""
    num_envs = memory.num_envs
    shape = (_NUM_STEPS, num_envs, *memory.observation_shape)
    observations = _random_observations(shape, memory.observation_dtype, rng)
    actions = rng.integers(problem.spec.num_actions, size=(_NUM_STEPS, num_envs))
    rewards = rng.standard_normal((_NUM_STEPS, num_envs)).astype(np.float32)
    never = np.zeros(num_envs, bool)
    offsets = np.arange(num_envs) * (_GAME_LENGTH // num_envs)
    steps = itertools.count()

    def add() -> None:
        step = next(steps)
        now, then = step % _NUM_STEPS, (step + 1) % _NUM_STEPS
        terminated = (step + offsets) % _GAME_LENGTH == _GAME_LENGTH - 1
        memory.add(observations[now], actions[now], rewards[now], terminated, never, observations[then])

    return add
