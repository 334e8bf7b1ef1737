"""A shard: what one parameter server holds of every module, and the record of what was applied to it.

The record is an int64 variable [2 + W]: the generation of the parameters, the number of target refreshes made, and for
each worker the order of its last push here. All that changes a shard runs in one critical section, and looks into the
record first. So a push is applied once however often it is sent, and never to parameters that were restored after it
was admitted, however late it arrives.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.cluster.ledger import Counted
from async_dqn.nn.module import Module
from async_dqn.nn.optimizers import Optimizer

GENERATION, REFRESHES, ORDERS = range(3)  # columns of the record


def shard_sizes(num_parameters: int, num_shards: int) -> list[int]:
    """Sizes of K consecutive shards that differ by one at most."""
    small, larger = divmod(num_parameters, num_shards)
    return [small + 1] * larger + [small] * (num_shards - larger)


class ModuleShard(NamedTuple):
    """The variables of one module on one ps."""

    size: int
    optimizer: Optimizer
    is_trained: bool  # see `Module`
    online: tf.Variable
    target: tf.Variable | None
    slots: dict[str, tf.Variable]

    @property
    def named(self) -> dict[str, tf.Variable]:
        """All of them, by their names in a saved state less the module's."""
        targets = {} if self.target is None else {"target": self.target}
        return {"online": self.online, **targets, **{f"slot/{name}": slot for name, slot in self.slots.items()}}


class Push(NamedTuple):
    """Updates on their way to one shard: tensors."""

    values: Mapping[str, tf.Tensor]  # {module: [size], or [0] where the module gets none}
    rates: tf.Tensor  # [M] float32


class Copied(NamedTuple):
    """What is read of a shard while it goes on. It is of one moment where both stamps are the same."""

    stamps: tf.Tensor  # [2, S] int64: what was applied before anything was read, and what was begun by then
    values: dict[str, dict[str, tf.Tensor]]  # {module: {name: array}}, the parts of this shard


