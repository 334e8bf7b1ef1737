"""A queue within one process, and steps to send through it."""

import numpy as np

from async_dqn.data.experience import Step
from async_dqn.data.queue import Item


class LocalQueue:
    """The items of several senders in one list; `sender(i)` is the end of one of them."""

    def __init__(self, size=4):
        self.items, self._size, self._last = [], size, {}

    def sender(self, worker, stream=(1, 1)):
        return _End(self, worker, stream)

    def take(self):
        return self.items.pop(0) if self.items else None


class _End:
    def __init__(self, queue, worker, stream):
        self._queue, self._worker, self.stream = queue, worker, stream

    def put(self, number, data):
        order = (self.stream, number)
        queue = self._queue
        if order <= queue._last.get(self._worker, ((-1, -1), -1)):
            return True
        if len(queue.items) >= queue._size:
            return False
        queue._last[self._worker] = order
        queue.items.append(Item(self._worker, self.stream, number, np.array(data)))
        return True

    def take(self):
        return self._queue.take()


def random_steps(rng, num_steps, num_envs, shape, stack, heads):
    """Steps that follow each other, with ends of both kinds among them, as the vector environment gives them."""
    from async_dqn.envs.frame_stack import FrameStack

    frames = FrameStack(num_envs, stack, shape, np.uint8)

    def look():
        return rng.integers(1, 255, (num_envs, *shape)).astype(np.uint8)

    observation = look()
    stacked = frames.reset(observation)
    for _ in range(num_steps):
        terminated = rng.random(num_envs) < 0.15
        truncated = ~terminated & (rng.random(num_envs) < 0.1)
        ended = terminated | truncated
        following = look()
        yield Step(
            observation=observation,
            stacked=stacked,
            action=rng.integers(3, size=num_envs).astype(np.int32),
            outputs={name: rng.normal(size=(num_envs, width)).astype(np.float32) for name, width in heads.items()},
            reward=rng.normal(size=num_envs).astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            next_observation=following,
        )
        observation = np.where(ended.reshape(-1, *[1] * len(shape)), look(), following)
        stacked = frames.push(observation, ended)
