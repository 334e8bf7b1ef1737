"""What is checked before anything starts, and without TensorFlow: the environment, the network for it, the memory."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from async_dqn.agents.table import TABLE, find
from async_dqn.base.errors import RunFailed, UserError
from async_dqn.envs import registry
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn.convolutions import MIN_SIDE
from async_dqn.settings.config import Config, ReplaySettings
from async_dqn.settings.environment import EnvironmentOptions
from async_dqn.system.memory import available_bytes


def resolve(config: Config) -> EnvironmentSpec:
    """The environment. Raises UserError where it, the protocol and the network do not fit together."""
    spec = registry.resolve(config.env, config.protocol, EnvironmentOptions.from_dict(vars(config)))
    agent = find(config.agent)
    if spec.is_continuous and not agent.continuous_actions:
        able = [name for name in TABLE if find(name).continuous_actions]
        raise UserError(
            f"--env={spec.id}: has continuous actions; --agent={config.agent} needs discrete ones; "
            f"{' and '.join(able)} can"
        )
    agent.check(config, spec)
    if isinstance(config, ReplaySettings):
        config.check_capacity(spec.stack)
    fitting = fitting_networks(spec.picture_shape)
    if config.network not in ("auto", *fitting):
        raise UserError(
            f"--network={config.network} does not fit the observations of {spec.id}; use {' or '.join(fitting)}"
        )
    if spec.is_atari and config.env_processes:
        raise UserError(f"--env_processes=True: is not for Atari games such as {spec.id}; leave it out")
    if not spec.is_atari and config.protocol != Config.protocol:
        raise UserError(f"--protocol={config.protocol}: is for Atari games, not for {spec.id}; leave it out")
    return replace(spec, max_episode_steps=config.max_episode_steps or spec.max_episode_steps)


def play_a_step(spec: EnvironmentSpec) -> None:
    """Begins a game and takes a step. Raises RunFailed where that goes wrong, or whatever the environment raises."""
    with contextlib.closing(registry.make_vector_env(spec, 1, seed=0)) as env:
        observation = env.reset()
        stepped = env.step(registry.random_actions(spec, 1, np.random.default_rng(0), observation))
        if stepped.bad_values:
            raise RunFailed(stepped.bad_values[0].described(spec.id))


def fitting_networks(picture_shape: tuple[int, ...]) -> list[str]:
    """The networks for pictures of a shape; for vectors, if there is none: ()."""
    if not picture_shape:
        return ["mlp"]
    return [name for name, side in MIN_SIDE.items() if min(picture_shape[:2]) >= side]


def experience_bytes(config: Config, spec: EnvironmentSpec, workers: Iterable[int]) -> int:
    """What the experience of these workers, by their task indices, takes once it is full."""
    num_learners = sum(not (config.separates and worker) for worker in workers)
    num_rollouts = getattr(config, "rollouts_per_batch", 1) if config.separates else 1
    return num_learners * num_rollouts * find(config.agent).experience_bytes(config, spec)


def check_memory(config: Config, spec: EnvironmentSpec, workers: Iterable[int], server_bytes: int = 0) -> str:
    """Says what experience will need on this machine. Raises UserError where the machine does not have it.

    Args:
      workers: task indices of those on this machine.
      server_bytes: what the parameter servers of this machine hold.
    """
    needed, available = experience_bytes(config, spec, workers), available_bytes()
    flag = find(config.agent).experience_flag
    if needed > available:
        value = getattr(config, flag)
        raise UserError(
            f"--{flag}={value} needs {needed / 1e9:.2f} GB of memory here, but {available / 1e9:.2f} GB is available; "
            f"about {value * max(available, 0) // needed} would fit"
        )
    if needed + server_bytes > available:
        hint = "" if config.mode == "async" else "; fewer workers, or --update_mode=async, need less"
        raise UserError(
            f"--num_workers={config.num_workers} with --update_mode={config.mode} needs {server_bytes / 1e9:.2f} GB of "
            f"memory on the parameter servers here, and {needed / 1e9:.2f} GB for experience, but "
            f"{available / 1e9:.2f} GB is available{hint}"
        )
    names = " and ".join(spec.left_out)
    left_out = f"; of observations {names} is left out: it is text, or no space of gymnasium's" if names else ""
    return f"experience: {needed / 1e9:.2f} GB when full{left_out}"
