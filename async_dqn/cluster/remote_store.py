"""The parameter store on parameter servers: `ParameterStore` over TensorFlow's graph-mode runtime."""

import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from async_dqn.base.errors import Outage, RunError, UserError
from async_dqn.cluster import shared_memory
from async_dqn.cluster.ledger import Ledger, SeatState, initial_rows, parse
from async_dqn.cluster.parameter_graph import ParameterGraph
from async_dqn.cluster.patient_session import LostStep, PatientSession, run_again
from async_dqn.cluster.spec import ClusterSpec, wait_until_reachable
from async_dqn.nn.aligned import aligned_empty
from async_dqn.nn.module import Module
from async_dqn.store.base import (
    Counters,
    EpisodeReport,
    Pulled,
    Standing,
    Update,
    WorkerStatus,
    check_state,
    counter_state,
    initial_state,
    saved_counters,
)

_PATIENCE = 15.0  # seconds after which a step counts as lost


def new_token() -> int:
    """Says which process, run or restore something belongs to: 62 random bits, never 0."""
    return secrets.randbits(62) | 1


def _join(shards: list[np.ndarray]) -> np.ndarray:
    """The flat vector in float32, in memory that a tensor can share."""
    if len(shards) == 1 and shards[0].dtype == np.float32:
        return shards[0]
    flat = aligned_empty((sum(map(len, shards)),), np.float32)
    begin = 0
    for shard in shards:
        flat[begin : begin + len(shard)] = shard
        begin += len(shard)
    return flat


class _Counted(NamedTuple):
    before: Counters
    after: Counters
    granted: int
    updates_before: int  # those of the call that was the first to arrive
    is_seated: bool


