"""Replay: one ring of single observations per environment; stacks and n-step returns are built on read."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from async_dqn.base.types import Transition
from async_dqn.nn.aligned import aligned_empty


class Slots(NamedTuple):
    """One slot per observation, in the order of time; a ring's are allocated as [N, C, ...], read as [N * C, ...]."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    ended: np.ndarray  # the action taken here ended the episode, so the next slot is `last`
    last: np.ndarray  # the final observation of an episode: no action is taken from it
    age: np.ndarray  # steps since the episode's start, at most S - 1


class _Cursors(NamedTuple):
    """Where each ring stands, [N]."""

    added: np.ndarray  # slots written since the beginning; slot number i lies at i % C
    next_age: np.ndarray


_FIELD_DTYPES = dict(action=np.int32, reward=np.float32, terminated=bool, ended=bool, last=bool, age=np.uint8)
_CURSOR_DTYPES = dict(added=np.int64, next_age=np.uint8)


class Replay:
    """A replay of n-step transitions of N environments that costs one stored observation a step.

    Each environment has a ring of C = capacity // N slots. A step takes one slot, the end of an episode one
    more for the final observation, which a truncated episode bootstraps from. Slots are numbered from the
    beginning of time, and `index` below is such a number. A slot is a valid start if an action was taken from
    it, the frames that it stacks are still in the ring, and so are the n slots after it or the episode's end.

    Args:
        num_envs: N.
        capacity: slots of all environments together.
        observation_shape: shape of one observation, `...` below.
        observation_dtype: type of one observation; minibatches have it too.
        stack: S, frames in one network input.
        n_step: steps n of a transition (Sutton 1988).
        discount: gamma.

    Raises:
        ValueError: if a number is out of range.
    """

    def __init__(
        self,
        *,
        num_envs: int,
        capacity: int,
        observation_shape: tuple[int, ...],
        observation_dtype: npt.DTypeLike,
        stack: int,
        n_step: int,
        discount: float,
    ) -> None:
        if num_envs < 1 or n_step < 1 or not 1 <= stack <= 255:
            raise ValueError(f"num_envs {num_envs} and n_step {n_step} must be at least 1, stack {stack} in 1 ... 255")
        if not 0 <= discount <= 1:
            raise ValueError(f"discount {discount} must be in [0, 1]")
        self.slots_per_env = capacity // num_envs  # C
        if self.slots_per_env <= stack + n_step + 1:
            raise ValueError(
                f"capacity {capacity} gives {self.slots_per_env} slots to each of {num_envs} environments; "
                f"stack {stack} and n_step {n_step} need at least {stack + n_step + 2} each, "
                f"so a capacity of {num_envs * (stack + n_step + 2)}"
            )
        self.num_envs, self.stack, self._n_step = num_envs, stack, n_step
        self.observation_shape, self.observation_dtype = tuple(observation_shape), np.dtype(observation_dtype)
        # Zeros, because the system commits their memory only as the ring fills.
        self._slots = Slots(
            np.zeros((num_envs, self.slots_per_env, *observation_shape), observation_dtype),
            **{name: np.zeros((num_envs, self.slots_per_env), dtype) for name, dtype in _FIELD_DTYPES.items()},
        )
        self._flat = Slots(*(array.reshape(-1, *array.shape[2:]) for array in self._slots))
        self._cursors = _Cursors(**{name: np.zeros(num_envs, d) for name, d in _CURSOR_DTYPES.items()})
        self._envs = np.arange(num_envs)
        self._back = np.arange(stack)[::-1]  # oldest frame first
        self._ahead = np.arange(n_step)
        self._discounts = float(discount) ** np.arange(n_step + 1)  # float64: powers stay exact to float32

    def add(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        next_observation: np.ndarray,
        envs: np.ndarray | None = None,
    ) -> None:
        """Add one step of every environment, or of `envs`, whose number is N below then.

        Args:
            observation: [N, ...], what was acted on.
            action: [N] integers.
            reward: [N] float.
            terminated: [N] bool; wins where both are set.
            truncated: [N] bool.
            next_observation: [N, ...], where that led; stored only where the episode ended.

        Raises:
            ValueError: if a shape or an observation's type does not fit.
        """
        envs = self._envs if envs is None else envs
        self._check_step(len(envs), observation, next_observation, action, reward, terminated, truncated)
        ended = np.logical_or(terminated, truncated)
        self._append(envs, observation, action, reward, terminated, ended, last=False)
        if ended.any():
            self._append(envs[ended], next_observation[ended], 0, 0, False, False, last=True)

    def truncate(self, envs: np.ndarray | None = None) -> None:
        """End every unfinished episode, or those of `envs`, at its newest observation, whose action is forgotten.

        For environments that start afresh, as after a restore: what they show next follows from nothing.
        It changes the newest two slots; nothing else ever changes a slot until it is overwritten.
        """
        envs = self._envs if envs is None else envs
        envs = envs[self._cursors.added[envs] > 0]
        newest = self._position(envs, self._cursors.added[envs] - 1)
        unfinished = ~self._flat.last[newest]
        envs, newest = envs[unfinished], newest[unfinished]
        before = self._position(envs, self._cursors.added[envs] - 2)
        same_episode = (self._cursors.added[envs] > 1) & ~self._flat.last[before]
        self._flat.ended[before[same_episode]] = True
        self._flat.last[newest] = True
        self._flat.action[newest] = self._flat.reward[newest] = 0
        self._cursors.next_age[envs] = 0

    def make_batch(self, batch_size: int) -> Transition:
        """Buffers for `sample(..., out=)`, which spare it two large arrays a minibatch; fit for `as_tensor`."""
        observations = self._slots.observation
        shape = (batch_size, self.stack, *observations.shape[2:])
        return Transition(
            s_tm1=aligned_empty(shape, observations.dtype),
            a_tm1=aligned_empty((batch_size,), np.int32),
            r_t=aligned_empty((batch_size,), np.float32),
            discount_t=aligned_empty((batch_size,), np.float32),
            s_t=aligned_empty(shape, observations.dtype),
        )

    def sample(self, batch_size: int, rng: np.random.Generator, out: Transition | None = None) -> Transition:
        """Draw B transitions, uniformly and independently, from all valid starts of all environments.

        Args:
            batch_size: B.
            rng: the only source of randomness.
            out: from `make_batch(B)`; filled and returned. The next call with it overwrites what it holds, so
                nothing may still read it then, a tensor that shares its memory included.

        Returns:
            s_tm1 and s_t [B, S, ...] in the stored type, a_tm1 [B] int32, r_t and discount_t [B] float32.

        Raises:
            ValueError: if there is no valid start.
        """
        return self.gather(*self.draw(batch_size, rng), self.make_batch(batch_size) if out is None else out)

    def draw(self, batch_size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The valid starts (env, index) that `sample` takes, each [B]."""
        ends = np.cumsum(np.minimum(self._cursors.added, self.slots_per_env))  # [N]

        def propose(count: int) -> tuple[np.ndarray, np.ndarray]:
            drawn = rng.integers(max(ends[-1], 1), size=count)
            env = np.minimum(np.searchsorted(ends, drawn, side="right"), self.num_envs - 1)
            return env, drawn - ends[env] + self._cursors.added[env]

        return self.accept(batch_size, propose)

    def accept(
        self, batch_size: int, propose: Callable[[int], tuple[np.ndarray, np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The first B valid starts (env, index) among those that are proposed, each [B].

        Args:
            propose: gives slots (env, index) in the ring, at most as many as asked for.

        Raises:
            ValueError: if there is no valid start.
        """
        starts = np.empty((2, 0), np.int64)  # rows: environment, index
        while (missing := batch_size - starts.shape[1]) > 0:
            # A few more than are missing make a second round rare; the first accepted ones are used.
            env, index = propose(missing + missing // 8 + 4)
            valid = self.is_valid(env, index)
            if not valid.any() and not len(self):
                raise ValueError(
                    f"cannot sample {batch_size}: none of {self.num_slots} slots is a valid start "
                    f"with stack {self.stack} and n_step {self._n_step}"
                )
            starts = np.concatenate([starts, np.stack([env, index])[:, valid]], axis=1)
        env, index = starts[:, :batch_size]
        return env, index

    def gather(self, env: np.ndarray, index: np.ndarray, out: Transition, n_step: int | None = None) -> Transition:
        """The transitions that begin at valid starts (env, index), each [B], written to `out`.

        Args:
            n_step: steps of these, at most n; None: n.
        """
        n = self._n_step if n_step is None else n_step
        start = self._position(env, index)  # [B]
        steps = self._position(env[:, None], index[:, None] + self._ahead[:n])  # [B, n]
        ended = self._flat.ended[steps]
        taken = np.ones_like(ended)  # [B, n], false after the step that ended the episode
        np.logical_not(np.logical_or.accumulate(ended[:, :-1], axis=1), out=taken[:, 1:])
        length = taken.sum(axis=1)  # [B], m
        terminated = (self._flat.terminated[steps] & taken).any(axis=1)

        out.a_tm1[:] = self._flat.action[start]
        out.r_t[:] = np.where(taken, self._flat.reward[steps], 0) @ self._discounts[:n]
        out.discount_t[:] = np.where(terminated, 0, self._discounts[length])
        self._gather_stacks(env, index, out.s_tm1)
        self._gather_stacks(env, index + length, out.s_t)
        return out

    def __len__(self) -> int:
        """Number of valid starts; looks at all slots."""
        return len(self.valid_starts()[0])

    def valid_starts(self) -> tuple[np.ndarray, np.ndarray]:
        """Every valid start as (env, index), each [len(self)]; looks at all slots."""
        env, index, exists = self._all_slots()
        chosen = exists & self.is_valid(env, index)
        return env[chosen], index[chosen]

    def is_valid(self, env: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Which slots, each in the ring, are valid starts."""
        added = self._cursors.added[env]
        position = self._position(env, index)
        has_history = index - self._flat.age[position] >= added - self.slots_per_env
        ahead = index[..., None] + self._ahead  # [..., n]
        ended = self._flat.ended[self._position(env[..., None], ahead)] & (ahead < added[..., None])
        has_future = (index + self._n_step < added) | ended.any(axis=-1)
        return ~self._flat.last[position] & has_history & has_future

    def is_last(self, env: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Which slots, each in the ring, hold the final observation of an episode, so that none begins there."""
        return self._flat.last[self._position(env, index)]

    @property
    def added(self) -> np.ndarray:
        """Slots written since the beginning, by environment [N]; those that are still there end with added - 1."""
        return self._cursors.added.copy()

    @property
    def num_slots(self) -> int:
        """Slots now in the rings, of all environments together."""
        return int(np.minimum(self._cursors.added, self.slots_per_env).sum())

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return sum(array[:1].nbytes for array in self._flat)

    def read(self, first: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, Slots]:
        """Copy out the slots first ... stop - 1 [N] of every environment, all of which must be there.

        Returns:
            Where each range ends [N], which is one later than asked where that would part the end of an episode
            from its final observation; and the slots of one environment after the other, [M, ...].
        """
        stop = stop + self._flat.ended[self._position(self._envs, stop - 1)]
        ranges = enumerate(zip(first, stop, strict=True))
        position = np.concatenate([self._position(env, np.arange(*bounds)) for env, bounds in ranges])
        return stop, Slots(*(array[position] for array in self._flat))

    def clear(self) -> None:
        """Forget everything."""
        for cursor in self._cursors:
            cursor[:] = 0

    def begin_at(self, env: int, index: int, age: int) -> None:
        """Have an empty ring begin with this slot number and age, as if all before had been overwritten.

        Until `extend` has filled the ring, or unless the number is 0, it holds slots that never were.
        """
        self._cursors.added[env], self._cursors.next_age[env] = index, age

    def extend(self, env: int, run: Slots) -> None:
        """Append slots [M, ...] of one environment that follow each other, like M calls of `add`; ages are made anew.

        The first one follows the newest slot of the ring, unless `truncate` was called.
        """
        index = np.arange(len(run.last))
        begin = np.full(len(index), -int(self._cursors.next_age[env]))  # where the episode of each slot begins
        begin[1:][run.last[:-1]] = index[1:][run.last[:-1]]
        age = np.minimum(index - np.maximum.accumulate(begin), self.stack - 1).astype(np.uint8)
        kept = index[-self.slots_per_env :]
        position = self._position(env, self._cursors.added[env] + kept)
        for array, values in zip(self._flat, run._replace(age=age), strict=True):
            array[position] = values[kept[0] :]
        self._cursors.next_age[env] = 0 if run.last[-1] else min(int(age[-1]) + 1, self.stack - 1)
        self._cursors.added[env] += len(index)

    def check_valid(self) -> None:
        """Assert every invariant; looks at all slots."""
        env, index, exists = self._all_slots()  # [N, M], oldest first
        terminated, ended, last, age = (array[self._position(env, index)] for array in self._flat[3:])
        both = exists[:, :-1]  # a slot and the one after it
        following = np.where(last, 0, np.minimum(age + 1, self.stack - 1))  # the age of the next slot

        assert not (exists & terminated & ~ended).any(), "a terminated slot has not ended"
        assert not (exists & last & ended).any(), "a last slot has ended"
        assert not (both & ended[:, :-1] & ~last[:, 1:]).any(), "an ended episode lacks its last slot"
        assert not (both & last[:, 1:] & ~(ended | last)[:, :-1]).any(), "a last slot ends no episode"
        assert not (exists & ended)[:, -1].any(), "the newest slot has ended without a last slot"
        assert (age[:, 1:] == following[:, :-1])[both].all() and not age[index == 0].any(), "an age is wrong"
        assert (self._cursors.next_age == np.where(exists, following, 0)[:, -1]).all(), "next_age is wrong"

    def _check_step(
        self, num_envs: int, observation: np.ndarray, next_observation: np.ndarray, *per_env: np.ndarray
    ) -> None:
        """Refuse what NumPy would silently broadcast or round."""
        stored = self._slots.observation
        expected = (num_envs, *stored.shape[2:])
        for array in (observation, next_observation):
            if array.shape != expected or not np.can_cast(array.dtype, stored.dtype, "same_kind"):
                raise ValueError(f"observations {array.shape} {array.dtype} must be {expected} {stored.dtype}")
        shapes = [np.shape(value) for value in per_env]
        if any(shape != expected[:1] for shape in shapes):
            raise ValueError(f"action, reward, terminated, truncated {shapes} must all be {expected[:1]}")

    def _append(self, envs: np.ndarray, *values: npt.ArrayLike, last: bool) -> None:
        """Write one slot in each of `envs` [M]; `values` are the first fields of `Slots`."""
        cursors, flat = self._cursors, self._flat
        position = self._position(envs, cursors.added[envs])
        for array, value in zip(flat, (*values, last, cursors.next_age[envs]), strict=True):
            array[position] = value
        cursors.next_age[envs] = 0 if last else np.minimum(cursors.next_age[envs] + 1, self.stack - 1)
        cursors.added[envs] += 1

    def _position(self, env: np.ndarray | int, index: np.ndarray) -> np.ndarray:
        """Where slot `index` of `env` lies in the flat arrays."""
        return env * self.slots_per_env + index % self.slots_per_env

    def _all_slots(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """env, index and whether it was ever written, each [N, M], oldest first; M is at least 1 and at most C."""
        newest = np.arange(-int(np.clip(self._cursors.added.max(), 1, self.slots_per_env)), 0)
        index = self._cursors.added[:, None] + newest
        return np.broadcast_to(self._envs[:, None], index.shape), index, index >= 0

    def _gather_stacks(self, env: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
        """Write the stacks [B, S, ...] that end at (env, index), with zeros before the episode's start."""
        frames = self._position(env[:, None], index[:, None] - self._back)  # [B, S]
        # Any mode but "raise" lets NumPy write straight to `out`; no position is out of range.
        np.take(self._flat.observation, frames, axis=0, out=out, mode="clip")
        age = self._flat.age[frames[:, -1]]
        before_start = self._back > age[:, None]  # [B, S]
        if before_start.any():
            out[before_start] = 0


def required_bytes(num_envs: int, capacity: int, observation_shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    """Bytes of a full `Replay` with these settings."""
    fields = sum(np.dtype(field).itemsize for field in _FIELD_DTYPES.values())
    slot = math.prod(observation_shape) * np.dtype(dtype).itemsize + fields
    cursors = sum(np.dtype(cursor).itemsize for cursor in _CURSOR_DTYPES.values())
    return num_envs * (capacity // num_envs * slot + cursors)
