"""Prioritized replay (Schaul et al. 2016): transitions are drawn in proportion to how wrong the network was on them."""

from collections.abc import Mapping

import numpy as np

from async_dqn.base.schedules import Schedule
from async_dqn.base.types import Transition, WeightedTransition
from async_dqn.data.replay import Replay
from async_dqn.data.sum_tree import SumTree
from async_dqn.nn.aligned import aligned_empty

_SMALLEST = 1e-6  # priority of what is predicted perfectly: it may still be drawn
_PRIORITIES, _ADDED, _LARGEST = "priority/values", "priority/added", "priority/largest"


class PrioritizedSampler:
    """Draws transitions in proportion to their priority to the power of alpha, with weights that correct for it.

    What was added to the replay since the last draw has the largest priority that there ever was, so that it is drawn
    soon (algorithm 1, line 6). That includes what comes from disk without priorities.

    Args:
      replay: that it draws from.
      priority_exponent: alpha; 0 draws uniformly.
      importance_exponent: beta, over agent steps of all workers; 1 makes up for all of the difference to uniform draws.
    """

    def __init__(self, replay: Replay, *, priority_exponent: float, importance_exponent: Schedule):
        self._replay = replay
        self._priority_exponent, self._importance_exponent = priority_exponent, importance_exponent
        self._tree = SumTree(replay.num_envs * replay.slots_per_env)  # a leaf a slot, by environment and place
        self._seen = np.zeros(replay.num_envs, np.int64)  # slots of each environment that were given a priority
        self._largest = 1.0
        self._drawn = np.empty(0, np.int64)  # [B], leaves of the minibatch drawn last

    def make_batch(self, batch_size: int) -> WeightedTransition:
        return WeightedTransition(*self._replay.make_batch(batch_size), aligned_empty((batch_size,), np.float32))

    def sample(self, rng: np.random.Generator, step: int, out: WeightedTransition) -> None:
        *transition, weight = out
        self._admit_new()

        def propose(count: int) -> tuple[np.ndarray, np.ndarray]:
            leaves = self._tree.find(rng.random(count) * self._tree.total)
            return self._slots(leaves[self._tree.values[leaves] > 0])  # 0: the replay is empty

        env, index = self._replay.accept(len(weight), propose)
        self._drawn = self._leaves(env, index)
        self._replay.gather(env, index, Transition(*transition))
        weight[:] = self._weights(self._drawn, self._importance_exponent(step))

    def feedback(self, per_item: np.ndarray) -> None:
        """The transitions drawn last have the priorities that follow from these errors [B], of any sign."""
        values = (np.abs(per_item.astype(np.float64)) + _SMALLEST) ** self._priority_exponent
        self._tree.set(self._drawn, values)
        self._largest = max(self._largest, float(values.max()))

    def _weights(self, leaves: np.ndarray, exponent: float) -> np.ndarray:
        """Importance weights [B] of leaves [B], the largest of them 1 (section 3.4)."""
        values = self._tree.values[leaves]
        return (values / values.min()) ** -exponent

    def state(self) -> dict[str, np.ndarray]:
        """Arrays that `restore` takes."""
        self._admit_new()
        return {_PRIORITIES: self._tree.values.copy(), _ADDED: self._seen.copy(), _LARGEST: np.array(self._largest)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Puts `state()` back, of a replay that stands where it stood then. Raises KeyError or ValueError."""
        values, added = arrays[_PRIORITIES], arrays[_ADDED]
        if values.shape != self._tree.values.shape or not np.array_equal(added, self._replay.added):
            raise ValueError("its priorities are those of another replay")
        self._tree.set(np.arange(len(values)), values)
        self._seen, self._largest = added.copy(), float(arrays[_LARGEST])

    def check_valid(self) -> None:
        """Assert every invariant; looks at the whole replay."""
        self._tree.check_valid()
        assert (self._seen <= self._replay.added).all(), "slots have a priority that were never added"
        assert self._tree.values.max() <= self._largest, "a priority is larger than the largest"
        env, index = self._replay.valid_starts()
        seen = index < self._seen[env]
        assert (self._tree.values[self._leaves(env, index)[seen]] > 0).all(), "a transition can never be drawn"

    def _admit_new(self) -> None:
        added, size = self._replay.added, self._replay.slots_per_env
        first = np.maximum(self._seen, added - size)
        count = added - first  # [N]
        env = np.repeat(np.arange(len(count)), count)
        index = np.arange(len(env)) + np.repeat(first - (np.cumsum(count) - count), count)
        values = np.where(self._replay.is_last(env, index), 0.0, self._largest)
        self._tree.set(self._leaves(env, index), values)
        self._seen = added

    def _leaves(self, env: np.ndarray, index: np.ndarray) -> np.ndarray:
        return env * self._replay.slots_per_env + index % self._replay.slots_per_env

    def _slots(self, leaves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Environment and index of the slots that now lie at these leaves."""
        env, place = np.divmod(leaves, self._replay.slots_per_env)
        newest = self._replay.added[env] - 1
        return env, newest - (newest - place) % self._replay.slots_per_env


def priority_bytes(num_envs: int, capacity: int) -> int:
    """Bytes that priorities take beside a replay with these settings."""
    return 2 * 8 * (1 << (num_envs * (capacity // num_envs) - 1).bit_length())
