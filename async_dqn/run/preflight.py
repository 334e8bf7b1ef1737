"""What is checked before anything starts, and without TensorFlow: the environment, the network for it, the memory."""

from async_dqn.base.errors import UserError
from async_dqn.data import replay
from async_dqn.envs import registry
from async_dqn.envs.vector_env import EnvironmentSpec
from async_dqn.settings.config import Config, ReplaySettings
from async_dqn.system.memory import available_bytes


def resolve(config: Config) -> EnvironmentSpec:
    """The environment. Raises UserError where it, the protocol and the network do not fit together."""
    spec = registry.resolve(config.env, config.protocol)
    has_frames = len(spec.observation_shape) == 2
    if config.network != "auto" and (config.network == "mlp") == has_frames:
        fitting = "nips or nature" if has_frames else "mlp"
        raise UserError(f"--network={config.network} does not fit the observations of {spec.id}; use {fitting}")
    return spec


def check_replay_memory(config: Config, spec: EnvironmentSpec, num_workers_here: int) -> str:
    """Says what replay will need on this machine; nothing of an agent that has none.

    Raises UserError where the machine does not have it.
    """
    if not isinstance(config, ReplaySettings):
        return ""
    share = config.replay_capacity // config.num_workers
    required = num_workers_here * replay.required_bytes(
        config.envs_per_worker, share, spec.observation_shape, spec.observation_dtype
    )
    replay.check_fits(required, available_bytes(), share * num_workers_here)
    return f"replay: {share * num_workers_here:,} transitions, {required / 1e9:.2f} GB when full"
