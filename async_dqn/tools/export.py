"""Hands a trained network on: as a SavedModel for other programs, or as a small agent that `evaluate` plays."""

import dataclasses
import os
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from async_dqn.agents.base import Agent
from async_dqn.base.errors import UserError
from async_dqn.base.files import read_regular, write_atomically
from async_dqn.run import checkpoints
from async_dqn.run.build import make_agent
from async_dqn.run.directory import RunDirectory
from async_dqn.run.progress import Progress
from async_dqn.run.resume import STORE
from async_dqn.run.trained import Trained, load_trained
from async_dqn.settings.config import Config


def run_export(config: Config, run: RunDirectory, *, format: str, output: str, checkpoint: str | None = None) -> int:
    """Writes the network of a checkpoint to a new folder. Gives the exit code.

    Args:
      checkpoint: as in `load_trained`.
      format: saved_model, which maps observations [B, S, ...] to the outputs of the networks, [B, ...] float32 each,
        and for an agent with a recurrent state takes this as well, [B, M]; or agent, a run directory with the networks
        alone, in half precision, and what says where it comes from.

    Raises:
      UserError: the folder exists or cannot be made, or there is no checkpoint.
    """
    folder = Path(output).absolute()
    try:
        os.lstat(folder)  # finds a link that leads nowhere, too
        raise UserError(f"--output={output} exists already; give a new folder")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"--output={output}: {error.strerror}; give another folder") from error
    if not os.path.isdir(folder.parent) or not os.access(folder.parent, os.W_OK):
        raise UserError(f"--output={output}: {folder.parent} is not a folder that can be written to")
    progress = Progress()
    agent = make_agent(config)
    trained = load_trained(run, agent, progress.say, checkpoint)
    write = {"saved_model": _write_saved_model, "agent": _write_agent}[format]
    # Renamed once it is whole: what has its name is never half an export, whenever the process is killed.
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as beside:
        whole = Path(beside) / folder.name
        described = write(agent, trained, run, whole)
        whole.rename(folder)
    which = f"the {trained.name} checkpoint" if trained.name else "the checkpoint"
    progress.say(f"{output}: {described}, from {which}, at {trained.env_steps:,} agent steps")
    return 0


def _write_saved_model(agent: Agent, trained: Trained, run: RunDirectory, folder: Path) -> str:
    agent = make_agent(dataclasses.replace(agent.config, compute_dtype="float32"))  # which is fast on any machine
    spec = agent.spec
    observation = tf.TensorSpec([None, spec.stack, *spec.observation_shape], spec.observation_dtype, name="observation")
    recurrent_state = (
        [tf.TensorSpec([None, agent.recurrent_size], name="recurrent_state")] if agent.recurrent_size else []
    )
    saved = tf.Module()
    saved.parameters = {name: tf.Variable(one, trainable=False) for name, one in trained.online.items()}

    @tf.function(autograph=False, input_signature=[observation, *recurrent_state])
    def outputs(observation: tf.Tensor, *recurrent_state: tf.Tensor) -> dict[str, tf.Tensor]:
        params = {
            module.name: module.layout.unflatten(saved.parameters[module.name].read_value()) for module in agent.modules
        }
        return agent.apply(params, observation, *recurrent_state)

    saved.outputs = outputs
    tf.saved_model.save(saved, str(folder), signatures={"serving_default": outputs})
    inputs = ["batch", *observation.shape[1:]]
    found = outputs.get_concrete_function().structured_outputs
    given = ", ".join(f"{name} {['batch', *one.shape[1:]]}" for name, one in found.items())
    remembered = f" and recurrent_state float32 {['batch', agent.recurrent_size]}" if recurrent_state else ""
    return f"{observation.dtype.name} {inputs}{remembered} -> {given}"


def _write_agent(agent: Agent, trained: Trained, run: RunDirectory, folder: Path) -> str:
    with np.errstate(over="ignore"):
        online = {
            # Means and variances may be of any size, and are few.
            f"{STORE}{one.name}/online": trained.online[one.name].astype(np.float16 if one.is_trained else np.float32)
            for one in agent.modules
        }
    if not all(np.isfinite(one).all() for one in online.values()):
        raise UserError(f"--format=agent: parameters of {run.path} are too large for half precision")
    copy = RunDirectory(folder)
    checkpoints.save(copy.checkpoints, trained.env_steps, online, {}, keep=1)
    write_atomically(copy.config, read_regular(run.config))
    if run.summary.exists():
        write_atomically(copy.summary, read_regular(run.summary))
    return f"an agent of {sum(map(len, online.values())):,} parameters in half precision"