class RemoteParameterStore:
    """The shared global networks, seen from one worker.

    Args:
      target: the worker's own server, `server.target`.
      session_config: the same ConfigProto that the server was built with.
      strategy: this worker's `ParameterServerStrategy`; it places the variables on the parameter servers.
      worker: this worker's task index.
      token: this process's, from `new_token`.
      modules: the networks, with the optimizers that the parameter servers apply pushes with.
      target_period: minibatches between two refreshes of the targets; 0: there are none.
      max_staleness: updates that are older are dropped; 0: none.
      wire_dtype: what updates and pulled parameters travel in: float32 or bfloat16. Targets are always float32.
      may_share_memory: whether `push_pull` goes through memory shared with each ps that is on this host, if the wire
        carries float32.
      deadline: seconds that anything on a ps may take before `RunError` is raised.
      warn: takes a line on what went wrong and was mended, and on which ps share no memory though they may.
      should_stop: whether this process is to end; then there is no waiting for what does not answer.
    """

    def __init__(
        self,
        *,
        spec: ClusterSpec,
        target: str,
        session_config: tf.compat.v1.ConfigProto,
        strategy: Any,
        worker: int,
        token: int,
        modules: Sequence[Module],
        total_steps: int,
        target_period: int,
        max_staleness: int,
        deadline: float,
        warn: Callable[[str], None],
        wire_dtype: str = "float32",
        may_share_memory: bool = True,
        should_stop: Callable[[], bool] = lambda: False,
    ):
        self.modules = modules
        self.total_steps = total_steps
        self._worker, self._token, self._max_staleness = worker, token, max_staleness
        self._deadline = deadline
        self._spec = spec
        self._nodes = ParameterGraph(
            spec,
            strategy,
            worker=worker,
            token=token,
            modules=modules,
            budget=total_steps,
            target_period=target_period,
            max_staleness=max_staleness,
            wire_dtype=wire_dtype,
        )
        self._wire_dtype = tf.as_dtype(wire_dtype).as_numpy_dtype
        self._may_share_memory = may_share_memory and wire_dtype == "float32"
        # By module, then one for each ps; None: not asked for since they were dropped.
        self._segments: dict[str, list[shared_memory.Segment | None]] | None = None
        self._warn = warn
        self._lock = threading.RLock()
        self._tickets = itertools.count(1)
        self._unsettled: dict[int, Counters] = {}  # by ticket: counts that may or may not have arrived
        self._outage: Outage | None = None
        self._generation = 0
        self.run_id = 0  # the chief's to set, before it initialises or restores
        self.settings_id = 0  # of what all workers must have in common; 0: any will do
        self._starts: list[int] = []  # of each worker, as last seen: for the ledger when it is set anew
        self._session = PatientSession(
            target, self._nodes.graph, session_config, spec.ps, min(_PATIENCE, deadline), should_stop
        )

    def _run(self, fetches: Any, feed: dict[tf.Tensor, Any] | None = None) -> Any:
        """Runs one step. Raises Outage, at once from then on until `reconnect`, and LostStep."""
        with self._lock:
            if self._outage:
                raise self._outage
            try:
                return self._session.run(fetches, feed)
            except Outage as outage:
                self._outage = outage
                raise
            except LostStep as lost:
                self._warn(f"a step to the parameter servers was lost ({lost}); going on without it")
                raise

    def _run_again(self, fetches: Any, feed: dict[tf.Tensor, Any] | None = None) -> Any:
        """Runs one step that may be repeated, until it is through or the deadline has passed."""
        try:
            return run_again(lambda: self._run(fetches, feed), self._deadline)
        except LostStep as error:
            text = f"no answer from parameter servers {', '.join(self._spec.ps)} within {self._deadline:.0f} s"
            raise RunError(text) from error

    def _count(
        self, counts: Counters, *others: Any, feed: dict[tf.Tensor, Any] | None = None, computed_on: int = 0
    ) -> tuple[_Counted, list[Any]]:
        """Adds `counts` exactly once, in the same step as `others`, and gives what these were.

        A lost step may or may not have done the others, and nothing is known of them then.
        """
        with self._lock:  # tickets must arrive in the order in which they are drawn
            ticket = next(self._tickets)
            self._unsettled[ticket] = counts
            counting = {
                self._nodes.counts: np.array(counts, np.int64),
                self._nodes.ticket: ticket,
                self._nodes.computed_on: computed_on,
            }
            found: list[Any] = []
            try:
                values = self._run(
                    [*(self._nodes.counted if others else self._counting()), *others], counting | (feed or {})
                )
                counted, found = self._parse_count(values), values[len(self._nodes.counted) :] if others else []
            except LostStep:
                counted = self._parse_count(self._run_again(self._counting(), counting))
                counted = counted._replace(before=self._before(counted, counts, computed_on))
            if not counted.is_seated:
                self._explain_refusal()
            del self._unsettled[ticket]
        return counted, found

    def _counting(self) -> list[Any]:
        """What a step fetches that only counts: it makes the target refresh, too, that may be due by its counts."""
        return [*self._nodes.counted, *(nodes.refreshed for nodes in self._nodes.modules.values())]

    @staticmethod
    def _parse_count(values: list[Any]) -> _Counted:
        before, after, granted, updates_before, is_seated = values[:5]
        return _Counted(
            Counters(*map(int, before)), Counters(*map(int, after)), int(granted), int(updates_before), bool(is_seated)
        )

    def _before(self, counted: _Counted, counts: Counters, computed_on: int) -> Counters:
        """The counters before `counts` came in, where these may have come in with an earlier call."""
        if self._max_staleness and counted.updates_before - computed_on > self._max_staleness:
            counts = counts._replace(updates=0, dropped=counts.dropped + counts.updates)
        before = Counters(*(after - count for after, count in zip(counted.after, counts, strict=True)))
        return before._replace(
            updates=counted.updates_before,
            staleness_max=counted.before.staleness_max,
            stopped=counted.before.stopped,
        )

    def _explain_refusal(self) -> None:
        """Raises Outage where everyone has to join again, RunError where only this worker has lost its seat."""
        ledger = self.read_ledger()
        if ledger.generation != self._generation:
            self._outage = Outage("the parameters were restored from a checkpoint")
            raise self._outage
        state = ledger.seats[self._worker].state
        reason = "another process has taken its place" if state is SeatState.ACTIVE else "its lease ran out"
        raise RunError(f"worker {self._worker}: {reason} while it stood still; the run has gone on without it")

    def _split(self, module: str, flat: np.ndarray) -> list[np.ndarray]:
        return np.split(flat, np.cumsum(self._nodes.modules[module].sizes)[:-1])

    # Who takes part.

    def is_ready(self) -> bool:
        """Whether the chief has set all variables, and no restore is under way.

        Raises UserError where it has other settings than this worker.
        """
        *are_set, has_ledger = self._run_again(self._nodes.initialized)
        if not has_ledger:
            return False
        ledger = self.read_ledger()  # before all else is there: with other settings it may never be
        if self.settings_id and ledger.settings_id not in (0, self.settings_id):
            raise UserError(
                f"worker {self._worker}: its settings are not those that worker 0 has set the network up with; give "
                "all workers the same cluster and flags (what concerns a host alone, such as --gpus, may differ)"
            )
        return all(are_set) and ledger.generation > 0

    def wait_until_ready(self, deadline: float, should_stop: Callable[[], bool]) -> None:
        """Blocks until the chief has initialised or restored. Raises RunError after `deadline` seconds."""
        end = time.monotonic() + deadline
        while not self.is_ready():
            if should_stop():
                return
            if time.monotonic() > end:
                raise RunError(f"worker 0, the chief, has not initialised the network within {deadline:.0f} s")
            time.sleep(0.1)

    def join(self, *, is_start: bool = True) -> Ledger:
        """Takes this worker's seat, be it another process's; gives the ledger as it then stands.

        Args:
          is_start: this process has not had the seat before.
        """
        with self._lock:
            self._unsettled.clear()
            ledger = parse(self._run_again(self._nodes.join, {self._nodes.is_start: int(is_start)}))
            if ledger.seats[self._worker].token != self._token:
                raise Outage("the parameters are being restored")
            self._tickets = itertools.count(1)
            self._generation = ledger.generation
            self._starts = [seat.starts for seat in ledger.seats]
            return ledger

    def leave(self) -> None:
        """Gives up the seat: this worker is done."""
        self._run_again(self._nodes.leave)

    def reconnect(self, deadline: float, should_stop: Callable[[], bool]) -> None:
        """Goes on after an outage, once every ps listens. Raises RunError where one does not after `deadline` s."""
        missing = wait_until_reachable(self._spec.ps, deadline, should_stop)
        if missing and not should_stop():
            raise RunError(f"no parameter server answered at {', '.join(missing)} within {deadline:.0f} s")
        with self._lock:
            self._session.renew()
            self._unshare_memory()
            self._outage = None

    def settle(self) -> bool:
        """After `reconnect`: sends counts that may not have arrived. False where the parameters were restored since."""
        with self._lock:
            if self.read_ledger().generation != self._generation:
                return False
            unheard_of = 0  # steps granted to a call that never learned of it
            for ticket, counts in sorted(self._unsettled.items()):
                feed = {
                    self._nodes.counts: np.array(counts, np.int64),
                    self._nodes.ticket: ticket,
                    self._nodes.computed_on: 0,
                }
                counted = self._parse_count(self._run_again(self._counting(), feed))
                if not counted.is_seated:
                    self._explain_refusal()
                del self._unsettled[ticket]
                unheard_of += max(counted.granted, 0)
            if unheard_of:
                self.add_counts(Counters(claimed_steps=-unheard_of))
        return True

    def read_ledger(self) -> Ledger:
        """Counters and seats."""
        ledger = parse(self._run_again(self._nodes.ledger))
        if ledger.generation:
            self._starts = [seat.starts for seat in ledger.seats]
        return ledger

    def check(self) -> Standing:
        initialized, rows = self._run_again([self._nodes.initialized, self._nodes.ledger])
        if not all(initialized):
            with self._lock:
                self._outage = Outage("a parameter server was restarted and has lost its variables")
                raise self._outage
        ledger = parse(rows)
        if (ledger.generation, ledger.seats[self._worker].token) != (self._generation, self._token):
            self._explain_refusal()
        self._starts = [seat.starts for seat in ledger.seats]
        seats = [WorkerStatus(seat.state.name.lower(), seat.starts, seat.counters) for seat in ledger.seats]
        return Standing(ledger.counters, seats)

    def initialize(self, online: Mapping[str, np.ndarray]) -> None:
        self.restore(initial_state(online, self.modules))

    def pull(self) -> Pulled:
        nodes = self._nodes.modules
        counters, shards = self._run_again([self._nodes.counters, {name: one.pull for name, one in nodes.items()}])
        return Pulled({name: _join(one) for name, one in shards.items()}, Counters(*map(int, counters)))

    def pull_target(self) -> dict[str, np.ndarray]:
        nodes = self._nodes.modules
        shards = self._run_again({name: one.read_target for name, one in nodes.items() if one.target})
        return {name: _join(one) for name, one in shards.items()}

    def push(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> Counters:
        feed: dict[tf.Tensor, Any] = {}
        fetches = []
        for name, nodes in self._nodes.modules.items():
            if name in updates:
                feed |= self._updating(name, updates[name])
            fetches.append(nodes.pushed if name in updates else nodes.refreshed)
        counted, _ = self._count(counts, fetches, feed=feed, computed_on=computed_on)
        return counted.before

    def push_pull(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> tuple[Counters, Pulled]:
        with self._lock:
            segments = self._share_memory()
            feed: dict[tf.Tensor, Any] = {}
            pulls: dict[str, list[tf.Tensor]] = {}
            operations: list[Any] = []
            for name, nodes in self._nodes.modules.items():
                if name not in updates:
                    operations += nodes.refreshed
                    continue
                feed |= self._updating(name, updates[name])
                pulls[name] = list(nodes.pull_pushed)
                for k, segment in enumerate(segments[name]):
                    operations.append(nodes.exchanged[k] if segment else nodes.pushed[k])
                    if segment:
                        turn = segment.put(feed.pop(nodes.updates[k]))
                        feed |= {nodes.segments[k]: segment.address, nodes.turns[k]: turn}
                        pulls[name][k] = nodes.exchange[k]
            counted, found = self._count(counts, pulls, operations, feed=feed, computed_on=computed_on)
            if not found:
                self._unshare_memory()  # the step that was lost may still be at work there
                pulled = self.pull()
                return counted.before, pulled._replace(online={name: pulled.online[name] for name in updates})
            online = {
                name: _join(
                    [at.pulled[one] if at else one for at, one in zip(segments[name], found[0][name], strict=True)]
                )
                for name in updates
            }
            return counted.before, Pulled(online, counted.after)

    def _updating(self, module: str, update: Update) -> dict[tf.Tensor, Any]:
        nodes = self._nodes.modules[module]
        shards = self._split(module, update.value.astype(self._wire_dtype, copy=False))
        return dict(zip(nodes.updates, shards, strict=True)) | {nodes.rate: update.rate}

    def _share_memory(self) -> dict[str, list[shared_memory.Segment | None]]:
        """One for each module and ps, None where none is shared, be it for now."""
        if self._segments is None and self._may_share_memory:
            with contextlib.suppress(Outage):  # which is for the caller to meet, once what it counts is in the books
                self._segments = self._try_to_share()
        return self._segments or self._nothing_shared()

    def _nothing_shared(self) -> dict[str, list[shared_memory.Segment | None]]:
        return {name: [None] * self._spec.num_ps for name in self._nodes.modules}

    def _try_to_share(self) -> dict[str, list[shared_memory.Segment | None]]:
        modules = self._nodes.modules
        try:
            made = {name: [shared_memory.Segment(size) for size in nodes.sizes] for name, nodes in modules.items()}
        except OSError as error:
            self._warn(f"no memory is shared ({error.strerror}): parameters go over the network")
            return self._nothing_shared()
        feed = {
            node: segment.address
            for name, nodes in modules.items()
            for node, segment in zip(nodes.segments, made[name], strict=True)
        }
        found = self._run_again({name: nodes.reaches for name, nodes in modules.items()}, feed)
        far = sorted({k for reached in found.values() for k, is_reached in enumerate(reached) if not is_reached})
        if far:
            self._warn(f"no memory is shared with ps {', '.join(map(str, far))}: parameters go there over the network")
        return {
            name: [one if is_reached else None for one, is_reached in zip(made[name], found[name], strict=True)]
            for name in modules
        }

    def _unshare_memory(self) -> None:
        """Nobody finds the segments any more; the next that are shared are new ones."""
        for segment in itertools.chain(*(self._segments or {}).values()):
            if segment:
                segment.close()
        self._segments = None

    def claim_steps(self, wanted: int, counts: Counters) -> tuple[int, Counters]:
        if wanted and counts.claimed_steps:  # what is given back comes first, and may be granted again
            self.add_counts(counts)
            counts = Counters()
        counted, _ = self._count(counts._replace(claimed_steps=wanted + counts.claimed_steps))
        return max(counted.granted, 0), counted.after

    def add_counts(self, counts: Counters) -> Counters:
        return self.claim_steps(0, counts)[1]

    def report_episodes(self, episodes: list[EpisodeReport]) -> None:
        if episodes:
            with contextlib.suppress(LostStep):  # sent again, they might be there twice
                self._run(self._nodes.report, {self._nodes.episodes: np.array(episodes, np.float64)})

    def take_episodes(self) -> list[EpisodeReport]:
        try:
            rows = self._run(self._nodes.take)
        except LostStep:
            return []
        return [EpisodeReport(int(row[0]), float(row[1]), int(row[2]), int(row[3]), float(row[4])) for row in rows]

    def state(self) -> dict[str, np.ndarray]:
        modules = self._nodes.modules
        read = {name: [nodes.read_online, nodes.read_target, nodes.read_slots] for name, nodes in modules.items()}
        counters, shards = self._run_again([self._nodes.counters, read])
        state = counter_state(Counters(*map(int, counters)))
        for module in self.modules:
            online, target, slots = shards[module.name]
            state[f"{module.name}/online"] = np.concatenate(online)
            if module.has_target:
                state[f"{module.name}/target"] = np.concatenate(target)
            for name, value in module.optimizer.initial_slots(module.size).items():
                parts = [shard[name] for shard in slots]
                is_sharded = value.shape == (module.size,)
                state[f"{module.name}/slot/{name}"] = np.concatenate(parts) if is_sharded else parts[0]
        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        check_state(state, self.modules)
        feed: dict[tf.Tensor, Any] = {}
        operations = []
        for name, assignments in self._nodes.assign.items():
            module = name.partition("/")[0]
            is_sharded = np.shape(state[name]) == (sum(self._nodes.modules[module].sizes),)
            shards = self._split(module, state[name]) if is_sharded else [state[name]] * len(assignments)
            for (value, operation), shard in zip(assignments, shards, strict=True):
                feed[value] = shard
                operations.append(operation)
        # While generation is 0 nobody's counts or updates are taken, and nobody can join. Set last: who sees the
        # ledger sees everything.
        self._write_ledger(Counters(), generation=0)
        self._run_again(operations, feed)
        self._write_ledger(saved_counters(state), generation=new_token())

    def _write_ledger(self, counters: Counters, *, generation: int) -> None:
        num_workers = self._spec.num_workers
        rows = initial_rows(num_workers, counters, self.run_id, generation, self._starts, self.settings_id)
        self._run_again(self._nodes.set_ledger, {self._nodes.rows: rows})

    def close(self) -> None:
        """Ends the thread; the variables stay on the parameter servers."""
        self._session.close()
