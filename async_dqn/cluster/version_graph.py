"""The graph of the shared networks where parameter servers take the mean of several gradients before each step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.cluster import shared_memory
from async_dqn.cluster.ledger import Ledger, LedgerOperations, order_of
from async_dqn.cluster.parameter_graph import ParameterGraph
from async_dqn.cluster.quorum import Quorum
from async_dqn.cluster.shards import Push
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.cluster.versions import VersionedShard, make_versioned_shards
from async_dqn.nn.module import Module
from async_dqn.store.base import Counters


class VersionGraph(ParameterGraph):
    """A push in three parts: the gradient goes to every shard, ps 0 admits it, all shards follow the ledger.

    Where the norm of the mean is limited, all shards measure their parts before any of them applies its own.

    The same nodes with request 0 and no gradient bring the shards up to date and pull.

    Attributes:
      sources: {module: [address of the segment that the gradient is in, one for each ps]}; empty: it is in `updates`.
      pushed: [K], the version of each shard. What is pulled is [0] where it is not there yet.
    """

    shards: Sequence[VersionedShard]

    def __init__(self, quorum: Quorum, *arguments: Any, **options: Any):
        self._quorum = quorum
        super().__init__(*arguments, **options)

    def _make_shards(self, spec: ClusterSpec, modules: Sequence[Module]) -> Sequence[VersionedShard]:
        return make_versioned_shards(modules, spec.num_ps, spec.num_workers, self._quorum)

    def _build_requests(self, operations: LedgerOperations, token: int, options: dict[str, Any]) -> None:
        none = tf.constant("")
        self.sources = {
            name: [tf.compat.v1.placeholder_with_default(none, []) for _ in self.shards] for name in self.names
        }
        self.count = operations.count(self._worker, token, computed_on=None, **(options | {"target_period": 0}))
        self.refreshed = []  # that comes with versions
        order = order_of(self.joins, self.request)
        left = [
            shard.leave(self._worker, self.generation, order, Push(self._gradients(k), self.rates))
            for k, shard in enumerate(self.shards)
        ]
        with tf.device(self._ledger.device):
            deposits = tf.stack(left)
        self.count_push = operations.count(
            self._worker, token, computed_on=self.computed_on, quorum=self._quorum, deposits=deposits, **options
        )
        self.pushed: list[Any] = []
        self.pulled: dict[str, list[tf.Tensor]] = {name: [] for name in self.names}
        self.given: dict[str, list[tf.Tensor]] = {name: [] for name in self.names}
        is_limited = self._quorum.max_norm > 0
        squared_norms = [shard.measure(self.count_push) for shard in self.shards] if is_limited else []
        for k, shard in enumerate(self.shards):
            version, online = shard.follow(self.count_push, squared_norms)
            self.pushed.append(version)
            with tf.device(shard.device):
                for name, value in online.items():
                    address, buffer = self.segments[name][k], self.buffers[name][k]
                    self.pulled[name].append(self._to_wire(name, value))
                    self.given[name].append(shared_memory.give(address, buffer, value))
        self.exchanged = self.pushed
        nothing: dict[tf.Tensor, Any] = {
            self.updates[name][k]: [] for name in self.names for k in range(len(self.shards))
        }
        zeros = dict.fromkeys((self.request, self.computed_on, self.generation, self.joins), 0)
        self.catch_up = (
            self.pushed,
            {**nothing, **zeros, self.counts: Counters(), self.rates: [0.0] * len(self.names)},
        )

    def stamp(self, ledger: Ledger) -> np.ndarray:
        counters = ledger.counters
        return np.array([ledger.generation, counters.target_refreshes, counters.updates], np.int64)

    def _gradients(self, k: int) -> dict[str, tf.Tensor]:
        """{module: gradient of one shard}, from a segment or sent."""
        with tf.device(self.shards[k].device):
            return {name: self._gradient(self.sources[name][k], self.updates[name][k]) for name in self.names}

    def _gradient(self, source: tf.Tensor, sent: tf.Tensor) -> tf.Tensor:
        source = tf.identity(source)

        def received() -> tf.Tensor:
            return tf.cast(sent, tf.float32)

        return tf.cond(tf.equal(source, ""), received, lambda: shared_memory.take(source))
