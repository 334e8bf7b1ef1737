"""Versions on one shard: gradients that wait until one step of the optimizer takes the mean of them.

A push first leaves its gradient on every shard, in a row of its worker's own. Only then does the ledger admit it to the
open version. So whatever is admitted is on every shard, whoever dies next, and any request that brings what the ledger
says, of any worker, can bring a shard up to date. All shards follow the ledger, and none applies anything twice.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from async_dqn.cluster.ledger import Counted
from async_dqn.cluster.quorum import Quorum
from async_dqn.cluster.shards import GENERATION, ORDERS, REFRESHES, ModuleShard, Push, Shard, make_variables, variables
from async_dqn.nn.module import Module

_VERSION, _LEFT = range(2)  # columns of the progress: the last version applied; the order of what is in each row


class VersionedShard(Shard):
    """A shard with a row for each worker's gradient. The orders in its record are those of gradients taken out of them.

    A worker may be in one version twice if it is not synchronous. There is a further row for a sum then.

    Args:
      rows: {module: variable [W, size] or [W + 1, size]}.
      terms: float32 variable [W, 2 M] or [W + 1, 2 M]: for each module whether the gradient has a part of it, and the
        rate of that.
      progress: int64 variable [1 + W].
      squared_norm: float32 variable [], what `measure` gave for the last version.
    """

    def __init__(
        self,
        index: int,
        modules: Mapping[str, ModuleShard],
        record: tf.Variable,
        *,
        rows: Mapping[str, tf.Variable],
        terms: tf.Variable,
        progress: tf.Variable,
        squared_norm: tf.Variable,
        quorum: Quorum,
    ):
        super().__init__(index, modules, record)
        self._rows, self._terms, self._progress, self._quorum = rows, terms, progress, quorum
        self._squared_norm = squared_norm
        self._sum_row = progress.shape[0] - _LEFT

    def leave(self, worker: int, generation: tf.Tensor, order: tf.Tensor, push: Push) -> tf.Tensor:
        """Leaves a gradient in its worker's row. Gives [2] int64: the version here, and whether the gradient is there.

        Nothing happens where it is there already, where a later one is, or where its generation is another.
        """
        with tf.device(self.device):
            generation, order, rates = tf.identity(generation), tf.identity(order), tf.identity(push.rates)
            values = {name: tf.identity(value) for name, value in push.values.items()}
            has = tf.stack([tf.size(values[name]) > 0 for name in self.modules])  # [M]

        def row_of(name: str) -> tf.Tensor:
            size = self.modules[name].size

            def given() -> tf.Tensor:
                return tf.cast(tf.reshape(values[name], [size]), tf.float32)

            return tf.cond(tf.size(values[name]) > 0, given, lambda: tf.zeros([size]))

        def body() -> tf.Tensor:
            progress = self._progress.read_value()
            is_current = tf.equal(self.record.read_value()[GENERATION], generation)

            def write() -> tf.Tensor:
                terms = tf.concat([tf.cast(has, tf.float32), tf.where(has, rates, 0.0)], 0)
                written = [_write_row(self._terms, worker, terms)]
                written += [_write_row(row, worker, row_of(name)) for name, row in self._rows.items()]
                with tf.control_dependencies(written):  # a gradient that is there is there as a whole
                    new = tf.tensor_scatter_nd_update(progress, [[_LEFT + worker]], [order])
                    written = [self._progress.assign(new, read_value=False)]
                with tf.control_dependencies(written):
                    return tf.identity(order)

            is_new = is_current & (order > progress[_LEFT + worker]) & tf.reduce_any(has)
            left = tf.cond(is_new, write, lambda: progress[_LEFT + worker])
            return tf.stack([progress[_VERSION], tf.cast(is_current & tf.equal(left, order), tf.int64)])

        with tf.device(self.device):
            return self._critical.execute(body)

    def measure(self, counted: Counted) -> tf.Tensor:
        """[] float32, the squared norm of this shard's part of the mean of the last complete version.

        It is kept: another shard may apply that version after this one. No later version is complete before all have.
        """
        with tf.device(self.device):
            mark = tf.identity(counted.mark)

        def body() -> tf.Tensor:
            (generation, _, updates, _), orders = tf.unstack(mark[:4]), mark[4:]
            record, version = self.record.read_value(), self._progress.read_value()[_VERSION]

            def measured() -> tf.Tensor:
                taken = tf.where(orders > record[ORDERS:])[:, 0]  # [n]
                counts = self._total(self._terms, taken)
                squared_norm = tf.add_n(
                    [
                        tf.math.divide_no_nan(
                            tf.reduce_sum(self._total(self._rows[name], taken) ** 2), counts[index] ** 2
                        )
                        for index, (name, module) in enumerate(self.modules.items())
                        if module.is_trained
                    ]
                )
                with tf.control_dependencies([self._squared_norm.assign(squared_norm, read_value=False)]):
                    return tf.identity(squared_norm)

            is_due = tf.equal(record[GENERATION], generation) & (updates > version)
            return tf.cond(is_due, measured, self._squared_norm.read_value)

        with tf.device(self.device):
            return self._critical.execute(body)

    def follow(self, counted: Counted, squared_norms: Sequence[tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Applies the version that the ledger says is complete, if it is not applied yet.

        Args:
          squared_norms: what all shards gave in `measure`; none where means are taken as they are.

        Returns:
          The version here, and {module: online parameters of that version [size]}. They are [0] where the version that
          the sender waits for is not complete.
        """
        with tf.device(self.device):
            mark, factor = tf.identity(counted.mark), tf.constant(1.0)
            if squared_norms:
                norm = tf.sqrt(tf.add_n(squared_norms))
                factor = self._quorum.max_norm / tf.maximum(norm, self._quorum.max_norm)

        def body() -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            (generation, refreshes, updates, awaited), orders = tf.unstack(mark[:4]), mark[4:]
            record, version = self.record.read_value(), self._progress.read_value()[_VERSION]
            is_current = tf.equal(record[GENERATION], generation)
            is_due = is_current & (updates > version)
            # A synchronous version is added up at once, in the order of workers: the same bits, whoever came first.
            may_take = is_due if self._quorum.is_synchronous else is_current
            is_taken = may_take & (orders > record[ORDERS:])
            taken = tf.where(is_taken)[:, 0]  # [n]
            is_behind = is_current & (refreshes > record[REFRESHES])
            head = [record[GENERATION], tf.where(is_behind, refreshes, record[REFRESHES])]
            new = tf.concat([head, tf.where(is_taken, orders, record[ORDERS:])], 0)
            # Before the rest, as in `apply`.
            done = [self.record.assign(new, read_value=False), self._set_version(tf.where(is_due, updates, version))]
            with tf.control_dependencies(done):
                is_any = is_due | (tf.size(taken) > 0)
                done.append(tf.cond(is_any, lambda: self._add_up(taken, is_due, factor), lambda: tf.constant(False)).op)
            with tf.control_dependencies([self._refresh_if(is_behind, done)]):
                is_there = awaited <= updates if self._quorum.is_synchronous else tf.constant(True)
                online = {name: _value_if(is_there, module.online) for name, module in self.modules.items()}
                return tf.where(is_due, updates, version), online

        with tf.device(self.device):
            return self._critical.execute(body)

    def _set_version(self, version: tf.Tensor) -> tf.Operation:
        new = tf.tensor_scatter_nd_update(self._progress.read_value(), [[_VERSION]], [version])
        return self._progress.assign(new, read_value=False)

    def _add_up(self, taken: tf.Tensor, is_due: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        """Adds up the rows of these workers, and steps the optimizers with the mean times `factor` where it is due."""
        num_modules = len(self.modules)
        terms, added = self._sum(self._terms, taken, is_due)
        with tf.control_dependencies(added):  # should this be cut short: a gradient that counts and is 0
            terms = tf.identity(terms)
        done = []
        for index, (name, module) in enumerate(self.modules.items()):
            with tf.control_dependencies(added):
                total, kept = self._sum(self._rows[name], taken, is_due)
            count, rate = terms[index], terms[num_modules + index]

            def step(
                module: ModuleShard = module, total: tf.Tensor = total, count: tf.Tensor = count, rate: tf.Tensor = rate
            ) -> tf.Tensor:
                mean = total / count * factor if module.is_trained else total / count
                applied = module.optimizer.apply(module.online, module.slots, mean, rate / count)
                with tf.control_dependencies([applied]):
                    return tf.constant(True)

            done += [*kept, tf.cond(is_due & (count > 0), step, lambda: tf.constant(False)).op]
        with tf.control_dependencies(done):
            return tf.constant(True)

    def _total(self, rows: tf.Variable, taken: tf.Tensor) -> tf.Tensor:
        """The sum over the open version, these rows included."""
        if not self._quorum.is_synchronous:
            taken = tf.concat([taken, [self._sum_row]], 0)
        return tf.reduce_sum(_read_rows(rows, taken), 0)

    def _sum(self, rows: tf.Variable, taken: tf.Tensor, is_due: tf.Tensor) -> tuple[tf.Tensor, list[tf.Operation]]:
        """The same as `_total`, and what keeps it for the next ones."""
        total = self._total(rows, taken)
        if self._quorum.is_synchronous:
            return total, []
        return total, [_write_row(rows, self._sum_row, tf.where(is_due, tf.zeros_like(total), total))]

    def _stamp(self) -> tf.Tensor:
        # Gradients that are taken out of their rows change nothing until the version is complete.
        return tf.concat([self.record.read_value()[:ORDERS], self._progress.read_value()[:_LEFT]], 0)

    def _cleared(self, updates: tf.Tensor) -> list[tuple[tf.Variable, tf.Tensor]]:
        rows = [(row, tf.zeros(row.shape)) for row in (self._terms, *self._rows.values())]
        nothing_left = tf.zeros([self._progress.shape[0] - _LEFT], tf.int64)
        return [*rows, (self._squared_norm, tf.zeros([])), (self._progress, tf.concat([[updates], nothing_left], 0))]


def _read_rows(rows: tf.Variable, indices: tf.Tensor) -> tf.Tensor:
    # Not a slice of `read_value`, which would read all rows.
    return tf.raw_ops.ResourceGather(resource=rows.handle, indices=indices, dtype=tf.float32)


def _write_row(rows: tf.Variable, index: int, value: tf.Tensor) -> tf.Operation:
    return tf.raw_ops.ResourceScatterUpdate(resource=rows.handle, indices=[index], updates=value[None])


def _value_if(condition: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
    return tf.cond(condition, variable.read_value, lambda: tf.zeros([0]))


def make_versioned_shards(
    modules: Sequence[Module], num_ps: int, num_workers: int, quorum: Quorum
) -> list[VersionedShard]:
    """All modules cut into one shard a ps, with a row for each worker's gradient. Call it in a strategy's scope."""
    held, records = make_variables(modules, num_ps, num_workers)
    num_rows = num_workers + (0 if quorum.is_synchronous else 1)

    def make(name: str, widths: Sequence[int]) -> list[tf.Variable]:
        return variables(name, [np.broadcast_to(np.float32(0), (num_rows, width)) for width in widths])

    rows = {one.name: make(f"{one.name}/gradients", [shard[one.name].size for shard in held]) for one in modules}
    terms = make("terms", [2 * len(modules)] * num_ps)
    progress = variables("progress", [np.zeros(_LEFT + num_workers, np.int64)] * num_ps)
    squared_norms = variables("squared_norm", [np.zeros([], np.float32)] * num_ps)
    return [
        VersionedShard(
            k,
            held[k],
            records[k],
            rows={name: one[k] for name, one in rows.items()},
            terms=terms[k],
            progress=progress[k],
            squared_norm=squared_norms[k],
            quorum=quorum,
        )
        for k in range(num_ps)
    ]
