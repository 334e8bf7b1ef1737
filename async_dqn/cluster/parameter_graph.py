"""The graph of the shared networks: their variables on the parameter servers, and the steps that a worker runs on them.

Each module's flat vector is cut into K nearly equal shards, one per ps, the optimizer's slots beside each. Every worker
builds the same graph, so that variables are shared by name and workers need not know each other.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.cluster import shared_memory
from async_dqn.cluster.ledger import Counted, LedgerOperations, SeatState, initial_rows
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.nn.module import Module
from async_dqn.store.base import Counters, EpisodeReport

_MAX_QUEUED_EPISODES = 1_000_000


def shard_sizes(num_parameters: int, num_shards: int) -> list[int]:
    """Sizes of K consecutive shards that differ by one at most."""
    small, larger = divmod(num_parameters, num_shards)
    return [small + 1] * larger + [small] * (num_shards - larger)


class ModuleNodes:
    """Placeholders to feed and nodes to fetch for one module; lists have one entry for each ps.

    Attributes:
      sizes: of the shards.
      rate, updates: what a push needs.
      segments, turns: what it needs for a shard that goes through shared memory.
      pushed, pull_pushed: applies the update; what `pull` gives after it.
      exchanged, exchange: the same by way of a segment; each `exchange` gives its turn.
      refreshed: refreshes the target if that is due by the counts that come along; so do `pushed` and `exchanged`.
      reaches: whether the ps finds the segment.
      pull, read_online, read_target, read_slots: parameters as they are.
    """

    def __init__(self, module: Module, num_ps: int):
        self.sizes = shard_sizes(module.size, num_ps)
        self._optimizer = module.optimizer
        shards = [np.zeros(size, np.float32) for size in self.sizes]
        initial_slots = [module.optimizer.initial_slots(size) for size in self.sizes]
        self.online = variables(f"{module.name}/online", shards)
        self.target = variables(f"{module.name}/target", shards) if module.has_target else []
        slots = {
            name: variables(f"{module.name}/slot/{name}", [shard[name] for shard in initial_slots])
            for name in initial_slots[0]
        }
        self.slots = [{name: one_per_ps[k] for name, one_per_ps in slots.items()} for k in range(num_ps)]

    @property
    def variables(self) -> dict[str, list[tf.Variable]]:
        """All of them, by their names in a saved state less the module's: one for each ps."""
        named = {"online": self.online} | ({"target": self.target} if self.target else {})
        return named | {f"slot/{name}": [shard[name] for shard in self.slots] for name in self.slots[0]}

    def build_steps(self, counted: Counted, gate: tf.Operation, wire_dtype: str) -> None:
        """Makes all nodes, in the current graph.

        Args:
          gate: counters are read before it, parameters after.
        """
        self.rate = tf.compat.v1.placeholder(tf.float32, [])
        self.updates = [tf.compat.v1.placeholder(wire_dtype, [size]) for size in self.sizes]
        self.segments = [tf.compat.v1.placeholder(tf.string, []) for _ in self.sizes]
        self.turns = [tf.compat.v1.placeholder(tf.int64, []) for _ in self.sizes]
        self.pushed: list[tf.Operation] = []
        self.pull_pushed: list[tf.Tensor] = []
        self.exchanged: list[tf.Operation] = []
        self.exchange: list[tf.Tensor] = []
        self.refreshed: list[tf.Operation] = []
        self.reaches: list[tf.Tensor] = []
        self.pull: list[tf.Tensor] = []
        for k, online in enumerate(self.online):
            with tf.device(online.device):
                applied = self._apply_if(counted.may_apply, k, self.updates[k])
                self.pushed.append(self._refresh_if(counted.refreshes, k, applied))
                with tf.control_dependencies([applied]):  # and so of counters older than the parameters
                    self.pull_pushed.append(tf.cast(online.read_value(), wire_dtype))
                self.reaches.append(shared_memory.reaches(self.segments[k]))
                taken = shared_memory.take(self.segments[k], self.sizes[k])
                applied = self._apply_if(counted.may_apply, k, taken)
                self.exchanged.append(self._refresh_if(counted.refreshes, k, applied))
                with tf.control_dependencies([applied]):
                    self.exchange.append(shared_memory.give(self.segments[k], self.turns[k], online.read_value()))
                self.refreshed.append(self._refresh_if(counted.refreshes, k, tf.no_op()))
                with tf.control_dependencies([gate]):
                    self.pull.append(tf.cast(online.read_value(), wire_dtype))
        self.read_online = [shard.read_value() for shard in self.online]
        self.read_target = [shard.read_value() for shard in self.target]
        self.read_slots = [{name: slot.read_value() for name, slot in shard.items()} for shard in self.slots]

    def _apply_if(self, may_apply: tf.Tensor, k: int, update: tf.Tensor) -> tf.Operation:
        def apply() -> tf.Tensor:
            applied = self._optimizer.apply(self.online[k], self.slots[k], tf.cast(update, tf.float32), self.rate)
            with tf.control_dependencies([applied]):
                return tf.constant(True)

        return tf.cond(may_apply, apply, lambda: tf.constant(False)).op

    def _refresh_if(self, refreshes: tf.Tensor, k: int, after: tf.Operation) -> tf.Operation:
        if not self.target:
            return after

        def refresh() -> tf.Tensor:
            with tf.control_dependencies([self.target[k].assign(self.online[k].read_value(), read_value=False)]):
                return tf.constant(True)

        with tf.control_dependencies([after]):
            return tf.cond(tf.identity(refreshes), refresh, lambda: tf.constant(False)).op


