"""Reading and writing all that the parameter servers hold, of one moment.

**Reading** puts a hold into the ledger: no further update is admitted. It waits until all that was admitted is applied
on every shard. Then it reads each shard, and ends the hold before what was read is on its way: however long that takes,
nobody waits for it. An update whose worker was lost on the way may never be applied on some shard; after a short wait
the shards are told to refuse it for good. So what is read is what the parameters are when the hold ends. Under a quorum
nothing is ever missing on a shard. The gradients of the open version are not saved there: they count as dropped.
Workers send what was held again after a few milliseconds, and end a hold that lasts too long: if its chief was lost,
nobody else would.

**Copying** holds nobody up. It reads the ledger, then each shard, and what is applied there before and after. If that
is what the ledger says, all of it is of the moment in which the ledger was read. Else there is no copy.

**Writing** gives the parameters a new generation, on every shard together with the values. What was admitted before
belongs to an older one, and is refused however late it arrives.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from async_dqn.base.errors import Outage, RunError
from async_dqn.cluster.channel import Channel
from async_dqn.cluster.ledger import Ledger, initial_rows, parse
from async_dqn.cluster.parameter_graph import ParameterGraph
from async_dqn.nn.module import Module
from async_dqn.store.base import Counters, counter_state, saved_counters

_DRAIN_DEADLINE = 2.0  # seconds that updates may be under way while all others wait
_DRAIN_PERIOD = 0.002  # seconds between two looks


def read_state(
    channel: Channel, nodes: ParameterGraph, modules: Sequence[Module], *, hold: int, deadline: float
) -> dict[str, np.ndarray]:
    """Everything to save, by name. See `ParameterStore.state`.

    Args:
      hold: a number that nobody else has used.
      deadline: seconds after which `RunError` is raised.
    """
    end = time.monotonic() + deadline
    for attempt in range(10):
        feed = {nodes.hold_id: hold + attempt}
        ledger = parse(channel.run_again(nodes.hold, feed))
        orders = [0 if nodes.catch_up else member.admitted for member in ledger.members]
        # What the record of every shard holds once all that was admitted is applied.
        target = np.array([ledger.generation, ledger.counters.target_refreshes, *orders], np.int64)
        if nodes.catch_up:
            channel.run_again(*nodes.catch_up)
        else:
            _drain(channel, nodes, target)
        shards, rows = channel.run_again([nodes.read, nodes.read_ledger], feed | {nodes.counted_up_to: target})
        before = parse(rows)
        # Whether all that was read is of one moment.
        if before.hold == hold + attempt and before.generation == ledger.generation:
            return _whole(_saved(before), shards, modules)
        if time.monotonic() > end:
            break
    raise RunError("the parameters were not saved: others went on, or restored them, at each try")


def copy_state(
    channel: Channel, nodes: ParameterGraph, modules: Sequence[Module], *, whole: bool
) -> dict[str, np.ndarray] | None:
    """As `read_state`, without targets and slots unless it is to be whole. None: others were at work meanwhile."""
    rows, shards = channel.run_again([nodes.ledger, nodes.copied[whole]])
    ledger = parse(rows)
    if ledger.generation <= 0 or not all((shard.stamps == nodes.stamp(ledger)).all() for shard in shards):
        return None
    return _whole(_saved(ledger), [shard.values for shard in shards], modules)


def _saved(ledger: Ledger) -> Counters:
    """The counters without what is in an open version, which is not saved."""
    return ledger.counters._replace(dropped=ledger.counters.dropped + ledger.gradients)


def _drain(channel: Channel, nodes: ParameterGraph, target: np.ndarray) -> None:
    """Waits until all that was admitted is applied, or is taken for lost."""
    end = time.monotonic() + _DRAIN_DEADLINE
    while time.monotonic() < end:
        records = channel.run_again(nodes.applied)
        if all((record >= target).all() for record in records):
            return
        time.sleep(_DRAIN_PERIOD)


def _whole(
    counters: Counters, shards: Sequence[Mapping[str, Mapping[str, np.ndarray]]], modules: Sequence[Module]
) -> dict[str, np.ndarray]:
    state = counter_state(counters)
    for module in modules:
        starts = module.optimizer.initial_slots(module.size)
        for name in shards[0][module.name]:
            parts = [shard[module.name][name] for shard in shards]
            slot = name.removeprefix("slot/")
            is_sharded = slot not in starts or starts[slot].shape == (module.size,)
            state[f"{module.name}/{name}"] = np.concatenate(parts) if is_sharded else parts[0]
    return state


def write_state(
    channel: Channel,
    nodes: ParameterGraph,
    state: Mapping[str, np.ndarray],
    *,
    starts: list[int],
    run_id: int,
    settings_id: int,
    last_generation: int,
) -> None:
    """Puts a saved state in, under a new generation. Raises Outage where another process does so at the same time.

    Args:
      last_generation: of which this process was a member; servers that were all started again know of none.
    """
    num_workers = nodes.rows.shape[0] - 2
    counters = saved_counters(state)

    def set_ledger(counters: Counters, generation: int) -> int:
        """Gives the generation that the ledger then has."""
        rows = initial_rows(num_workers, counters, run_id, generation, starts, settings_id)
        return int(channel.run_again(nodes.set_ledger, {nodes.rows: rows}))

    in_ledger = set_ledger(Counters(), 0)  # which sets nothing
    known = max(abs(in_ledger), last_generation, *map(int, channel.run_again(nodes.generations)))
    # The time, so that no generation comes twice, not even after all parameter servers were restarted.
    generation = max(time.time_ns(), known + 1)
    feed: dict[Any, Any] = {
        nodes.generation: generation,
        nodes.refreshes: counters.target_refreshes,
        nodes.num_updates: counters.updates,
    }
    for module, sizes in nodes.sizes.items():
        for (k, owner, name), node in nodes.values.items():
            if owner == module:
                value = state[f"{module}/{name}"]
                is_sharded = np.shape(value) == (sum(sizes),)
                feed[node] = np.split(value, np.cumsum(sizes)[:-1])[k] if is_sharded else value

    # While the generation is negative nobody's counts or updates are taken, and nobody can join. Set last: who sees it
    # sees everything.
    is_begun = set_ledger(Counters(), -generation) == -generation
    are_written = is_begun and all(int(written) == generation for written in channel.run_again(nodes.written, feed))
    if not (are_written and set_ledger(counters, generation) == generation):
        raise Outage("another process restores the parameters at the same time")
