"""Faults to inject into a `RemoteParameterStore`: steps that are lost, and steps that arrive late."""

import threading
from typing import Any

import tensorflow as tf

from async_dqn.base.errors import Outage
from async_dqn.store.base import Counters


def lose_next_step(store: Any, arrives: bool, outage: bool = False) -> None:
    """The next step is not heard of again, whether it was made on the parameter servers or not."""
    sessions = [channel.session for channel in (store._counts, store._pushes)]
    patience = sessions[0].patience
    is_armed = [True]

    def arm(steps: Any) -> None:
        connection, reopen = steps._connection, steps._open
        session = connection._session or reopen()

        class LosingSession:
            def run(self, *arguments: Any) -> Any:
                if not is_armed:
                    return session.run(*arguments)
                is_armed.clear()
                if arrives:
                    session.run(*arguments)
                if outage:
                    raise Outage("the parameter server has ended")
                threading.Event().wait()
                return None

            def close(self) -> None:
                session.close()

        def open_again() -> Any:
            steps._open = reopen
            for one in sessions:
                one.patience = patience
            return reopen()

        connection._session, steps._open = LosingSession(), open_again
        if not outage:
            steps.patience = 1.0

    for steps in sessions:
        arm(steps)


def lose_next_step_of(steps: Any, arrives: bool) -> None:
    """The next step of one session is not heard of again, whether it was made or not."""
    patience, reopen = steps.patience, steps._open
    session = steps._connection._session or reopen()
    is_armed = [True]

    class LosingSession:
        def run(self, *arguments: Any) -> Any:
            if not is_armed:
                return session.run(*arguments)
            is_armed.clear()
            if arrives:
                session.run(*arguments)
            threading.Event().wait()
            return None

        def close(self) -> None:
            session.close()

    def open_again() -> Any:
        steps._open, steps.patience = reopen, patience
        return reopen()

    steps._connection._session, steps._open, steps.patience = LosingSession(), open_again, 1.0


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
