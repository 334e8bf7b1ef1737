"""What a learner learns from when others act: experience filled from a queue, so that it cannot tell the difference."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from async_dqn.data.block import Block, decode, steps
from async_dqn.data.experience import Experience, ReplayExperience, Step
from async_dqn.data.queue import ExperienceQueue, Item
from async_dqn.data.replay import Replay
from async_dqn.data.rollout import RolloutExperience
from async_dqn.envs.frame_stack import FrameStack


class _Receiver:
    """What both kinds share: takes blocks out of the queue as long as nothing else is due.

    Args:
      inner: what the blocks go into.
      queue: where they come from.
      on_block: called for every block that has come in, once nothing else is waited for to learn from it.
    """

    def __init__(self, inner: Experience, queue: ExperienceQueue, *, on_block: Callable[[Block], None]):
        self.batch: Any = inner.batch
        self.ring: Replay | None = inner.ring
        self.draw, self.feedback, self.state = inner.draw, inner.feedback, inner.state
        self.inner, self._queue, self._on_block = inner, queue, on_block
        self._last: dict[int, tuple[tuple[int, int], int]] = {}  # stream and number of each sender's last item
        self.is_idle = False  # at the last look nothing was in the queue

    def due(self) -> int:
        """Minibatches that are due; where there are none, those that the next block of the queue calls for."""
        due = self.inner.due()
        if due:
            return due
        item = self._queue.take()
        self.is_idle = item is None
        if item is not None:
            follows = self._last.get(item.sender) == (item.stream, item.number - 1)
            self._last[item.sender] = item.stream, item.number
            for block in self._receive(item, decode(item.data), follows):
                self._on_block(block)
        return self.inner.due()

    def _receive(self, item: Item, block: Block, follows: bool) -> Sequence[Block]:
        """Takes in a block, as it came; gives the blocks that with it have come to where they are learned from.

        Args:
          follows: nothing is missing between it and the one before from this sender.
        """
        raise NotImplementedError

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        self.inner.restore(arrays, values)

    def truncate(self, envs: np.ndarray | None = None) -> None:
        self.inner.truncate(envs)


class ReplayReceiver(_Receiver):
    """One replay of all actors' environments.

    Args:
      num_envs: N, of each actor.
      first_sender: the sender whose environments come first.
      has_turn: whether a block calls for minibatches here, by its number; others are only kept.
    """

    inner: ReplayExperience

    def __init__(
        self,
        inner: ReplayExperience,
        queue: ExperienceQueue,
        *,
        num_envs: int,
        first_sender: int,
        has_turn: Callable[[int], bool],
        **options: Any,
    ):
        super().__init__(inner, queue, **options)
        self._num_envs, self._first_sender, self._has_turn = num_envs, first_sender, has_turn

    def _receive(self, item: Item, block: Block, follows: bool) -> Sequence[Block]:
        envs = (item.sender - self._first_sender) * self._num_envs + np.arange(self._num_envs)
        if not follows:  # another process, or something between was lost
            self.inner.truncate(envs)
        called_for = block.counted * self._has_turn(item.number)  # [T]
        for step, counted, spoilt in zip(steps(block), called_for.tolist(), block.arrays["spoilt"], strict=True):
            self.inner.add_to(envs, step, counted)
            if spoilt.any():
                self.inner.truncate(envs[spoilt])
        return [block]


class RolloutReceiver(_Receiver):
    """Rollouts of any actors, as many as are learned from together, side by side.

    A block that is shorter than a rollout, as it comes at the end of a run, is not learned from.

    Args:
      length: T, steps of a rollout.
      num_rollouts: how many are learned from together.
      make_stack: builds the frame stack of one actor's N environments.
    """

    def __init__(
        self,
        inner: RolloutExperience,
        queue: ExperienceQueue,
        *,
        length: int,
        num_rollouts: int,
        make_stack: Callable[[], FrameStack],
        **options: Any,
    ):
        super().__init__(inner, queue, **options)
        self._length, self._num_rollouts = length, num_rollouts
        self._make_stack = make_stack
        self._stacks: dict[int, tuple[FrameStack, np.ndarray]] = {}  # by sender, with which episodes have just ended
        self._blocks: list[tuple[Block, list[np.ndarray]]] = []  # with their stacks [N, S, ...]

    def _receive(self, item: Item, block: Block, follows: bool) -> Sequence[Block]:
        stacked = self._restack(item.sender, block, follows)
        if len(block.counted) < self._length:
            return [block]
        self._blocks.append((block, stacked))
        if len(self._blocks) < self._num_rollouts:
            return []
        blocks, self._blocks = self._blocks, []
        self._join(blocks)
        return [block for block, _ in blocks]

    def _restack(self, sender: int, block: Block, follows: bool) -> list[np.ndarray]:
        """What was acted on, [N, S, ...] for each step. Where a block before is missing, earlier frames are zeros."""
        observation, first = block.arrays["observation"], block.first
        if follows and sender in self._stacks:
            stack, is_first = self._stacks[sender]
            stacked = [stack.push(observation[0], is_first)]
        else:
            stack = self._make_stack()
            stacked = [stack.restore(block.stacked.copy()) if block.stacked.size else stack.reset(observation[0])]
        stacked += [stack.push(one, is_first) for one, is_first in zip(observation[1:], first, strict=False)]
        self._stacks[sender] = stack, first[-1]
        return stacked

    def _join(self, blocks: list[tuple[Block, list[np.ndarray]]]) -> None:
        """Has the rollouts learned from, side by side."""
        together = zip(*(zip(steps(block), stacked, strict=True) for block, stacked in blocks), strict=True)
        spoilt = np.concatenate([block.arrays["spoilt"] for block, _ in blocks], axis=1)  # [T, all N]
        for t, parts in enumerate(together):
            one_step = [step._replace(stacked=stacked) for step, stacked in parts]
            columns: dict[str, Any] = dict(zip(Step._fields, zip(*one_step, strict=True), strict=True))
            outputs = columns.pop("outputs")
            joined = {name: np.concatenate(one) for name, one in columns.items()}
            heads = {head: np.concatenate([one[head] for one in outputs]) for head in outputs[0]}
            self.inner.add(Step(outputs=heads, **joined), 0)
            if spoilt[t].any():
                self.inner.truncate(np.flatnonzero(spoilt[t]))

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        super().restore(arrays, values)
        if not self.inner.due():  # part of a rollout is what this worker played itself before it became the learner
            self.inner.truncate()

    def truncate(self, envs: np.ndarray | None = None) -> None:
        super().truncate(envs)
        self._blocks.clear()
