"""The graph of the shared networks: their variables on the parameter servers, and the steps that a worker runs on them.

Each module's flat vector is cut into K nearly equal shards, one per ps. Every worker builds the same graph, so
variables are shared by name and workers need not know each other.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.cluster import shared_memory
from async_dqn.cluster.ledger import Ledger, LedgerOperations, ledger_shape
from async_dqn.cluster.shards import Copied, Push, Shard, make_variables, variables
from async_dqn.cluster.spec import ClusterSpec
from async_dqn.nn.module import Module
from async_dqn.store.base import Counters, EpisodeReport, MemberState

_MAX_QUEUED_EPISODES = 1_000_000
_C = len(Counters._fields)


class ParameterGraph:
    """Placeholders to feed and nodes to fetch, each named for what it holds or does.

    Attributes:
      names: of the modules; `rates` [M] is in this order.
      sizes: {module: sizes of its K shards}.
      updates, segments, buffers: {module: [one for each ps]}, what a push needs by sockets or by shared memory.
      count, count_push: `Counted` of a request of counts, and of one with a push.
      refreshed: [K] operations: what a request of counts does to the shards.
      pushed, pulled: [K] operations, and {module: [K] tensors}: by sockets, a push, and what is there after it.
      exchanged, given: the same by shared memory; each tensor of `given` is a buffer index.
      pull, read_target: {module: [K]}, parameters as they are.
      applied: [K] records, each between two pushes.
      read: [K] of {module: {name: array}} after nothing up to `counted_up_to` can still arrive.
      read_ledger: ends the hold once all that is there, but not on its way yet, and gives the ledger before.
      generations: [K], of the parameters.
      written: [K] generations, after variables were set from `values` {(k, module, name): placeholder}.
      catch_up: a step after which every shard has applied all that is complete; None: there is none.

    Args:
      strategy: this worker's `ParameterServerStrategy`; it places the variables on the parameter servers.
      worker, token: whose counts these are, for the ledger.
      budget: agent steps of all workers.
      target_period: minibatches between two refreshes of the targets; 0: there are none.
      max_staleness: updates that are older are dropped; 0: none.
      wire_dtype: what updates and pulled parameters are sent in, but those of modules that are not trained: these
        are means of any size, and few.
    """

    catch_up: tuple[Any, dict[tf.Tensor, Any]] | None = None

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
        self.names = [module.name for module in modules]
        self._worker = worker
        self._wire_dtypes = {module.name: wire_dtype if module.is_trained else "float32" for module in modules}
        with self.graph.as_default(), strategy.scope():
            self.shards = self._make_shards(spec, modules)
            self.sizes = {name: [shard.modules[name].size for shard in self.shards] for name in self.names}
            operations = self._build_ledger(spec, worker, token)
            self.request, self.computed_on = _int64(), _int64()
            self.counts = tf.compat.v1.placeholder(tf.int64, [_C])
            self._build_queue()
            self._build_placeholders()
            limits = {"budget": budget, "target_period": target_period, "max_staleness": max_staleness}
            self._build_requests(operations, token, {"request": self.request, "counts": self.counts, **limits})
            self._build_pulls()
            self._build_state(operations)
        self.graph.finalize()

    def _make_shards(self, spec: ClusterSpec, modules: Sequence[Module]) -> Sequence[Shard]:
        held, records = make_variables(modules, spec.num_ps, spec.num_workers)
        return [Shard(k, held[k], record) for k, record in enumerate(records)]

    def _build_ledger(self, spec: ClusterSpec, worker: int, token: int) -> LedgerOperations:
        shape = ledger_shape(spec.num_workers)
        (self._ledger,) = variables("ledger", [np.zeros(shape, np.int64)])
        operations = LedgerOperations(self._ledger)
        self.is_start, self.generation, self.joins, self.hold_id = _int64(), _int64(), _int64(), _int64()
        self.join = operations.join(worker, token, is_start=self.is_start, generation=self.generation, joins=self.joins)
        self.leave = operations.leave(worker, token, MemberState.DONE)
        self.hold, self.release = operations.hold(self.hold_id), operations.release(self.hold_id)
        self.rows = tf.compat.v1.placeholder(tf.int64, shape)
        self.set_ledger = operations.set(self.rows)
        with tf.device(self._ledger.device):
            self.ledger = self._ledger.read_value()
            self.counters = self.ledger[0, :_C]
        return operations

    def _build_queue(self) -> None:
        with tf.device(self._ledger.device):
            width = len(EpisodeReport._fields)
            episodes = tf.queue.FIFOQueue(_MAX_QUEUED_EPISODES, [tf.float64], [[width]], shared_name="episodes")
            self.episodes = tf.compat.v1.placeholder(tf.float64, [None, width])
            self.report = episodes.enqueue_many(self.episodes)
            self.take = episodes.dequeue_many(episodes.size())  # nobody but the chief takes any

    def _build_placeholders(self) -> None:
        self.rates = tf.compat.v1.placeholder(tf.float32, [len(self.names)])
        self.updates = {name: self._placeholders(dtype, [None]) for name, dtype in self._wire_dtypes.items()}
        self.segments = {name: self._placeholders(tf.string, []) for name in self.names}
        self.buffers = {name: self._placeholders(tf.int64, []) for name in self.names}
        self.reaches: dict[str, list[tf.Tensor]] = {name: [] for name in self.names}
        for k, shard in enumerate(self.shards):
            with tf.device(shard.device):
                for name in self.names:
                    self.reaches[name].append(shared_memory.reaches(self.segments[name][k]))

    def _build_requests(self, operations: LedgerOperations, token: int, options: dict[str, Any]) -> None:
        """Requests of counts, and pushes with what is pulled in the same step."""
        self.count = operations.count(self._worker, token, computed_on=None, **options)
        self.count_push = operations.count(self._worker, token, computed_on=self.computed_on, **options)
        self.refreshed = [shard.apply(self.count, self._worker, None) for shard in self.shards]
        self.pushed: list[tf.Operation] = []
        self.exchanged: list[tf.Operation] = []
        self.pulled: dict[str, list[tf.Tensor]] = {name: [] for name in self.names}
        self.given: dict[str, list[tf.Tensor]] = {name: [] for name in self.names}
        for k, shard in enumerate(self.shards):
            sent = {name: self.updates[name][k] for name in self.names}
            with tf.device(shard.device):
                taken = {name: shared_memory.take(self.segments[name][k]) for name in self.names}
            self.pushed.append(shard.apply(self.count_push, self._worker, Push(sent, self.rates)))
            self.exchanged.append(shard.apply(self.count_push, self._worker, Push(taken, self.rates)))
            for name, module in shard.modules.items():
                address, buffer = self.segments[name][k], self.buffers[name][k]
                with tf.device(shard.device):
                    with tf.control_dependencies([self.pushed[k]]):  # and so of counters older than the parameters
                        self.pulled[name].append(self._to_wire(name, module.online.read_value()))
                    with tf.control_dependencies([self.exchanged[k]]):
                        self.given[name].append(shared_memory.give(address, buffer, module.online.read_value()))

    def _build_pulls(self) -> None:
        # Counters before parameters, so that a staleness is understated by updates under way at most.
        with tf.control_dependencies([self.counters]):
            gate = tf.no_op()
        self.pull: dict[str, list[tf.Tensor]] = {name: [] for name in self.names}
        self.read_target: dict[str, list[tf.Tensor]] = {}
        for shard in self.shards:
            for name, module in shard.modules.items():
                with tf.device(shard.device), tf.control_dependencies([gate]):
                    self.pull[name].append(self._to_wire(name, module.online.read_value()))
                if module.target is not None:
                    self.read_target.setdefault(name, []).append(module.target.read_value())

    def _build_state(self, operations: LedgerOperations) -> None:
        """What saves and restores; and whether each variable is set, the ledger last."""
        self.applied = [shard.applied() for shard in self.shards]
        self.counted_up_to = tf.compat.v1.placeholder(tf.int64, self.shards[0].record.shape)
        self.read = [shard.read(self.counted_up_to) for shard in self.shards]
        with tf.control_dependencies(tf.nest.flatten(self.read)), tf.device(self._ledger.device):
            hold = tf.identity(self.hold_id)
        self.read_ledger = operations.release(hold)
        self.generations = [shard.generation() for shard in self.shards]
        with tf.control_dependencies([self.ledger]):  # it says what shards should have applied at this moment
            gate = tf.no_op()
        self.copied: dict[bool, list[Copied]] = {}
        for whole in (False, True):
            with tf.control_dependencies([gate]):
                self.copied[whole] = [shard.copied(whole=whole) for shard in self.shards]
        self.refreshes, self.num_updates = _int64(), _int64()
        self.values: dict[tuple[int, str, str], tf.Tensor] = {}
        self.written: list[tf.Tensor] = []
        self.initialized: list[tf.Tensor] = []
        for k, shard in enumerate(self.shards):
            values: dict[str, dict[str, tf.Tensor]] = {}
            for module, held in shard.modules.items():
                with tf.device(shard.device):
                    values[module] = {
                        name: tf.compat.v1.placeholder(variable.dtype, variable.shape)
                        for name, variable in held.named.items()
                    }
                self.values |= {(k, module, name): value for name, value in values[module].items()}
            self.written.append(shard.write(values, self.generation, self.refreshes, self.num_updates))
            self.initialized += shard.is_initialized()
        with tf.device(self._ledger.device):
            self.initialized.append(tf.raw_ops.VarIsInitializedOp(resource=self._ledger.handle))

    def stamp(self, ledger: Ledger) -> np.ndarray:
        """[S] int64, the stamp of every shard once all that the ledger has counted is applied there: see `Copied`."""
        orders = [member.admitted for member in ledger.members]
        return np.array([ledger.generation, ledger.counters.target_refreshes, *orders], np.int64)

    def _placeholders(self, dtype: Any, shape: list[int | None]) -> list[tf.Tensor]:
        return [tf.compat.v1.placeholder(dtype, shape) for _ in self.shards]

    def _to_wire(self, name: str, value: tf.Tensor) -> tf.Tensor:
        return tf.cast(value, self._wire_dtypes[name])


def _int64() -> tf.Tensor:
    return tf.compat.v1.placeholder(tf.int64, [])
