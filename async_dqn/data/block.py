"""Blocks: steps of one actor's environments as they cross to the learner, in which no observation is there twice."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from async_dqn.data.experience import NO_RECURRENT_STATE, Step
from async_dqn.data.recurrent_state import HEAD, forgotten
from async_dqn.data.replay import Replay

_OUTPUTS = "outputs/"
_HEADER_SIZE = 8  # bytes of the number that says how long the header is
_OWN = ("counted", "final", "last", "stacked", "recurrent_state")  # fields that are arrays
_NONE = np.empty(0, np.float32)


class Block(NamedTuple):
    """T steps of N environments that follow each other."""

    # [T, N, ...]: observation, action, reward, terminated, truncated, outputs/HEAD, and spoilt, whether nothing can be
    # learned from a step.
    arrays: Mapping[str, np.ndarray]
    counted: np.ndarray  # [T] int32, how many of each step's N count
    final: np.ndarray  # [M, ...], where the steps led that ended an episode, in the order of time
    last: np.ndarray  # [N, ...], where the last step led; empty for pictures that go to replay
    stacked: np.ndarray  # [N, S, ...], what was acted on first; empty where it follows from the block before
    version: int  # updates in the parameters that were acted on
    recurrent_state: np.ndarray = NO_RECURRENT_STATE  # [N, M], before the first step; empty for agents without one

    @property
    def ended(self) -> np.ndarray:
        """Whether each step ended its episode, [T, N] bool."""
        return self.arrays["terminated"] | self.arrays["truncated"]

    @property
    def first(self) -> np.ndarray:
        """Whether what follows each step begins an episode, [T, N] bool."""
        return self.ended | self.arrays["spoilt"]

    @property
    def num_steps(self) -> int:
        """Agent steps that count."""
        return int(self.counted.sum())


def encode(block: Block) -> np.ndarray:
    """One vector of bytes, [bytes] uint8."""
    return pack({**block.arrays, **{name: getattr(block, name) for name in _OWN}}, block.version)


def decode(data: np.ndarray) -> Block:
    """The inverse of `encode`; its arrays share the memory of `data`."""
    arrays, version = unpack(data)
    own = {name: arrays.pop(name) for name in _OWN}
    return Block(arrays, **own, version=version)


def pack(named: Mapping[str, np.ndarray], version: int) -> np.ndarray:
    """Arrays by name, and a version, as one vector of bytes, [bytes] uint8."""
    arrays = {name: np.ascontiguousarray(array) for name, array in named.items()}
    described = {name: [array.dtype.str, array.shape] for name, array in arrays.items()}
    header = json.dumps({"version": version, "arrays": described}).encode()
    parts = [len(header).to_bytes(_HEADER_SIZE, "little"), header, *(array.tobytes() for array in arrays.values())]
    return np.frombuffer(b"".join(parts), np.uint8)


def unpack(data: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
    """The inverse of `pack`; the arrays share the memory of `data`."""
    raw = np.ascontiguousarray(data).data
    begin = _HEADER_SIZE + int.from_bytes(raw[:_HEADER_SIZE], "little")
    header = json.loads(bytes(raw[_HEADER_SIZE:begin]))
    arrays: dict[str, np.ndarray] = {}
    for name, (dtype, shape) in header["arrays"].items():
        array = np.frombuffer(raw, dtype, int(np.prod(shape)), begin).reshape(shape)
        arrays[name] = array
        begin += array.nbytes
    return arrays, header["version"]


def steps(block: Block) -> Iterator[Step]:
    """The steps one by one, without stacks.

    Where a step led is known if it ended its episode, or if the next one in the block shows it, or by `last`; else the
    observation that was acted on stands there.
    """
    arrays, ended = block.arrays, block.ended
    observation = arrays["observation"]
    num_final = np.concatenate([[0], np.cumsum(ended.sum(axis=1))])
    following = [*observation[1:], block.last if block.last.size else observation[-1]]
    outputs = {name.removeprefix(_OUTPUTS): one for name, one in arrays.items() if name.startswith(_OUTPUTS)}
    recurrent_state = block.recurrent_state
    for t, after in enumerate(following):
        if block.first[t].any():
            after = after.copy()
            after[ended[t]] = block.final[num_final[t] : num_final[t + 1]]
            after[arrays["spoilt"][t]] = observation[t][arrays["spoilt"][t]]
        yield Step(
            observation[t],
            _NONE,
            arrays["action"][t],
            {name: one[t] for name, one in outputs.items()},
            arrays["reward"][t],
            arrays["terminated"][t],
            arrays["truncated"][t],
            after,
            recurrent_state,
        )
        if recurrent_state.size:
            recurrent_state = forgotten(arrays[_OUTPUTS + HEAD][t], block.first[t])


class BlockWriter:
    """What an actor's steps go into: gathers them until there are enough for a block.

    Attributes:
      ring: None, as an actor keeps nothing.

    Args:
      length: T.
      is_rollout: whether blocks hold what learning from a rollout takes: the outputs that actions were chosen on, what
        the last step led to, and at the beginning what was acted on with the observations before it.
    """

    def __init__(self, length: int, *, is_rollout: bool):
        self.ring: Replay | None = None
        self._target, self._is_rollout = length, is_rollout
        self._arrays: dict[str, np.ndarray] = {}
        self._counted = np.zeros(length, np.int32)
        self.truncate()

    def truncate(self, envs: np.ndarray | None = None) -> None:
        """The environments, or these, start anew.

        Of all: what was gathered is dropped. Of some: nothing is learned from their newest step.
        """
        if envs is None:
            self._begins = True
            self._clear()
        else:
            self._arrays["spoilt"][self._length - 1, envs] = True

    def _clear(self) -> None:
        self._length = 0
        self._final: list[np.ndarray] = []
        self._last = self._stacked = _NONE
        self._recurrent_state = NO_RECURRENT_STATE

    @property
    def is_full(self) -> bool:
        """Whether there is a whole block, so that no step more can be taken in."""
        return self._length == self._target

    @property
    def is_empty(self) -> bool:
        """Whether there is no step."""
        return self._length == 0

    def add(self, step: Step, num_steps: int) -> None:
        """Takes in one step of all environments, `num_steps` of which count."""
        named: dict[str, Any] = {
            name: getattr(step, name) for name in ("observation", "action", "reward", "terminated", "truncated")
        }
        named["spoilt"] = np.zeros(len(step.action), bool)
        if self._is_rollout:
            named |= {f"{_OUTPUTS}{name}": one for name, one in step.outputs.items()}
        t = self._length
        for name, array in named.items():
            if name not in self._arrays:
                self._arrays[name] = np.empty((self._target, *array.shape), array.dtype)
            self._arrays[name][t] = array
        self._counted[t] = num_steps
        ended = step.terminated | step.truncated
        self._final.append(step.next_observation[ended].copy())
        if self._is_rollout or step.next_observation.ndim == 2:  # of vectors always: a model is judged by each step
            self._last = step.next_observation.copy()
        if self._is_rollout and t == 0:
            self._recurrent_state = step.recurrent_state.copy()
            if self._begins:
                self._stacked = step.stacked.copy()
        self._length += 1

    def block(self, version: int) -> Block:
        """What was gathered until now; at least one step. It is valid until the next `add`."""
        arrays = {name: array[: self._length] for name, array in self._arrays.items()}
        counted = self._counted[: self._length]
        return Block(
            arrays, counted, np.concatenate(self._final), self._last, self._stacked, version, self._recurrent_state
        )

    def next(self) -> None:
        """The block is on its way; the next one follows it."""
        self._begins = False
        self._clear()

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Nothing: a block that was not sent is not kept."""
        return {}, {}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Begins a new block."""
        del arrays, values
        self.truncate()
