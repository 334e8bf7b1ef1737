"""Going on from the newest checkpoint of a run directory."""

from typing import Any, NamedTuple

import numpy as np

from async_dqn import checkpoints
from async_dqn.errors import UserError
from async_dqn.parameters import ParameterStore
from async_dqn.progress import Progress
from async_dqn.roles.chief import restart_counters
from async_dqn.run_directory import RunDirectory


class Restored(NamedTuple):
    """What a checkpoint holds beside the store's state, which is put back already."""

    agent_arrays: dict[str, np.ndarray]
    values: dict[str, Any]


def restore_run(run: RunDirectory, store: ParameterStore, progress: Progress) -> Restored:
    """Puts the newest whole checkpoint back into the store, whatever number of shards either has.

    Raises:
      UserError: there is no whole checkpoint, or it is one of another network or optimizer.
    """
    checkpoint, faults = checkpoints.load_newest(run.checkpoints)
    for fault in faults:
        progress.say(f"warning: {fault}; using the one before")
    if checkpoint is None:
        raise UserError(f"--resume: {run.checkpoints} holds no whole checkpoint to go on from")
    arrays = _under(checkpoint.arrays, "store/")
    try:
        store.restore(arrays | {"counters": restart_counters(arrays["counters"])})
    except ValueError as error:
        raise UserError(f"--resume: checkpoint {checkpoint.number} does not fit these settings: {error}") from error
    progress.say(f"resumed at {checkpoint.number:,} agent steps")
    return Restored(_under(checkpoint.arrays, "agent/"), checkpoint.values)


def _under(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