class Shard:
    """The operations on one shard, in the graph that is current at construction. All run on its ps.

    Args:
      index: which ps it is.
      modules: its variables, by module.
      record: int64 variable [2 + W].
    """

    def __init__(self, index: int, modules: Mapping[str, ModuleShard], record: tf.Variable):
        self.modules, self.record = modules, record
        self.device = record.device
        with tf.device(self.device):
            self._critical = tf.CriticalSection(name=f"shard_lock_{index}", shared_name=f"shard_lock_{index}")

    def apply(self, counted: Counted, worker: int, push: Push | None) -> tf.Operation:
        """Applies a push unless it was applied before, and refreshes the targets if they are behind the count.

        Args:
          counted: what the ledger said of the request that this belongs to.
          push: None: the request is counts alone.
        """
        # All that the section waits for is brought to the ps before: it would be fetched twice otherwise.
        with tf.device(self.device):
            generation, refreshes, order = tf.unstack(tf.identity(counted.mark))
            values = {name: tf.identity(value) for name, value in push.values.items()} if push else {}
            rates = dict(zip(values, tf.unstack(tf.identity(push.rates)), strict=True)) if push else {}

        def body() -> tf.Tensor:
            record = self.record.read_value()
            is_current = tf.equal(record[GENERATION], generation)
            is_new = is_current & (order > record[ORDERS + worker])
            is_behind = is_current & (refreshes > record[REFRESHES])
            new = [tf.where(is_behind, refreshes, record[REFRESHES]), tf.where(is_new, order, record[ORDERS + worker])]
            new = tf.tensor_scatter_nd_update(record, [[REFRESHES], [ORDERS + worker]], new)
            # Before the update: a step that is cut short in between loses an update here, and applies none twice.
            applied = [self.record.assign(new, read_value=False)]
            with tf.control_dependencies(applied):
                applied += [self._apply_if(is_new, name, values[name], rates[name]) for name in values]
            return self._refresh_if(is_behind, applied)

        with tf.device(self.device):
            return self._critical.execute(body).op

    def applied(self) -> tf.Tensor:
        """The record [2 + W] between two pushes: nothing in it is still being applied."""
        with tf.device(self.device):
            return self._critical.execute(lambda: self.record.read_value())

    def read(self, counted_up_to: tf.Tensor) -> dict[str, dict[str, tf.Tensor]]:
        """{module: {name: array}}, all of one moment. Pushes up to the given orders are not applied any more.

        Args:
          counted_up_to: [2 + W] like the record. Targets that are behind its count of refreshes are refreshed.
        """
        with tf.device(self.device):
            counted_up_to = tf.identity(counted_up_to)  # see `apply`

        def body() -> dict[str, dict[str, tf.Tensor]]:
            record = self.record.read_value()
            is_current = tf.equal(record[GENERATION], counted_up_to[GENERATION])
            is_behind = is_current & (counted_up_to[REFRESHES] > record[REFRESHES])
            new = tf.where(is_current, tf.maximum(record, counted_up_to), record)
            refreshed = self._refresh_if(is_behind, [self.record.assign(new, read_value=False)])
            with tf.control_dependencies([refreshed]):
                return {
                    module: {name: tf.identity(variable.read_value()) for name, variable in shard.named.items()}
                    for module, shard in self.modules.items()
                }

        with tf.device(self.device):
            return self._critical.execute(body)

    def copied(self, *, whole: bool) -> Copied:
        """What is here, without holding anybody up.

        Args:
          whole: targets and slots as well, not online parameters alone.
        """
        with tf.device(self.device):
            before = self._critical.execute(lambda: tf.identity(self._stamp()))
            with tf.control_dependencies([before]):
                values = {
                    module: {
                        name: tf.identity(variable.read_value())
                        for name, variable in shard.named.items()
                        if whole or name == "online"
                    }
                    for module, shard in self.modules.items()
                }
            # The record is written before an update is applied: where it is as before, nothing was begun meanwhile.
            with tf.control_dependencies([value for named in values.values() for value in named.values()]):
                return Copied(tf.stack([before, self._stamp()]), values)

    def _stamp(self) -> tf.Tensor:
        """[S] int64, another one after whatever is applied here."""
        return self.record.read_value()

    def generation(self) -> tf.Tensor:
        """That of the parameters, 0 where there are none yet."""
        with tf.device(self.device):
            return self._critical.execute(self._known_generation)

    def write(
        self,
        values: Mapping[str, Mapping[str, tf.Tensor]],
        generation: tf.Tensor,
        refreshes: tf.Tensor,
        updates: tf.Tensor,
    ) -> Any:
        """Sets all variables from {module: {name: array}}; gives the generation after.

        Nothing happens unless the generation is a newer one: so a request that arrives late or twice does nothing.
        """
        with tf.device(self.device):  # see `apply`
            generation, refreshes, updates = tf.identity(generation), tf.identity(refreshes), tf.identity(updates)

        def body() -> tf.Tensor:
            known = self._known_generation()

            def assign() -> tf.Tensor:
                new = [
                    (variable, values[module][name])
                    for module, shard in self.modules.items()
                    for name, variable in shard.named.items()
                ]
                assigned = [
                    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
                    for variable, value in [*new, *self._cleared(updates)]
                ]
                orders = tf.zeros([self.record.shape[0] - ORDERS], tf.int64)
                record = tf.concat([[generation, refreshes], orders], 0)
                with tf.control_dependencies(assigned):
                    assigned = [tf.raw_ops.AssignVariableOp(resource=self.record.handle, value=record)]
                with tf.control_dependencies(assigned):
                    return tf.identity(generation)

            return tf.cond(generation > known, assign, lambda: tf.identity(known))

        with tf.device(self.device):
            return self._critical.execute(body)

    def is_initialized(self) -> list[tf.Tensor]:
        """Whether each of its variables is set."""
        variables = [self.record, *(one for shard in self.modules.values() for one in shard.named.values())]
        variables += [variable for variable, _ in self._cleared(tf.zeros([], tf.int64))]
        with tf.device(self.device):
            return [tf.raw_ops.VarIsInitializedOp(resource=variable.handle) for variable in variables]

    def _cleared(self, updates: tf.Tensor) -> list[tuple[tf.Variable, tf.Tensor]]:
        """Variables that are no part of a saved state, and what each is once `updates` updates were restored."""
        return []

    def _known_generation(self) -> tf.Tensor:
        is_set = tf.raw_ops.VarIsInitializedOp(resource=self.record.handle)
        return tf.cond(
            is_set, lambda: tf.identity(self.record.read_value()[GENERATION]), lambda: tf.zeros([], tf.int64)
        )

    def _apply_if(self, condition: tf.Tensor, name: str, value: tf.Tensor, rate: tf.Tensor) -> tf.Operation:
        module = self.modules[name]

        def apply() -> tf.Tensor:
            # Not `ensure_shape`, which TensorFlow runs before it looks at the condition.
            update = tf.cast(tf.reshape(value, [module.size]), tf.float32)
            applied = module.optimizer.apply(module.online, module.slots, update, rate)
            with tf.control_dependencies([applied]):
                return tf.constant(True)

        return tf.cond(condition & (tf.size(value) > 0), apply, lambda: tf.constant(False)).op

    def _refresh_if(self, condition: tf.Tensor, after: Sequence[tf.Operation]) -> tf.Tensor:
        """Copies online parameters to targets. A tensor that is there once this is done or not due."""
        pairs = [(one.online, one.target) for one in self.modules.values() if one.target is not None]

        def refresh() -> tf.Tensor:
            copied = [target.assign(online.read_value(), read_value=False) for online, target in pairs]
            with tf.control_dependencies(copied):
                return tf.constant(True)

        with tf.control_dependencies(after):
            return tf.cond(tf.identity(condition), refresh, lambda: tf.constant(False))


def make_variables(
    modules: Sequence[Module], num_ps: int, num_workers: int
) -> tuple[list[dict[str, ModuleShard]], list[tf.Variable]]:
    """The modules' shards and the records of all ps. Call it in a strategy's scope."""
    held: list[dict[str, ModuleShard]] = [{} for _ in range(num_ps)]
    for module in modules:
        sizes = shard_sizes(module.size, num_ps)
        zeros = [np.zeros(size, np.float32) for size in sizes]
        online = variables(f"{module.name}/online", zeros)
        target = variables(f"{module.name}/target", zeros) if module.has_target else [None] * num_ps
        slots: list[dict[str, tf.Variable]] = [{} for _ in range(num_ps)]
        starts = [module.optimizer.initial_slots(size) for size in sizes]
        for name in starts[0]:
            for k, slot in enumerate(variables(f"{module.name}/slot/{name}", [start[name] for start in starts])):
                slots[k][name] = slot
        for k, size in enumerate(sizes):
            held[k][module.name] = ModuleShard(
                size, module.optimizer, module.is_trained, online[k], target[k], slots[k]
            )
    return held, variables("record", [np.zeros(ORDERS + num_workers, np.int64)] * num_ps)


def variables(name: str, values: Sequence[np.ndarray]) -> list[tf.Variable]:
    """One variable for each value, the first on ps 0, the next on ps 1."""
    # The strategy places variables on the parameter servers one after another: of K, one comes to each.
    return [
        tf.compat.v1.get_variable(
            f"{name}_{k}", value.shape, value.dtype, tf.zeros_initializer, trainable=False, use_resource=True
        )
        for k, value in enumerate(values)
    ]
