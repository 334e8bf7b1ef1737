"""The store on parameter servers that take the mean of several gradients before each step of the optimizer."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.cluster.channel import Answer, Step
from async_dqn.cluster.ledger import Ledger
from async_dqn.cluster.quorum import Quorum
from async_dqn.cluster.remote_store import RemoteParameterStore
from async_dqn.cluster.segments import Segments
from async_dqn.cluster.version_graph import VersionGraph
from async_dqn.store.base import Counters, Pulled, Stop, Update

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.02  # seconds between two looks whether a version is complete
_PART = 0.125  # in between, a pause is this part of the time waited so far


class VersionedStore(RemoteParameterStore):
    """As `RemoteParameterStore`; an update is the mean of the gradients of one version.

    In a synchronous run, who has pulled or pushed waits until the version that its gradient is in is complete. It goes
    on without, with what parameters there are, where it is to end or the run is interrupted or has failed.

    Args:
      quorum: what a version is made of.
      options: as for `RemoteParameterStore`.
    """

    _nodes: VersionGraph

    def __init__(self, *, quorum: Quorum, **options: Any):
        self._quorum = quorum
        self._is_waiting = False  # for the version that its last gradient is in
        super().__init__(**options)

    def _make_graph(self, *arguments: Any, **options: Any) -> VersionGraph:
        return VersionGraph(self._quorum, *arguments, **options)

    def join(self, *, is_start: bool = True) -> Ledger:
        ledger = super().join(is_start=is_start)
        self._catch_up()  # with the last gradient of the process before, whose row is this one's now
        return ledger

    def pull(self) -> Pulled:
        return self._wait(self._nodes.names, self._by_sockets({}, 0), {}, [])

    def pull_target(self) -> dict[str, np.ndarray]:
        self._catch_up()
        return super().pull_target()

    def push(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> Counters:
        """As that of any store; it does not wait."""
        answer, _ = self._pushes.send(counts, (self._nodes.pushed, self._by_sockets(self._sent(updates), computed_on)))
        self._is_waiting = self._waits(answer)
        return answer.before

    def _push_pull(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> tuple[Counters, Pulled]:
        segments, near = self._shared()
        sent = self._by_sockets(self._sent(updates), computed_on)
        by_memory, pulled_to = self._by_memory(segments, near, sent)

        def fetch() -> Any:
            return self._nodes.pushed, self._pulls(updates, near)

        def again() -> Step:
            self._drop(near)
            return fetch(), sent

        answer, found = self._pushes.send(counts, (fetch(), by_memory | pulled_to), again)
        if not self._is_there(answer, found):
            return answer.before, self._wait(updates, self._by_sockets({}, 0) | pulled_to, segments, near)
        return answer.before, Pulled(self._found(found[1], segments, near), answer.after)

    def _wait(self, names: Iterable[str], feed: dict[tf.Tensor, Any], segments: Segments, near: list[int]) -> Pulled:
        """Looks until these modules can be pulled.

        Args:
          feed: of one look.
          near: the ps that the segments are shared with.
        """

        def step() -> Step:
            return (self._nodes.pushed, self._pulls(names, near)), feed

        def again() -> Step:
            self._drop(near)
            return step()

        begin = time.monotonic()
        while True:
            answer, found = self._pushes.look(step(), again)
            if self._is_there(answer, found):
                return Pulled(self._found(found[1], segments, near), answer.after)
            if self._should_stop() or answer.after.stopped >= Stop.INTERRUPTED:
                pulled = super().pull()
                return pulled._replace(online={name: pulled.online[name] for name in names})
            waited = time.monotonic() - begin
            time.sleep(min(max(_SHORTEST_PAUSE, waited * _PART), _LONGEST_PAUSE))

    def _is_there(self, answer: Answer, found: Any) -> bool:
        """Whether the version that this worker waits for is complete, and what was pulled is all of the newest one."""
        self._is_waiting = self._waits(answer)
        versions = set(map(int, found[0]))
        return not self._is_waiting and (not self._quorum.is_synchronous or versions == {answer.after.updates})

    def _waits(self, answer: Answer) -> bool:
        updates, version = map(int, answer.mark[2:4])
        return self._quorum.is_synchronous and version > updates

    def _sent(self, updates: Mapping[str, Update]) -> Mapping[str, Update]:
        """What is sent of them: nothing while the row is in use. Such an update is dropped, and counted as such."""
        return {} if self._is_waiting else updates

    def _catch_up(self) -> None:
        """Every shard applies what is complete."""
        answer, _ = self._pushes.look((self._nodes.pushed, self._by_sockets({}, 0)))
        self._is_waiting = self._waits(answer)

    def _by_sockets(self, updates: Mapping[str, Update], computed_on: int) -> dict[tf.Tensor, Any]:
        sender = {self._nodes.generation: self.membership.generation, self._nodes.joins: self.membership.joins}
        return super()._by_sockets(updates, computed_on) | sender

    def _by_memory(self, segments: Segments, near: list[int], feed: dict[tf.Tensor, Any]) -> Any:
        """The same with the updates for some shards in segments; and what is fed to pull these into segments."""
        nodes, sent = self._nodes, dict(feed)
        pulled_to: dict[tf.Tensor, Any] = {}
        for k in near:
            for name in nodes.names:
                segment = segments[name][k]
                assert segment is not None
                update = sent[nodes.updates[name][k]]
                pulled_to[nodes.segments[name][k]] = segment.address
                pulled_to[nodes.buffers[name][k]] = segment.put(update) if len(update) else segment.turn()
                if len(update):
                    sent |= {nodes.updates[name][k]: [], nodes.sources[name][k]: segment.address}
        return sent, pulled_to
