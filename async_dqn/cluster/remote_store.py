"""The parameter store on parameter servers: `ParameterStore` over TensorFlow's graph-mode runtime."""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from async_dqn.base.errors import Outage, RunError, UserError
from async_dqn.cluster.channel import Channel, Outages, Step
from async_dqn.cluster.ledger import Ledger, Membership, parse
from async_dqn.cluster.parameter_graph import ParameterGraph
from async_dqn.cluster.patient_session import LostStep, PatientSession, patience_within, run_again
from async_dqn.cluster.saved_state import copy_state, read_state, write_state
from async_dqn.cluster.segments import Segments, SharedSegments
from async_dqn.cluster.spec import ClusterSpec, wait_until_reachable
from async_dqn.nn.aligned import aligned_empty
from async_dqn.nn.module import Module
from async_dqn.store.base import (
    Counters,
    EpisodeReport,
    MemberState,
    ParameterStore,
    Pulled,
    Standing,
    Update,
    WorkerStatus,
    check_state,
    episode_report,
)

_PATIENCE = 15.0  # seconds that a report of games may take
_REMEMBERED_EPISODES = 1_000  # by which those that are sent again are known


def new_token() -> int:
    """Says which process something belongs to: 62 random bits, never 0."""
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


class RemoteParameterStore(ParameterStore):
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
      wire_dtype: what updates and pulled parameters are sent in: float32 or bfloat16. Targets are always float32, as
        modules are that are not trained.
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
        self._worker, self._token, self._spec = worker, token, spec
        self._deadline, self._should_stop = deadline, should_stop
        self.membership = Membership(0, 0)  # of this process, once it has joined
        self._nodes = nodes = self._make_graph(
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
        self._outages = Outages()

        def channel(counted: Any, plain: Step) -> Channel:
            return Channel(
                PatientSession(target, nodes.graph, session_config, spec.ps, patience_within(deadline), should_stop),
                self._outages,
                nodes,
                counted,
                plain,
                deadline=deadline,
                warn=warn,
                explain_refusal=self._explain_refusal,
                release=self._release,
            )

        self._counts = channel(nodes.count, (nodes.refreshed, {}))
        self._pushes = channel(nodes.count_push, (nodes.pushed, self._by_sockets({}, 0)))
        self._segments = SharedSegments(
            nodes.sizes, self._reach, warn, is_allowed=may_share_memory and wire_dtype == "float32"
        )
        self._exchanging = threading.RLock()  # one round trip at a time uses the segments
        self.run_id = 0  # the chief's to set, before it initialises or restores
        self.settings_id = 0  # of what all workers must have in common; 0: any will do
        self._starts: list[int] = []  # of each worker, as last seen: for the ledger when it is set anew
        self._taken: list[EpisodeReport] = []  # the last ones

    def _make_graph(self, *arguments: Any, **options: Any) -> ParameterGraph:
        return ParameterGraph(*arguments, **options)

    def _explain_refusal(self) -> None:
        """Raises Outage where everyone has to join again, RunError where only this worker is no longer the member."""
        ledger = self.read_ledger()
        if ledger.generation != self.membership.generation:
            raise self._outages.begin(Outage("worker 0 has restored the parameters"))
        state = ledger.members[self._worker].state
        reason = (
            "another process has taken its place"
            if state is MemberState.ACTIVE
            else "it was silent for longer than --lease"
        )
        raise RunError(f"worker {self._worker}: {reason} while it stood still; the run has gone on without it")

    def _release(self, hold: int) -> None:
        self._counts.run_again(self._nodes.release, {self._nodes.hold_id: hold})

    # Who takes part.

    def is_ready(self) -> bool:
        """Whether the chief has set all variables, and no restore is under way.

        Raises UserError where it has other settings than this worker.
        """
        *are_set, has_ledger = self._counts.run_again(self._nodes.initialized)
        if not has_ledger:
            return False
        ledger = self.read_ledger()  # before all else is there: with other settings it may never be
        if self.settings_id and ledger.settings_id not in (0, self.settings_id):
            raise UserError(
                f"worker {self._worker}: its settings are not those that worker 0 has set the network up with; give "
                "all workers the same cluster and flags (what concerns a host alone, such as --gpus, may differ); "
                "worker 0 has its own in config.json"
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
        """Makes this process the member, whoever was it before; gives the ledger as it then stands.

        Args:
          is_start: this process has not been this worker before.
        """
        self._pushes.restart()
        self._counts.restart()
        nodes = self._nodes
        while True:
            known = self.read_ledger()
            if known.generation <= 0:
                raise Outage("the parameters are being restored")
            joins = known.members[self._worker].joins
            feed = {nodes.is_start: int(is_start), nodes.generation: known.generation, nodes.joins: joins}
            ledger = parse(self._counts.run_again(nodes.join, feed))
            member = ledger.members[self._worker]
            # If another process has joined between the two steps, this one is later all the same, and tries again.
            if (ledger.generation, member.joins, member.token) == (known.generation, joins + 1, self._token):
                self.membership = Membership(ledger.generation, member.joins)
                self._starts = [one.starts for one in ledger.members]
                return ledger

    def leave(self) -> None:
        """Ends the membership: this worker is done."""
        self._counts.run_again(self._nodes.leave)

    def reconnect(self, deadline: float, should_stop: Callable[[], bool]) -> bool:
        """Goes on after an outage, once every ps listens. Raises RunError where one does not after `deadline` s.

        Returns:
          Whether every ps listens; else it was told to stop before.
        """
        missing = wait_until_reachable(self._spec.ps, deadline, should_stop)
        if missing and not should_stop():
            raise RunError(
                f"no parameter server answered at {', '.join(missing)} within {deadline:.0f} s (--ps_deadline)"
            )
        self._pushes.renew()
        self._counts.renew()
        with self._exchanging:
            self._segments.drop()
        self._outages.end()
        return not missing

    def settle(self) -> bool:
        """After `reconnect`: sends counts that may not have arrived. False where the parameters were restored since."""
        if self.read_ledger().generation != self.membership.generation:
            return False
        self._pushes.settle()
        unheard_of = self._counts.settle()
        if unheard_of:
            self.add_counts(Counters(claimed_steps=-unheard_of))
        return True

    def read_ledger(self) -> Ledger:
        """Counters and members."""
        return self._parse(self._counts.run_again(self._nodes.ledger))

    def _parse(self, rows: np.ndarray) -> Ledger:
        ledger = parse(rows)
        if ledger.generation > 0:
            self._starts = [member.starts for member in ledger.members]
        return ledger

    def check(self) -> Standing:
        initialized, rows = self._counts.run_again([self._nodes.initialized, self._nodes.ledger])
        if not all(initialized):
            raise self._outages.begin(Outage("a parameter server was restarted and has lost its variables"))
        ledger = self._parse(rows)
        if (ledger.generation, ledger.members[self._worker].token) != (self.membership.generation, self._token):
            self._explain_refusal()
        workers = [WorkerStatus(one.state.name.lower(), one.starts, one.counters) for one in ledger.members]
        return Standing(ledger.counters, workers)

    # Parameters.

    def pull(self) -> Pulled:
        counters, shards = self._pushes.run_again([self._nodes.counters, self._nodes.pull])
        return Pulled({name: _join(one) for name, one in shards.items()}, Counters(*map(int, counters)))

    def pull_target(self) -> dict[str, np.ndarray]:
        self._counts.look((self._nodes.refreshed, {}))  # the ledger may have counted a refresh that is still to be made
        shards = self._pushes.run_again(self._nodes.read_target)
        return {name: _join(one) for name, one in shards.items()}

    def push(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> Counters:
        return self._pushes.send(counts, (self._nodes.pushed, self._by_sockets(updates, computed_on)))[0].before

    def push_pull(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> tuple[Counters, Pulled]:
        with self._exchanging:
            return self._push_pull(updates, counts, computed_on)

    def _push_pull(self, updates: Mapping[str, Update], counts: Counters, computed_on: int) -> tuple[Counters, Pulled]:
        nodes = self._nodes
        feed = self._by_sockets(updates, computed_on)
        segments, near = self._shared()
        operations = [(nodes.exchanged if k in near else nodes.pushed)[k] for k in range(self._spec.num_ps)]

        def again() -> Step:
            self._drop(near)
            return (nodes.pushed, self._pulls(updates, near)), feed

        step = (operations, self._pulls(updates, near)), self._by_memory(segments, near, feed)
        answer, (_, found) = self._pushes.send(counts, step, again)
        return answer.before, Pulled(self._found(found, segments, near), answer.after)

    def _shared(self) -> tuple[Segments, list[int]]:
        """The segments, and the ps that share them."""
        segments = self._segments.get()
        return segments, [k for k, segment in enumerate(segments[self._nodes.names[0]]) if segment]

    def _drop(self, near: list[int]) -> None:
        """From now on no ps shares memory: a step that was lost may still be at work there."""
        near.clear()
        self._segments.drop()

    def _pulls(self, names: Iterable[str], near: list[int]) -> dict[str, list[tf.Tensor]]:
        """What is fetched to pull these modules, each tensor from one ps."""
        nodes = self._nodes
        return {
            name: [(nodes.given if k in near else nodes.pulled)[name][k] for k in range(self._spec.num_ps)]
            for name in names
        }

    def _found(self, pulled: Mapping[str, Sequence[Any]], segments: Segments, near: list[int]) -> dict[str, np.ndarray]:
        """The flat vectors, of what these gave."""
        online = {}
        for name, one in pulled.items():
            shards = list(one)
            for k in near:
                segment = segments[name][k]
                assert segment is not None
                shards[k] = segment.pulled[shards[k]]
            online[name] = _join(shards)
        return online

    def _by_sockets(self, updates: Mapping[str, Update], computed_on: int) -> dict[tf.Tensor, Any]:
        """What is fed to push updates, each module's cut into shards."""
        nodes = self._nodes
        feed: dict[tf.Tensor, Any] = {
            nodes.rates: [updates[name].rate if name in updates else 0.0 for name in nodes.names],
            nodes.computed_on: computed_on,
        }
        for name, sizes in nodes.sizes.items():
            if name in updates:
                shards = np.split(updates[name].value, np.cumsum(sizes)[:-1])
            else:
                shards = [np.zeros(0, np.float32)] * len(sizes)
            for node, shard in zip(nodes.updates[name], shards, strict=True):
                feed[node] = shard.astype(node.dtype.as_numpy_dtype, copy=False)
        return feed

    def _by_memory(self, segments: Segments, near: list[int], feed: dict[tf.Tensor, Any]) -> dict[tf.Tensor, Any]:
        """The same with the updates for some shards in segments, where this writes them."""
        nodes, feed = self._nodes, dict(feed)
        for k in near:
            for name in nodes.names:
                segment = segments[name][k]
                assert segment is not None
                update = feed.pop(nodes.updates[name][k])
                feed[nodes.segments[name][k]] = segment.address if len(update) else ""
                feed[nodes.buffers[name][k]] = segment.put(update) if len(update) else 0
        return feed

    def _reach(self, addresses: dict[str, list[str]]) -> Any:
        nodes = self._nodes
        feed = {
            node: address
            for name, one in addresses.items()
            for node, address in zip(nodes.segments[name], one, strict=True)
        }
        return self._pushes.run_again(nodes.reaches, feed)

    # Counts.

    def claim_steps(self, wanted: int, counts: Counters) -> tuple[int, Counters]:
        if wanted and counts.claimed_steps:  # what is given back comes first, and may be granted again
            self.add_counts(counts)
            counts = Counters()
        counts = counts._replace(claimed_steps=wanted + counts.claimed_steps)
        answer, _ = self._counts.send(counts, (self._nodes.refreshed, {}))
        return answer.granted, answer.after

    def report_episodes(self, episodes: list[EpisodeReport]) -> None:
        """Sends them again where no answer came: who takes them drops what is there twice."""
        if episodes:
            feed = {self._nodes.episodes: np.array(episodes, np.float64)}
            with contextlib.suppress(LostStep):  # there is no room, as there is no chief: training is worth more
                run_again(lambda: self._counts.run(self._nodes.report, feed), _PATIENCE)

    def take_episodes(self) -> list[EpisodeReport]:
        try:
            rows = self._counts.run(self._nodes.take)
        except LostStep:
            return []
        reports = [report for report in dict.fromkeys(map(episode_report, rows)) if report not in self._taken]
        self._taken = [*self._taken, *reports][-_REMEMBERED_EPISODES:]
        return reports

    # Saving and restoring.

    def state(self) -> dict[str, np.ndarray]:
        return read_state(self._counts, self._nodes, self.modules, hold=new_token(), deadline=self._deadline)

    def copy(self, *, whole: bool) -> dict[str, np.ndarray] | None:
        """As `state`, but nobody is held up. None where others were at work meanwhile: it may be tried again.

        Args:
          whole: targets and slots as well.
        """
        return copy_state(self._counts, self._nodes, self.modules, whole=whole)

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        check_state(state, self.modules)
        write_state(
            self._counts,
            self._nodes,
            state,
            starts=self._starts,
            run_id=self.run_id,
            settings_id=self.settings_id,
            last_generation=self.membership.generation,
        )

    def close(self) -> None:
        """Ends the threads; the variables stay on the parameter servers."""
        self._pushes.session.close()
        self._counts.session.close()
