"""Rollouts: T steps of N environments, learned from a few times and then forgotten."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from async_dqn.data.experience import Evaluate, Outputs, Step
from async_dqn.data.recurrent_state import HEAD
from async_dqn.data.replay import Replay
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.nn.aligned import aligned_empty

_STEPS = ("stacked", "action", "reward", "terminated", "truncated")  # of a rollout and of a step
_FOLLOWING = "rollout/following/"


def required_bytes(length: int, num_envs: int, spec: EnvironmentSpec) -> int:
    """What the observations of a rollout take of memory, which is nearly all that it takes."""
    return length * num_envs * spec.stack * math.prod(spec.observation_shape) * spec.observation_dtype.itemsize


class Rollout(NamedTuple):
    """What happened in T steps of N environments."""

    stacked: np.ndarray  # [T, N, S, ...]
    action: np.ndarray  # [T, N] int32, or [T, N, D] float32
    reward: np.ndarray  # [T, N] float32
    terminated: np.ndarray  # [T, N] bool
    truncated: np.ndarray  # [T, N] bool
    outputs: Outputs  # {head: [T, N, ...]} of the networks, on which the actions were chosen
    next_outputs: Outputs  # the same on what each step led to, by the parameters at the first draw
    last: np.ndarray  # [N, S, ...], what the last step led to
    cut: dict[tuple[int, int], np.ndarray]  # (t, n) -> [S, ...], what a truncated step led to
    void: np.ndarray  # [T, N] bool, whether a step was taken back
    recurrent_state: np.ndarray  # [N, M] float32, what was remembered before the first step
    global_step: int  # agent steps of all workers when the first minibatch of it is drawn

    def following(self, times: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """The stacks [K, S, ...] that steps t of environments n led to, with t in `times` [K] and n in `envs` [K].

        What a terminated step led to has no meaning.
        """
        found = self.stacked[(times + 1) % len(self.stacked), envs]
        is_last = times == len(self.stacked) - 1
        found[is_last] = self.last[envs[is_last]]
        for (time, env), stack in self.cut.items():
            found[(times == time) & (envs == env)] = stack
        return found

    def ends(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps whose next one is not in it, the truncated and the last ones: times, environments, and what followed.

        [K] and [K] int64, and stacks [K, S, ...].
        """
        places = [*self.cut, *((len(self.reward) - 1, n) for n in range(len(self.last)))]
        times, envs = np.array(places).T
        return times, envs, np.stack([*self.cut.values(), *self.last])


def flat(column: np.ndarray) -> np.ndarray:
    """[T, N, ...] -> [T * N, ...]"""
    return column.reshape(-1, *column.shape[2:])


