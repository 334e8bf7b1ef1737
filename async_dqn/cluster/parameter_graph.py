"""The graph of the shared network: its variables on the parameter servers, and the steps that a worker runs on them.

The flat vector is cut into K nearly equal shards, one per ps, the optimizer's slots beside each. Every worker builds
the same graph, so that variables are shared by name and workers need not know each other.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.cluster import shared_memory
from async_dqn.cluster.ledger import LedgerOperations, SeatState, initial_rows
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.nn.optimizers import Optimizer
from async_dqn.store.base import Counters, EpisodeReport

_MAX_QUEUED_EPISODES = 1_000_000


def shard_sizes(num_parameters: int, num_shards: int) -> list[int]:
    """Sizes of K consecutive shards that differ by one at most."""
    small, larger = divmod(num_parameters, num_shards)
    return [small + 1] * larger + [small] * (num_shards - larger)


class ParameterGraph:
    """Placeholders to feed and nodes to fetch, each named for what it holds or does.

    Args:
      strategy: this worker's `ParameterServerStrategy`; it places the variables on the parameter servers.
      worker, token: whose counts these are, for the ledger.
      budget: agent steps of all workers.
      max_staleness: updates that are older are dropped; 0: none.
      wire_dtype: what updates and pulled parameters travel in.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        strategy: Any,
        *,
        worker: int,
        token: int,
        num_parameters: int,
        optimizer: Optimizer,
        budget: int,
        max_staleness: int,
        wire_dtype: str,
    ):
        self.graph = tf.Graph()
        self.sizes = shard_sizes(num_parameters, spec.num_ps)
        with self.graph.as_default(), strategy.scope():
            self._build_parameters(spec, optimizer)
            may_apply = self._build_ledger(spec, worker, token, budget, max_staleness)
            self._build_steps(optimizer, may_apply, wire_dtype)
        self.graph.finalize()

    def _build_parameters(self, spec: ClusterSpec, optimizer: Optimizer) -> None:
        shards = [np.zeros(size, np.float32) for size in self.sizes]
        initial_slots = [optimizer.initial_slots(size) for size in self.sizes]
        self.online, self.target = _variables("online", shards), _variables("target", shards)
        slots = {name: _variables(name, [shard[name] for shard in initial_slots]) for name in initial_slots[0]}
        self.slots = [{name: one_per_ps[k] for name, one_per_ps in slots.items()} for k in range(spec.num_ps)]

    def _build_ledger(self, spec: ClusterSpec, worker: int, token: int, budget: int, max_staleness: int) -> tf.Tensor:
        """Gives whether an update sent along with counts may be applied, a scalar bool."""
        num_rows = initial_rows(spec.num_workers, Counters(), 0, 0, []).shape
        (self._ledger_variable,) = _variables("ledger", [np.zeros(num_rows, np.int64)])
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
        return counted.may_apply

    def _build_steps(self, optimizer: Optimizer, may_apply: tf.Tensor, wire_dtype: str) -> None:
        ledger = self._ledger_variable
        self.learning_rate = tf.compat.v1.placeholder(tf.float32, [])
        self.updates = [tf.compat.v1.placeholder(wire_dtype, [size]) for size in self.sizes]
        self.segments = [tf.compat.v1.placeholder(tf.string, []) for _ in self.sizes]
        self.turns = [tf.compat.v1.placeholder(tf.int64, []) for _ in self.sizes]
        applied, refreshed = [], []
        self.pull_applied: list[tf.Tensor] = []  # what `pull` gives, in the step of a push and after it
        self.exchange: list[tf.Tensor] = []  # the same by way of a segment: each gives its turn
        self.reaches: list[tf.Tensor] = []
        for k, (online, target) in enumerate(zip(self.online, self.target, strict=True)):
            with tf.device(online.device):
                applied.append(self._apply_if(may_apply, optimizer, k, self.updates[k]))
                with tf.control_dependencies([applied[k]]):  # and so of counters older than the parameters
                    self.pull_applied.append(tf.cast(online.read_value(), wire_dtype))
                self.reaches.append(shared_memory.reaches(self.segments[k]))
                taken = shared_memory.take(self.segments[k], self.sizes[k])
                with tf.control_dependencies([self._apply_if(may_apply, optimizer, k, taken)]):
                    self.exchange.append(shared_memory.give(self.segments[k], self.turns[k], online.read_value()))
                refreshed.append(target.assign(online.read_value(), read_value=False))
        with tf.device(ledger.device):
            self.ledger = ledger.read_value()
            self.counters = self.ledger[0, : len(Counters._fields)]
            # Counters before parameters, so that a staleness is understated by updates under way at most.
            with tf.control_dependencies([self.counters]):
                gate = tf.no_op()
            episodes = tf.queue.FIFOQueue(
                _MAX_QUEUED_EPISODES, [tf.float64], [[len(EpisodeReport._fields)]], shared_name="episodes"
            )
            self.episodes = tf.compat.v1.placeholder(tf.float64, [None, len(EpisodeReport._fields)])
            self.report = episodes.enqueue_many(self.episodes)
            self.take = episodes.dequeue_many(episodes.size())  # nobody but the chief takes any
        self.pull = []
        for online in self.online:
            with tf.control_dependencies([gate]), tf.device(online.device):
                self.pull.append(tf.cast(online.read_value(), wire_dtype))
        self.read_online = [shard.read_value() for shard in self.online]
        self.pull_target = [shard.read_value() for shard in self.target]
        self.push = tf.group(applied)
        self.refresh = tf.group(refreshed)
        self.read_slots = [{name: slot.read_value() for name, slot in shard.items()} for shard in self.slots]
        self.initialized: list[tf.Tensor] = []
        self.assign: dict[str, tuple[tf.Tensor, Any]] = {}
        slots = [slot for shard in self.slots for slot in shard.values()]
        for var in [*self.online, *self.target, *slots, ledger]:
            with tf.device(var.device):
                self.initialized.append(tf.raw_ops.VarIsInitializedOp(resource=var.handle))
                if var is not ledger:
                    value = tf.compat.v1.placeholder(var.dtype, var.shape)
                    self.assign[var.op.name] = (value, var.assign(value, read_value=False))

    def _apply_if(self, may_apply: tf.Tensor, optimizer: Optimizer, shard: int, update: tf.Tensor) -> tf.Operation:
        online, slots = self.online[shard], self.slots[shard]

        def apply() -> tf.Tensor:
            applied = optimizer.apply(online, slots, tf.cast(update, tf.float32), self.learning_rate)
            with tf.control_dependencies([applied]):
                return tf.constant(True)

        return tf.cond(may_apply, apply, lambda: tf.constant(False))


def _variables(name: str, values: list[np.ndarray]) -> list[tf.Variable]:
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
