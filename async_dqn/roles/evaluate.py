"""Plays greedy games with a trained agent, records one, and exports the network."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import tensorflow as tf

from async_dqn import checkpoints, environments
from async_dqn.checkpoints import Checkpoint, write_atomically
from async_dqn.config import Config
from async_dqn.errors import UserError
from async_dqn.frame_stack import FrameStack
from async_dqn.progress import Progress
from async_dqn.roles.assemble import Problem, make_problem
from async_dqn.run_directory import RunDirectory
from async_dqn.screen import Screen, make_screen

_MAX_ENVS = 10


def run_evaluate(config: Config, run: RunDirectory, *, games: int, seed: int, video: str | None) -> int:
    """Plays `games` greedy games of the run's newest checkpoint and says how they went. Gives the exit code."""
    progress = Progress()
    problem = make_problem(config)
    if video is not None:
        _check_writable(video)
    checkpoint = _newest(run, problem, progress)
    screen = make_screen(problem.spec, seed) if video is not None else None
    returns, pictures = _play(problem, checkpoint.arrays["store/online"], games, seed, progress, screen)
    result = {
        "env": problem.spec.id,
        "protocol": problem.spec.protocol,
        "checkpoint_env_steps": checkpoint.number,
        "games": games,
        "seed": seed,
        "epsilon": 0.0,
        "mean": float(np.mean(returns)),
        "std": float(np.std(returns)),
        "min": float(np.min(returns)),
        "max": float(np.max(returns)),
        "returns": returns,
    }
    with contextlib.suppress(OSError):  # a run directory may be read-only
        write_atomically(run.path / "evaluation.json", json.dumps(result, indent=2).encode() + b"\n")
    progress.say(
        f"{problem.spec.id} ({problem.spec.protocol}), {games} greedy games at {checkpoint.number:,} agent steps: "
        f"mean {result['mean']:.2f}, standard deviation {result['std']:.2f}, "
        f"min {result['min']:.0f}, max {result['max']:.0f}"
    )
    if screen is not None and video is not None:
        _write_video(video, pictures, screen.frames_per_second)
        progress.say(f"video of the first game ({len(pictures)} pictures): {Path(video).absolute()}")
    return 0


def run_export(config: Config, run: RunDirectory, output: str) -> int:
    """Writes a SavedModel: observations [B, S, ...] -> {"q_values": [B, A] float32}. Gives the exit code."""
    progress = Progress()
    problem = make_problem(config)
    checkpoint = _newest(run, problem, progress)
    if Path(output).exists():
        raise UserError(f"--output={output} exists already; give a new folder")
    _check_writable(output)
    observation = _stacked_spec(problem)
    module = tf.Module()
    module.parameters = tf.Variable(checkpoint.arrays["store/online"], trainable=False)

    @tf.function(autograph=False, input_signature=[observation])
    def q_values(observation: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "q_values": problem.network.apply(problem.layout.unflatten(module.parameters.read_value()), observation)
        }

    module.q_values = q_values
    tf.saved_model.save(module, output, signatures={"serving_default": q_values})
    progress.say(
        f"{output}: {observation.dtype.name} {['batch', *observation.shape[1:]]} -> q_values "
        f"['batch', {problem.spec.num_actions}], from {checkpoint.number:,} agent steps"
    )
    return 0


def _newest(run: RunDirectory, problem: Problem, progress: Progress) -> Checkpoint:
    checkpoint, faults = checkpoints.load_newest(run.checkpoints)
    for fault in faults:
        progress.say(f"warning: {fault}; using the one before")
    if checkpoint is None:
        raise UserError(f"--logdir={run.path} holds no whole checkpoint yet")
    online = checkpoint.arrays.get("store/online")
    if online is None or online.shape != (problem.layout.num_parameters,):
        raise UserError(f"--logdir={run.path}: checkpoint {checkpoint.number} is not one of this network")
    return checkpoint


def _stacked_spec(problem: Problem) -> tf.TensorSpec:
    spec = problem.spec
    return tf.TensorSpec([None, spec.stack, *spec.observation_shape], spec.observation_dtype, name="observation")


def _play(
    problem: Problem, online: np.ndarray, games: int, seed: int, progress: Progress, screen: Screen | None
) -> tuple[list[float], list[np.ndarray]]:
    """Returns of `games` games, each environment playing its share whatever their lengths; pictures of the first."""
    num_envs = min(games, _MAX_ENVS)
    shares = np.array([len(part) for part in np.array_split(np.arange(games), num_envs)])
    env = environments.make_vector_env(problem.spec, num_envs, seed)
    stack = FrameStack(num_envs, problem.spec.stack, problem.spec.observation_shape, problem.spec.observation_dtype)
    parameters = problem.layout.unflatten(tf.constant(online))

    @tf.function(autograph=False, input_signature=[_stacked_spec(problem)])
    def best_actions(observation: tf.Tensor) -> tf.Tensor:
        return tf.argmax(problem.network.apply(parameters, observation), axis=1)

    returns: list[float] = []
    played = np.zeros(num_envs, int)
    pictures = [screen.reset()] if screen else []
    with contextlib.closing(env):
        stacked = stack.reset(env.reset())
        while len(returns) < games:
            actions = best_actions(stacked).numpy()
            result = env.step(actions)
            stacked = stack.push(result.observation, result.terminated | result.truncated)
            if screen and not played[0]:
                pictures.append(screen.step(int(actions[0])))
            for episode in result.episodes:
                if played[episode.environment] < shares[episode.environment]:
                    returns.append(episode.episode_return)
                played[episode.environment] += 1
                progress.show(f"{len(returns)}/{games} games, mean return {np.mean(returns or [0]):.2f}")
    if screen:
        screen.close()
    return returns, pictures


def _check_writable(path: str) -> None:
    folder = Path(path).absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"{path}: {folder} is not a folder that can be written to")


def _write_video(path: str, pictures: list[Any], frames_per_second: int) -> None:
    if path.endswith(".gif"):
        imageio.mimwrite(path, pictures, duration=1000 / frames_per_second, loop=0)
    else:
        imageio.mimwrite(path, pictures, fps=frames_per_second, macro_block_size=2)