class RolloutExperience:
    """Minibatches of rollouts: each rollout is prepared once, then gone through `epochs` times in random order.

    Where a minibatch is the whole rollout, it has the steps in order, time before environment.
    A step that `truncate` takes back keeps its place in the rollout, with a reward of 0, and is never drawn; then
    there is no such order.

    With an `overlap` the last steps of a rollout are the first ones of the next, for an algorithm that has to know what
    happened after the steps that it learns from.

    For an agent with a recurrent state, what is drawn are whole rollouts of single environments, with the steps that
    were taken back among them.

    Args:
      spec: of the environments.
      num_envs: N.
      length: T, at least 1.
      prepare: rollout -> a named tuple of arrays, with what is fixed for as long as it is learned from. They are
        [(T - overlap) * N, ...], a row for each step that is learned from; with a recurrent state [N, ...]. Of
        terminated steps `next_outputs` have no meaning.
      evaluate: the networks' outputs on stacked observations, for what lies after the last step.
      looks_ahead: whether `prepare` reads `next_outputs`.
      epochs: how often each step of a rollout is learned from.
      batch_size: B. The last minibatch of an epoch is filled up with steps of its beginning. None: a whole rollout.
      overlap: steps, less than T.
      recurrent_size: M, of the agent. With a recurrent state, B counts environments, and there is no overlap.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        *,
        num_envs: int,
        length: int,
        prepare: Callable[[Rollout], Any],
        evaluate: Evaluate,
        looks_ahead: bool = True,
        epochs: int = 1,
        batch_size: int | None = None,
        overlap: int = 0,
        recurrent_size: int = 0,
    ):
        self.ring: Replay | None = None
        shape = (length, num_envs)
        self._num_rows = num_envs if recurrent_size else (length - overlap) * num_envs
        if batch_size is None:
            batch_size = self._num_rows
        if not 1 <= batch_size <= self._num_rows:
            rows = (
                f"{num_envs} environments" if recurrent_size else f"{length - overlap} x {num_envs} steps of a rollout"
            )
            raise ValueError(f"batch_size {batch_size} must be 1 to the {rows}")
        if recurrent_size and overlap:
            raise ValueError(f"with a recurrent state the overlap must be 0, not {overlap}")
        self._epochs, self._prepare, self._evaluate, self._overlap = epochs, prepare, evaluate, overlap
        self._looks_ahead = looks_ahead
        stacked = np.zeros((*shape, spec.stack, *spec.observation_shape), spec.observation_dtype)
        recurrent_state = np.zeros((num_envs, recurrent_size), np.float32)
        outputs = evaluate(stacked[0], recurrent_state) if recurrent_size else evaluate(stacked[0])
        self._rollout = Rollout(
            stacked=stacked,
            action=np.zeros((*shape, *spec.action_shape), spec.action_dtype),
            reward=np.zeros(shape, np.float32),
            terminated=np.zeros(shape, bool),
            truncated=np.zeros(shape, bool),
            outputs={name: np.zeros((*shape, *one.shape[1:]), one.dtype) for name, one in outputs.items()},
            next_outputs={},
            last=np.zeros_like(stacked[0]),
            cut={},
            void=np.zeros(shape, bool),
            recurrent_state=recurrent_state,
            global_step=0,
        )
        # Those of its arrays that have a row for each step, by their names in `state`.
        self._arrays = {f"rollout/{name}": getattr(self._rollout, name) for name in (*_STEPS, "void")}
        self._arrays |= {f"rollout/outputs/{name}": one for name, one in self._rollout.outputs.items()}
        self._max_length, self._length = length, 0
        self._prepared: Any = None
        self._order = np.empty(0, np.int64)  # of what is still to be learned from
        self._per_epoch = -(-self._num_rows // batch_size)
        columns = prepare(self._rollout._replace(next_outputs=self._rollout.outputs))
        self.batch = type(columns)(*(aligned_empty((batch_size, *one.shape[1:]), one.dtype) for one in columns))
        self._drawn = 0

    def add(self, step: Step, num_steps: int) -> None:
        del num_steps  # of the last step of a run some may not count; nothing is learned from it
        if self._length == self._max_length:
            self._begin(self._overlap)
        rollout, t = self._rollout, self._length
        if t == 0 and rollout.recurrent_state.size:
            rollout.recurrent_state[:] = step.recurrent_state
        for name in _STEPS:
            getattr(rollout, name)[t] = getattr(step, name)
        for name, one in rollout.outputs.items():
            one[t] = step.outputs[name]
        rollout.void[t] = False
        rollout.last[:, :-1], rollout.last[:, -1] = step.stacked[:, 1:], step.next_observation
        for n in np.flatnonzero(step.truncated):
            rollout.cut[t, int(n)] = rollout.last[n].copy()
        self._length += 1

    def _begin(self, kept: int = 0) -> None:
        """Begins a rollout with the last steps of the one before."""
        shift = self._max_length - kept
        for one in self._arrays.values():
            one[:kept] = one[shift:]
        cut = {(t - shift, n): stack for (t, n), stack in self._rollout.cut.items() if t >= shift}
        self._rollout = self._rollout._replace(cut=cut, next_outputs={})
        self._length, self._drawn, self._prepared = kept, 0, None

    def due(self) -> int:
        is_full = self._length == self._max_length and not self._void_rows().all()
        return self._epochs * self._per_epoch - self._drawn if is_full else 0

    def _void_rows(self) -> np.ndarray:
        """Which of the steps that are learned from were taken back: [T - overlap, N] bool."""
        return self._rollout.void[: self._max_length - self._overlap]

    def draw(self, rng: np.random.Generator, step: int) -> None:
        if self._prepared is None:
            if not self._rollout.next_outputs:
                next_outputs = self._next_outputs() if self._looks_ahead else {}
                self._rollout = self._rollout._replace(next_outputs=next_outputs, global_step=step)
            self._prepared = self._prepare(self._rollout)
        is_whole = self._rollout.recurrent_state.size or not self._void_rows().any()
        if self._per_epoch == 1 and is_whole:  # the sums over all steps are the same in any order
            for column, values in zip(self.batch, self._prepared, strict=True):
                np.copyto(column, values)
        else:
            self._draw_part(rng)
        self._drawn += 1

    def _draw_part(self, rng: np.random.Generator) -> None:
        place = self._drawn % self._per_epoch
        if place == 0 or not self._order.size:  # none was saved where a rollout was one minibatch
            rows = self._num_rows if self._rollout.recurrent_state.size else np.flatnonzero(~self._void_rows())
            self._order = rng.permutation(rows)
        size = len(self.batch[0])
        chosen = np.resize(self._order, self._per_epoch * size)[place * size : (place + 1) * size]
        for column, values in zip(self.batch, self._prepared, strict=True):
            np.take(values, chosen, axis=0, out=column, mode="clip")

    def feedback(self, per_item: np.ndarray) -> None:
        """Nothing here depends on it."""

    def _next_outputs(self) -> dict[str, np.ndarray]:
        """The outputs one step later, which are the next step's but after a truncation and at the end."""
        rollout = self._rollout
        times, envs, stacked = rollout.ends()
        recurrent_state = [rollout.outputs[HEAD][times, envs]] if HEAD in rollout.outputs else []  # after the step
        found = self._evaluate(stacked, *recurrent_state)
        following: dict[str, np.ndarray] = {}
        for name, one in rollout.outputs.items():
            if name == HEAD:  # of a step that is not taken
                continue
            following[name] = np.concatenate([one[1:], one[-1:]])
            following[name][times, envs] = found[name]
        return following

    def truncate(self, envs: np.ndarray | None = None) -> None:
        if envs is None:
            self._begin()
            return
        rollout, t = self._rollout, self._length - 1
        rollout.void[t, envs], rollout.reward[t, envs] = True, 0
        rollout.terminated[t, envs], rollout.truncated[t, envs] = False, True
        for n in map(int, envs):
            rollout.cut[t, n] = rollout.stacked[t, n].copy()
            if t and not rollout.terminated[t - 1, n] and not rollout.truncated[t - 1, n]:
                rollout.truncated[t - 1, n], rollout.cut[t - 1, n] = True, rollout.cut[t, n]

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        rollout, length = self._rollout, self._length
        arrays = {name: one[:length].copy() for name, one in self._arrays.items()}
        arrays |= {f"rollout/{name}": getattr(rollout, name).copy() for name in ("last", "recurrent_state")}
        arrays |= {f"{_FOLLOWING}{name}": one for name, one in rollout.next_outputs.items()}
        arrays |= {"rollout/order": self._order}
        if rollout.cut:
            arrays |= {
                "rollout/cut": np.array(list(rollout.cut)),
                "rollout/cut_stacked": np.stack([*rollout.cut.values()]),
            }
        return arrays, {"length": length, "drawn": self._drawn, "global_step": rollout.global_step}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        self._begin()
        length = int(values["length"])
        if length > self._max_length or (values["drawn"] and length != self._max_length):
            return  # of longer rollouts, or whole and being learned from: this one begins anew
        for name, one in self._arrays.items():
            if arrays[name].shape != (length, *one.shape[1:]):
                raise ValueError(f"the saved {name} has the shape {arrays[name].shape}")
            one[:length] = arrays[name]
        self._rollout.last[:] = arrays["rollout/last"]
        if self._rollout.recurrent_state.size:
            self._rollout.recurrent_state[:] = arrays["rollout/recurrent_state"]
        self._order = arrays["rollout/order"]
        cut = zip(arrays.get("rollout/cut", ()), arrays.get("rollout/cut_stacked", ()), strict=True)
        self._rollout = self._rollout._replace(
            next_outputs={
                name.removeprefix(_FOLLOWING): one for name, one in arrays.items() if name.startswith(_FOLLOWING)
            },
            cut={(int(t), int(n)): stack for (t, n), stack in cut},
            global_step=int(values["global_step"]),
        )
        self._length = length
        most = self._epochs * self._per_epoch  # there may have been more of them when it was saved
        self._drawn = min(int(values["drawn"]), most)

    def check_valid(self) -> None:
        """Assert every invariant."""
        rollout, length = self._rollout, self._length
        assert 0 <= length <= self._max_length, "the length is wrong"
        assert self.due() >= 0, "more was drawn than is due"
        cut = {(int(t), int(n)) for t, n in np.argwhere(rollout.truncated[:length])}
        assert cut == rollout.cut.keys(), "a truncated step lacks what it led to"
        assert not (rollout.void & ~rollout.truncated)[:length].any(), "an episode goes on after a void step"
