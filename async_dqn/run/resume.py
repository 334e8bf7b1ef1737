"""Going on from the newest checkpoint of a run directory."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from async_dqn.base.errors import UserError
from async_dqn.run import checkpoints
from async_dqn.run.directory import RunDirectory
from async_dqn.store.base import ParameterStore, counter_state, saved_counters, with_moved_slots

STORE = "store/"  # before the names of the store's arrays


def restore_run(run: RunDirectory, store: ParameterStore, say: Callable[[str], None]) -> dict[str, Any] | None:
    """Puts the newest whole checkpoint back into the store, whatever number of shards either has.

    Returns:
      The plain values that the checkpoint holds for the chief; None where there is no checkpoint yet, and the store is
      left as it is.

    Raises:
      UserError: there are checkpoints, but none that is whole, or it is one of another network or optimizer; or there
        were some, and are no longer.
    """
    checkpoint = load_newest(run.checkpoints, say)
    if checkpoint is None:
        if checkpoints.numbers(run.checkpoints):
            raise UserError(f"--resume: {run.checkpoints} holds no whole checkpoint to go on from")
        if run.has_trained():  # to start over would put an end to all that it has written
            raise UserError(
                f"--resume: {run.checkpoints} holds no checkpoint, though the run here has ended with one; bring it "
                "back, or start a new run in another folder"
            )
        say("the run has no checkpoint yet: it starts over")
        return None
    state = store_state(checkpoint)
    if "counter/env_steps" not in state:
        raise UserError(
            f"--resume: checkpoint {checkpoint.number} holds a network alone, as export --format=agent writes it: it "
            "can be evaluated, but not trained on"
        )
    try:
        fitting, moved = with_moved_slots(state, store.modules)
        store.restore(fitting | restart_counters(state))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"--resume: checkpoint {checkpoint.number} does not fit these settings: {error}") from error
    say(f"resumed at {checkpoint.number:,} agent steps")
    for module in moved:
        say(f"warning: with these settings the optimizer of {module} is held elsewhere; its averages begin anew")
    return checkpoint.values


def load_newest(directory: Path, say: Callable[[str], None]) -> checkpoints.Checkpoint | None:
    """The newest whole checkpoint; says which newer ones had to be passed over."""
    checkpoint, faults = checkpoints.load_newest(directory)
    for fault in faults:
        say(f"warning: {fault}; {'using the one before' if checkpoint else 'there is no other one'}")
    return checkpoint


def store_state(checkpoint: checkpoints.Checkpoint) -> dict[str, np.ndarray]:
    """What a checkpoint holds of the store, by the store's own names."""
    return {name.removeprefix(STORE): array for name, array in checkpoint.arrays.items() if name.startswith(STORE)}


def restart_counters(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Saved counters made ready to go on from: nothing claimed ahead, nobody stopped."""
    saved = saved_counters(state)
    return counter_state(saved._replace(claimed_steps=saved.env_steps, stopped=0))
