"""Faults to inject into a `RemoteParameterStore`: steps that are lost, and steps that arrive late."""

import concurrent.futures
import threading
from typing import Any

import tensorflow as tf

from async_dqn.base.errors import Outage
from async_dqn.store.base import Counters


class _Losing:
    """A session whose next step is not heard of again; `armed` is empty once one of those that share it was lost."""

    def __init__(self, session: Any, armed: list[bool], arrives: bool, outage: bool):
        self._session, self._armed, self._arrives, self._outage = session, armed, arrives, outage

    def run(self, *arguments: Any) -> Any:
        if not self._armed:
            return self._session.run(*arguments)
        self._armed.clear()
        if self._arrives:
            self._session.run(*arguments)
        if self._outage:
            raise Outage("the parameter server has ended")
        raise concurrent.futures.TimeoutError  # as where patience has run out, without the wait

    def close(self) -> None:
        self._session.close()


def _lose_next(sessions: list[Any], arrives: bool, outage: bool = False) -> None:
    armed = [True]
    for steps in sessions:
        connection = steps._connection
        connection._session = _Losing(connection._session or steps._open(), armed, arrives, outage)


def lose_next_step(store: Any, arrives: bool, outage: bool = False) -> None:
    """The next step is not heard of again, whether it was made on the parameter servers or not."""
    _lose_next([channel.session for channel in (store._counts, store._pushes)], arrives, outage)


def lose_next_step_of(steps: Any, arrives: bool) -> None:
    """The next step of one session is not heard of again, whether it was made or not."""
    _lose_next([steps], arrives)


def push_to_some(store: Any, updates: Any, counts: Any, shards: list[int]) -> dict[str, Any]:
    """Admits a push, and has it applied on some shards only. Gives what `arrive_late` needs for the others."""
    channel, nodes = store._pushes, store._nodes
    channel._last += 1
    request = {"counts": list(counts), "request": channel._last}
    feed = store._by_sockets(updates, 0) | {getattr(nodes, name): value for name, value in request.items()}
    counted, _ = channel.run([nodes.count_push, [nodes.pushed[k] for k in shards]], feed)
    return {"counted": tuple(counted), "updates": updates, "request": request}


def arrive_late(store: Any, push: dict[str, Any], shards: list[int]) -> None:
    """The part of a push for some shards comes after all, with what the ledger said then."""
    nodes = store._nodes
    feed: dict[tf.Tensor, Any] = store._by_sockets(push["updates"], 0)
    feed |= {getattr(nodes, name): value for name, value in push["request"].items()}
    feed |= dict(zip(nodes.count_push, push["counted"], strict=True))
    store._pushes.run([nodes.pushed[k] for k in shards], feed)


def claim_beside_a_push(store: Any, updates: Any, counts: Any) -> tuple[int, bool]:
    """Claims 5 steps while another thread pushes and is held. Gives those granted, and whether the push waited."""
    pushing = threading.Thread(target=store.push, args=(updates, counts, 0))
    pushing.start()
    while not store._pushes._unsettled:
        threading.Event().wait(0.001)
    granted, _ = store.claim_steps(5, type(counts)())
    is_waiting = pushing.is_alive()
    store._counts.run(store._nodes.hold, {store._nodes.hold_id: 0})
    pushing.join(20)
    assert not pushing.is_alive()
    return granted, is_waiting


def hold(store: Any, number: int) -> None:
    """A hold is on, whose chief does nothing more."""
    store._counts.run(store._nodes.hold, {store._nodes.hold_id: number})


def hold_after_reading(store: Any) -> tuple[dict[str, Any], list[int]]:
    """A saved state, and the hold that is on whenever what was read has just come in."""
    counts, run_again, found = store._counts, store._counts.run_again, []

    def looking(fetches: Any, feed: Any = None) -> Any:
        answer = run_again(fetches, feed)
        if isinstance(fetches, list) and fetches[0] is store._nodes.read:
            found.append(store.read_ledger().hold)
        return answer

    counts.run_again = looking
    try:
        return store.state(), found
    finally:
        counts.run_again = run_again


def restore_beside_another(store: Any, state: Any, generation: int) -> None:
    """A restore, in whose middle another chief begins one with a higher generation and gets no further."""
    counts, run_again = store._counts, store._counts.run_again

    def beside(fetches: Any, feed: Any = None) -> Any:
        found = run_again(fetches, feed)
        if fetches is store._nodes.generations:
            begin_a_restore(store, generation)
        return found

    counts.run_again = beside
    try:
        store.restore(state)
    finally:
        counts.run_again = run_again


def write_again(store: Any, state: Any, generation: int) -> list[int]:
    """A restore's request arrives late. Gives the generation of each shard after it."""
    import numpy as np

    nodes = store._nodes
    feed: dict[tf.Tensor, Any] = {nodes.generation: generation, nodes.refreshes: 0, nodes.num_updates: 0}
    for (k, module, name), node in nodes.values.items():
        value, sizes = state[f"{module}/{name}"], nodes.sizes[module]
        feed[node] = np.split(value, np.cumsum(sizes)[:-1])[k] if value.shape == (sum(sizes),) else value
    return [int(one) for one in store._counts.run(nodes.written, feed)]


def begin_a_restore(store: Any, generation: int) -> None:
    """Another chief begins a restore, and gets no further."""
    from async_dqn.cluster.ledger import initial_rows

    nodes = store._nodes
    rows = initial_rows(nodes.rows.shape[0] - 2, Counters(), 1, -generation, [])
    assert store._counts.run(nodes.set_ledger, {nodes.rows: rows}) == -generation
