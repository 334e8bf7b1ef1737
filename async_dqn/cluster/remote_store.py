"""The parameter store on parameter servers: `ParameterStore` over TensorFlow's graph-mode runtime.

The flat vector is cut into K nearly equal shards, one per ps, the optimizer's slots beside each. Every worker builds
the same graph and opens its own session, so variables are shared by name and workers need not know each other.
"""

import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.background import Background
from async_dqn.cluster.spec import ClusterSpec, wait_until_reachable
from async_dqn.errors import RunError
from async_dqn.optimizers import Optimizer
from async_dqn.parameters import Counters, EpisodeReport, Pulled, check_state

_COUNTER = {name: index for index, name in enumerate(Counters._fields)}
_MAX_QUEUED_EPISODES = 1_000_000
_CONNECTION_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)
_PATIENCE = 15.0  # seconds after which a step counts as lost


def shard_sizes(num_parameters: int, num_shards: int) -> list[int]:
    """Sizes of K consecutive shards that differ by one at most."""
    small, larger = divmod(num_parameters, num_shards)
    return [small + 1] * larger + [small] * (num_shards - larger)


def _fetch_and_add(
    ledger: tf.Variable, critical: tf.CriticalSection, counts: tf.Tensor, ticket: tf.Tensor, worker: int, budget: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Graph form of `parameters.advance`, atomic across workers, and counted once however often it is sent.

    Row 0 of `ledger` [1 + W, len(Counters)] holds the counters, row 1 + w the last ticket of worker w and the steps
    that it was granted for it: a call with a ticket already seen changes nothing and is told the same again.

    Returns:
      [2, len(Counters)] counters before and after, and the steps granted, scalar.
    """
    claimed, staleness_max = _COUNTER["claimed_steps"], _COUNTER["staleness_max"]

    def body() -> tuple[tf.Tensor, tf.Tensor]:
        rows = ledger.read_value()
        before, receipt = rows[0], rows[1 + worker]
        is_new = ticket > receipt[0]
        added = tf.where(is_new, counts, tf.zeros_like(counts))
        ceiling = tf.where(before[_COUNTER["stopped"]] > 0, before[claimed], tf.maximum(before[claimed], budget))
        columns = tf.unstack(before + added)
        columns[claimed] = tf.minimum(columns[claimed], ceiling)
        columns[staleness_max] = tf.maximum(before[staleness_max], added[staleness_max])
        after = tf.stack(columns)
        granted = tf.where(is_new, after[claimed] - before[claimed], receipt[1])
        receipt = tf.concat([[tf.maximum(ticket, receipt[0]), granted], receipt[2:]], axis=0)
        rows = tf.tensor_scatter_nd_update(rows, [[0], [1 + worker]], [after, receipt])
        with tf.control_dependencies([before, ledger.assign(rows, read_value=False)]):
            return tf.stack([before, after]), tf.identity(granted)

    return critical.execute(body)


class _Counted(NamedTuple):
    before: Counters
    after: Counters
    granted: int


class RemoteParameterStore:
    """The shared global network, seen from one worker.

    Args:
      target: the worker's own server, `server.target`.
      session_config: the same ConfigProto that the server was built with.
      strategy: this worker's `ParameterServerStrategy`; it places the variables on the parameter servers.
      worker: this worker's task index.
      deadline: seconds that anything on a ps may take before `RunError` is raised.
      warn: takes a line on what went wrong and was mended.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        target: str,
        session_config: tf.compat.v1.ConfigProto,
        strategy: Any,
        worker: int,
        num_parameters: int,
        optimizer: Optimizer,
        total_steps: int,
        deadline: float,
        warn: Callable[[str], None],
    ):
        self.num_parameters = num_parameters
        self._optimizer = optimizer
        self._deadline = deadline
        self._patience = min(_PATIENCE, deadline)
        self._spec = spec
        self._sizes = shard_sizes(num_parameters, spec.num_ps)
        self._bounds = np.cumsum([0, *self._sizes])
        self._graph = tf.Graph()
        with self._graph.as_default(), strategy.scope():
            self._build(spec, worker, total_steps)
        self._graph.finalize()
        self._warn = warn
        self._lock = threading.RLock()
        self._tickets = itertools.count(time.time_ns())  # a worker that is restarted begins above its old ones
        self._open_session = lambda: tf.compat.v1.Session(target, graph=self._graph, config=session_config)
        self._session = self._open_session()
        self._calls = Background("parameter-calls")

    def _build(self, spec: ClusterSpec, worker: int, budget: int) -> None:
        placeholder = tf.compat.v1.placeholder

        def variables(name: str, values: list[np.ndarray]) -> list[tf.Variable]:
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

        shards = [np.zeros(size, np.float32) for size in self._sizes]
        initial_slots = [self._optimizer.initial_slots(size) for size in self._sizes]
        self._online, self._target = variables("online", shards), variables("target", shards)
        slots = {name: variables(name, [shard[name] for shard in initial_slots]) for name in initial_slots[0]}
        self._slots = [{name: one_per_ps[k] for name, one_per_ps in slots.items()} for k in range(spec.num_ps)]
        (ledger,) = variables("ledger", [np.zeros((1 + spec.num_workers, len(Counters._fields)), np.int64)])

        self._learning_rate = placeholder(tf.float32, [])
        self._updates = [placeholder(tf.float32, [size]) for size in self._sizes]
        applied, refreshed = [], []
        for k, (online, target) in enumerate(zip(self._online, self._target, strict=True)):
            with tf.device(online.device):
                applied.append(self._optimizer.apply(online, self._slots[k], self._updates[k], self._learning_rate))
                refreshed.append(target.assign(online.read_value(), read_value=False))
        self._counts = placeholder(tf.int64, [len(Counters._fields)])
        with tf.device(ledger.device):
            critical = tf.CriticalSection(name="counters_lock", shared_name="counters_lock")
            self._ticket = placeholder(tf.int64, [])
            self._counted = _fetch_and_add(ledger, critical, self._counts, self._ticket, worker, budget)
            self._counters = ledger.read_value()[0]
            # Counters before parameters, so that a staleness is never understated.
            with tf.control_dependencies([self._counters]):
                gate = tf.no_op()
            episodes = tf.queue.FIFOQueue(
                _MAX_QUEUED_EPISODES, [tf.float64], [[len(EpisodeReport._fields)]], shared_name="episodes"
            )
            self._episodes = placeholder(tf.float64, [None, len(EpisodeReport._fields)])
            self._report = episodes.enqueue_many(self._episodes)
            self._num_reported = episodes.size()
            self._num_taken = placeholder(tf.int32, [])
            self._take = episodes.dequeue_many(self._num_taken)
            # The ledger is initialised last: whoever sees them sees everything.
            self._initialized = tf.raw_ops.VarIsInitializedOp(resource=ledger.handle)
        with tf.control_dependencies([gate]):
            self._pull = [shard.read_value() for shard in self._online]
        self._pull_target = [shard.read_value() for shard in self._target]
        self._push = tf.group(applied)
        self._refresh = tf.group(refreshed)
        self._read_slots = [{name: slot.read_value() for name, slot in shard.items()} for shard in self._slots]
        self._assign: dict[str, tuple[tf.Tensor, Any]] = {}
        for var in [
            *self._online,
            *self._target,
            *(slot for shard in self._slots for slot in shard.values()),
            ledger,
        ]:
            value = placeholder(var.dtype, var.shape)
            with tf.device(var.device):
                self._assign[var.op.name] = (value, var.assign(value, read_value=False))

    def _run(self, fetches: Any, feed: dict[tf.Tensor, Any] | None = None) -> Any:
        """Runs one step. Raises RunError where a ps has lost its variables, TimeoutError where the step was lost.

        TensorFlow's runtime loses one now and then: one was seen that never came back, whatever deadline it had, and
        one that failed as if a living ps had ended.
        """
        with self._lock:
            call = self._calls.submit(self._session.run, fetches, feed)
            try:
                return call.result(self._patience)
            except tf.errors.FailedPreconditionError as error:
                raise RunError("a parameter server was restarted and has lost its variables") from error
            except concurrent.futures.TimeoutError as error:
                self._replace_session(f"no answer within {self._patience:.0f} s")
                raise TimeoutError from error
            except _CONNECTION_ERRORS as error:
                self._replace_session(f"{type(error).__name__}: {' '.join(str(error.message).split())[:200]}")
                raise TimeoutError from error

    def _replace_session(self, reason: str) -> None:
        """Leaves the session behind and goes on with another one. Raises RunError where a ps is gone."""
        missing = wait_until_reachable(self._spec.ps, 0.0, lambda: False)
        if missing:
            raise RunError(f"the parameter server at {', '.join(missing)} has ended ({reason})")
        self._warn(f"a step was lost between this worker and the parameter servers ({reason}); going on without it")
        self._session, self._calls = self._open_session(), Background("parameter-calls")

    def _run_again(self, fetches: Any, feed: dict[tf.Tensor, Any] | None = None) -> Any:
        """Runs one step that may be repeated, until it is through or the deadline has passed."""
        end = time.monotonic() + self._deadline
        while True:
            try:
                return self._run(fetches, feed)
            except TimeoutError as error:
                if time.monotonic() > end:
                    text = f"no answer from parameter servers {', '.join(self._spec.ps)} within {self._deadline:.0f} s"
                    raise RunError(text) from error

    def _count(self, counts: Counters, *others: Any, feed: dict[tf.Tensor, Any] | None = None) -> _Counted:
        """Adds `counts` exactly once, in the same step as `others`, which a lost step may or may not have done."""
        with self._lock:  # tickets must arrive in the order in which they are drawn
            counting = {self._counts: np.array(counts, np.int64), self._ticket: next(self._tickets)}
            try:
                rows, granted = self._run([*self._counted, *others], counting | (feed or {}))[:2]
            except TimeoutError:
                rows, granted = self._run_again([*self._counted], counting)
        return _Counted(Counters(*map(int, rows[0])), Counters(*map(int, rows[1])), int(granted))

    def _split(self, flat: np.ndarray) -> list[np.ndarray]:
        return [flat[start:end] for start, end in zip(self._bounds, self._bounds[1:], strict=False)]

    def is_initialized(self) -> bool:
        """Whether the chief has set all variables."""
        return bool(self._run_again(self._initialized))

    def wait_until_initialized(self, deadline: float, should_stop: Callable[[], bool]) -> None:
        """Blocks until the chief has initialised or restored. Raises RunError after `deadline` seconds."""
        end = time.monotonic() + deadline
        while not self.is_initialized():
            if should_stop():
                return
            if time.monotonic() > end:
                raise RunError(f"worker 0, the chief, has not initialised the network within {deadline:.0f} s")
            time.sleep(0.1)

    def initialize(self, online: np.ndarray) -> None:
        slots = self._optimizer.initial_slots(self.num_parameters)
        state = {f"slot/{name}": value for name, value in slots.items()}
        self.restore({"online": online, "target": online, "counters": np.array(Counters(), np.int64)} | state)

    def pull(self) -> Pulled:
        counters, *shards = self._run_again([self._counters, *self._pull])
        return Pulled(np.concatenate(shards), Counters(*map(int, counters)))

    def pull_target(self) -> np.ndarray:
        return np.concatenate(self._run_again(self._pull_target))

    def push(self, update: np.ndarray, learning_rate: float, counts: Counters) -> Counters:
        feed = dict(zip(self._updates, self._split(update), strict=True))
        return self._count(counts, self._push, feed=feed | {self._learning_rate: learning_rate}).before

    def refresh_target(self) -> None:
        self._run_again(self._refresh)
        self.add_counts(Counters(target_refreshes=1))

    def claim_steps(self, wanted: int, counts: Counters) -> tuple[int, Counters]:
        if wanted and counts.claimed_steps:  # what is given back comes first, and may be granted again
            self.add_counts(counts)
            counts = Counters()
        counted = self._count(counts._replace(claimed_steps=wanted + counts.claimed_steps))
        return max(counted.granted, 0), counted.after

    def add_counts(self, counts: Counters) -> Counters:
        return self.claim_steps(0, counts)[1]

    def report_episodes(self, episodes: list[EpisodeReport]) -> None:
        if episodes:
            with contextlib.suppress(TimeoutError):  # sent again, they might be there twice
                self._run(self._report, {self._episodes: np.array(episodes, np.float64)})

    def take_episodes(self) -> list[EpisodeReport]:
        count = self._run_again(self._num_reported)
        if not count:
            return []
        try:
            rows = self._run(self._take, {self._num_taken: count})
        except TimeoutError:
            return []
        return [EpisodeReport(int(row[0]), float(row[1]), int(row[2]), int(row[3]), float(row[4])) for row in rows]

    def state(self) -> dict[str, np.ndarray]:
        fetches = [self._counters, self._pull, self._pull_target, self._read_slots]
        counters, online, target, slots = self._run_again(fetches)
        state = {"online": np.concatenate(online), "target": np.concatenate(target), "counters": counters}
        for name, value in self._optimizer.initial_slots(self.num_parameters).items():
            shards = [shard[name] for shard in slots]
            state[f"slot/{name}"] = np.concatenate(shards) if value.shape == (self.num_parameters,) else shards[0]
        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        check_state(state, self.num_parameters, self._optimizer)
        values: dict[str, np.ndarray] = {}
        for k in range(len(self._sizes)):
            values[f"online_{k}"] = self._split(state["online"])[k]
            values[f"target_{k}"] = self._split(state["target"])[k]
            for name in self._slots[k]:
                value = state[f"slot/{name}"]
                values[f"{name}_{k}"] = self._split(value)[k] if len(value) == self.num_parameters else value
        self._set(values)
        ledger = np.zeros(self._assign["ledger_0"][0].shape, np.int64)
        ledger[0] = state["counters"]
        self._set({"ledger_0": ledger})

    def _set(self, values: Mapping[str, np.ndarray]) -> None:
        assigned = {name: self._assign[name] for name in values}
        feed = {placeholder: values[name] for name, (placeholder, _) in assigned.items()}
        self._run_again([operation for _, operation in assigned.values()], feed)

    def close(self) -> None:
        """Ends the session; the variables stay on the parameter servers."""
        self._calls.close()
        self._session.close()
