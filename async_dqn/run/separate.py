"""The two parts of an agent whose experience crosses a queue: actors that send it, and one learner that receives it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from async_dqn.agents.base import Agent
from async_dqn.base.errors import RunError, RunFailed
from async_dqn.base.types import StepResult
from async_dqn.data.block import Block, BlockWriter, encode
from async_dqn.data.experience import ReplayExperience
from async_dqn.data.queue import ExperienceQueue
from async_dqn.data.receiver import ReplayReceiver, RolloutReceiver
from async_dqn.data.rollout import RolloutExperience
from async_dqn.envs.frame_stack import FrameStack
from async_dqn.run.actor import Actor
from async_dqn.run.build import make_evaluate
from async_dqn.run.learner import Learner
from async_dqn.store.base import WorkerStatus
from async_dqn.store.client import ParameterClient
from async_dqn.store.round_trip import RoundTripClient

_LOOK_PERIOD = 0.5  # seconds between two looks at how the other workers stand
_LONGEST_GAP = 5.0  # seconds between two looks, beyond which nobody knows what was in between


class SendingActor(Actor):
    """Acts, and sends what happens to the learner, a block of steps at a time."""

    _client: RoundTripClient

    def __init__(self, agent: Agent, client: RoundTripClient, queue: ExperienceQueue, seeds: np.random.SeedSequence):
        self._writer = BlockWriter(agent.block_length, is_rollout=agent.learns_from_rollouts)
        rng = np.random.default_rng(seeds)
        explore = make_evaluate(agent, client.online, noise=rng if agent.has_noise else None)
        super().__init__(agent, client, self._writer, explore, rng)
        self._queue = queue
        self._number = 0  # of the block that is being gathered, in this stream
        self._encoded: np.ndarray | None = None  # the block that waits for room
        self._watch = _Watch(agent.config.ps_deadline)

    def observe(self, actions: np.ndarray, result: StepResult, num_steps: int) -> np.ndarray:
        self._encoded = None  # there is one step more
        return super().observe(actions, result, num_steps)

    def send(self, *, partly: bool = False) -> bool:
        """Sends the block, if it is whole, and takes the newest parameters; False: there is no room for it now.

        Its steps are counted first: what is in the queue is in the counts of the run.

        Args:
          partly: whether a block that is not whole is sent as well.

        Raises:
          RunError: there is no room, and nobody to make any.
        """
        writer = self._writer
        if writer.is_empty or not (writer.is_full or partly):
            return True
        if self._encoded is None:
            self._encoded = encode(writer.block(self._client.version))
            self._client.report()
        if not self._queue.put(self._number, self._encoded):
            if self._watch.misses(self._client, lambda workers: workers[0].state != "lost"):
                raise RunError("worker 0, which learns, was lost, and nobody takes what this worker has to send")
            return False
        self._number += 1
        self._encoded = None
        writer.next()
        self._client.pull()
        return True

    def begin_stream(self) -> None:
        """Drops what was not sent: the parameters were put back to before it was gathered."""
        self._writer.truncate()
        self._number, self._encoded = 0, None

    def finish(self) -> None:
        """Sends what there is, if there is room."""
        self.send(partly=True)


class SeparateLearner:
    """Learns from what the actors send, and does not act.

    Attributes:
      agent: the algorithm.
      experience: what it learns from.
      evaluate: what its copy of the networks says of stacked observations.
    """

    def __init__(self, agent: Agent, client: ParameterClient, queue: ExperienceQueue, seeds: np.random.SeedSequence):
        self.agent, self._client = agent, client
        self.evaluate = make_evaluate(agent, client.online)
        self.experience = self._make_experience(queue)
        self._learner = Learner(agent, client, self.experience, rng=np.random.default_rng(seeds))
        self._watch = _Watch(agent.config.ps_deadline)
        self._started = time.monotonic()
        self._was_over = False  # the budget was spent, whatever a parameter server has lost since

    def _make_experience(self, queue: ExperienceQueue) -> ReplayReceiver | RolloutReceiver:
        agent, config, spec = self.agent, self.agent.config, self.agent.spec
        num_envs = config.envs_per_worker
        if not agent.learns_from_rollouts:
            replay = agent.make_experience(config.num_actors * num_envs, self.evaluate)
            assert isinstance(replay, ReplayExperience)
            first_sender = int(config.separates)  # else worker 0 acts
            return ReplayReceiver(
                replay,
                queue,
                num_envs=num_envs,
                first_sender=first_sender,
                has_turn=self._has_turn,
                on_block=self._on_block,
            )
        rollouts = agent.make_experience(config.rollouts_per_batch * num_envs, self.evaluate)
        assert isinstance(rollouts, RolloutExperience)
        return RolloutReceiver(
            rollouts,
            queue,
            length=agent.block_length,
            num_rollouts=config.rollouts_per_batch,
            make_stack=lambda: FrameStack(num_envs, spec.stack, spec.observation_shape, spec.observation_dtype),
            on_block=self._on_block,
        )

    def _has_turn(self, number: int) -> bool:
        """Whether it is this worker that learns from a block of transitions, by its number."""
        del number
        return True

    def _on_block(self, block: Block) -> None:
        age = max(0, self._client.counters.updates - block.version)
        self._client.count(received=block.num_steps, age_sum=block.num_steps * age)
        self._learner.hear(block.arrays["reward"])

    def learn(self) -> bool:
        """Learns what the next block calls for; False: there was none."""
        self._learner.learn()
        return not self.experience.is_idle

    def is_done(self) -> bool:
        """Whether nothing more will come: the budget is, or was, spent, and all actors have ended.

        Raises:
          RunFailed: the budget never was spent, but nobody acts any more, nor comes back.
        """
        if self._client.is_over:
            self._was_over = True
            workers = self._client.check().workers
            return not any(worker.state == "active" for worker in workers[1:])
        may_come = time.monotonic() - self._started < self.agent.config.start_deadline
        awaited = ("active", "expected") if may_come else ("active",)
        if self._watch.misses(self._client, lambda workers: any(one.state in awaited for one in workers[1:])):
            if not self._was_over:
                raise RunFailed("no worker is left that acts, and none has come back")
            return True
        return False

    def settle(self) -> None:
        """Nothing is learned beside."""

    def metrics(self) -> dict[str, float]:
        """The agent's own columns of metrics.csv and the loss, of the time since the last call."""
        return self._learner.metrics()

    def finish(self) -> None:
        """The run has ended: there is nothing to do."""

    def begin_stream(self) -> None:
        """The parameters were put back; what comes next says so itself."""

    def reset(self, observation: np.ndarray) -> None:
        """What comes next follows from nothing."""
        del observation  # it has no environments
        self.experience.truncate()

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """All that this worker needs to go on, its replay aside: arrays, and plain values for JSON."""
        arrays, values = self.experience.state()
        learner_arrays, learner_values = self._learner.state()
        return arrays | learner_arrays, learner_values | {"experience": values}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], *, in_episode: bool) -> None:
        """Puts `state()` back. Raises ValueError where it is the state of another agent.

        Args:
          in_episode: its experience stands exactly where it stood then.
        """
        self._learner.restore(arrays, values, has_experience=in_episode)
        if in_episode:
            self.experience.restore(arrays, values["experience"])


class _Watch:
    """Looks now and then whether the workers are there that another one cannot do without.

    Args:
      deadline: seconds that they may be missing.
    """

    def __init__(self, deadline: float):
        self._deadline = deadline
        self._longest_gap = max(2 * _LOOK_PERIOD, min(_LONGEST_GAP, deadline / 4))
        self._looked_at = self._seen_at = time.monotonic()

    def misses(self, client: ParameterClient, are_there: Callable[[Sequence[WorkerStatus]], bool]) -> bool:
        """Whether they have been missing for too long. Where it looks, the client hears how the run stands."""
        now = time.monotonic()
        gap = now - self._looked_at
        if gap < _LOOK_PERIOD:
            return False
        if gap > self._longest_gap or are_there(client.check().workers):
            self._seen_at = now
        self._looked_at = time.monotonic()  # an answer may take its time
        return now - self._seen_at > self._deadline