class ParameterGraph:
    """Placeholders to feed and nodes to fetch, each named for what it holds or does.

    Args:
      strategy: this worker's `ParameterServerStrategy`; it places the variables on the parameter servers.
      worker, token: whose counts these are, for the ledger.
      budget: agent steps of all workers.
      target_period: minibatches between two refreshes of the targets; 0: there are none.
      max_staleness: updates that are older are dropped; 0: none.
      wire_dtype: what updates and pulled parameters are sent in.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        strategy: Any,
        *,
        worker: int,
        token: int,
        modules: Sequence[Module],
        budget: int,
        target_period: int,
        max_staleness: int,
        wire_dtype: str,
    ):
        self.graph = tf.Graph()
        with self.graph.as_default(), strategy.scope():
            self.modules = {module.name: ModuleNodes(module, spec.num_ps) for module in modules}
            counted = self._build_ledger(spec, worker, token, budget, target_period, max_staleness)
            self._build_queue()
            # Counters before parameters, so that a staleness is understated by updates under way at most.
            with tf.control_dependencies([self.counters]):
                gate = tf.no_op()
            for module in self.modules.values():
                module.build_steps(counted, gate, wire_dtype)
            self._build_initialization()
        self.graph.finalize()

    def _build_ledger(
        self, spec: ClusterSpec, worker: int, token: int, budget: int, target_period: int, max_staleness: int
    ) -> Counted:
        num_rows = initial_rows(spec.num_workers, Counters(), 0, 0, []).shape
        (self._ledger_variable,) = variables("ledger", [np.zeros(num_rows, np.int64)])
        self.counts = tf.compat.v1.placeholder(tf.int64, [len(Counters._fields)])
        self.ticket, self.computed_on, self.is_start = (tf.compat.v1.placeholder(tf.int64, []) for _ in range(3))
        operations = LedgerOperations(self._ledger_variable)
        counted = operations.count(
            worker,
            token,
            ticket=self.ticket,
            counts=self.counts,
            computed_on=self.computed_on,
            budget=budget,
            target_period=target_period,
            max_staleness=max_staleness,
        )
        self.counted = [
            counted.before,
            counted.after,
            counted.granted,
            counted.updates_before,
            counted.is_seated,
        ]
        self.join = operations.join(worker, token, self.is_start)
        self.leave = operations.leave(worker, token, SeatState.DONE)
        self.rows = tf.compat.v1.placeholder(tf.int64, num_rows)
        self.set_ledger = operations.set(self.rows)
        with tf.device(self._ledger_variable.device):
            self.ledger = self._ledger_variable.read_value()
            self.counters = self.ledger[0, : len(Counters._fields)]
        return counted

    def _build_queue(self) -> None:
        with tf.device(self._ledger_variable.device):
            episodes = tf.queue.FIFOQueue(
                _MAX_QUEUED_EPISODES, [tf.float64], [[len(EpisodeReport._fields)]], shared_name="episodes"
            )
            self.episodes = tf.compat.v1.placeholder(tf.float64, [None, len(EpisodeReport._fields)])
            self.report = episodes.enqueue_many(self.episodes)
            self.take = episodes.dequeue_many(episodes.size())  # nobody but the chief takes any

    def _build_initialization(self) -> None:
        """Whether each variable is set, the ledger last; and {name in a saved state: [placeholder and assignment]}."""
        self.assign: dict[str, list[tuple[tf.Tensor, Any]]] = {}
        self.initialized: list[tf.Tensor] = []
        for module, nodes in self.modules.items():
            for name, shards in nodes.variables.items():
                self.assign[f"{module}/{name}"] = [self._assignment(shard) for shard in shards]
        with tf.device(self._ledger_variable.device):
            self.initialized.append(tf.raw_ops.VarIsInitializedOp(resource=self._ledger_variable.handle))

    def _assignment(self, variable: tf.Variable) -> tuple[tf.Tensor, Any]:
        with tf.device(variable.device):
            self.initialized.append(tf.raw_ops.VarIsInitializedOp(resource=variable.handle))
            value = tf.compat.v1.placeholder(variable.dtype, variable.shape)
            return value, variable.assign(value, read_value=False)


def variables(name: str, values: list[np.ndarray]) -> list[tf.Variable]:
    """One variable for each value, on a parameter server each, in turn."""
    # The strategy deals variables out to the parameter servers in turn: K at a time, one lands on each.
    return [
        tf.compat.v1.get_variable(
            f"{name}_{k}",
            value.shape,
            value.dtype,
            tf.zeros_initializer,
            trainable=False,
            use_resource=True,
        )
        for k, value in enumerate(values)
    ]
