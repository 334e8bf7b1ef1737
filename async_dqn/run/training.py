"""What the baseline and every worker do: run their part of an agent, and keep its files."""

import contextlib
import gc
import threading
from collections.abc import Callable, Generator

from async_dqn.agents.base import Agent
from async_dqn.data.queue import CountedQueue, ExperienceQueue
from async_dqn.envs import registry
from async_dqn.envs.vector_env import NoEnvironments, VectorEnv
from async_dqn.run.actor import Actor
from async_dqn.run.actor_learner import ActorLearner
from async_dqn.run.bad_values import BadValues
from async_dqn.run.build import Part, make_seeds, part_of
from async_dqn.run.directory import RunDirectory
from async_dqn.run.loop import Tick, run_actor, run_learner, run_loop, run_planner
from async_dqn.run.planner import PlannedActorLearner, Planner
from async_dqn.run.separate import SendingActor, SeparateLearner
from async_dqn.run.snapshots import Snapshots
from async_dqn.run.stuck import Gate, rescued
from async_dqn.run.worker_metrics import WorkerMetrics
from async_dqn.store.client import ParameterClient
from async_dqn.store.round_trip import RoundTripClient

# Vector steps that a worker claims at once: few enough to share out the end of a run, many enough to cost nothing.
_CLAIM = 16


class Training:
    """One worker's part of an agent with its environments and its files, built and brought to where it last stood.

    Attributes:
      part: what this worker runs of the agent.

    Args:
      agent: what is trained.
      client: started already.
      queue: by which experience crosses to the learner; None where it does not.
      run_id: the run that it belongs to.
      say: takes a line on what was found or went wrong.
    """

    def __init__(
        self,
        agent: Agent,
        run: RunDirectory,
        client: ParameterClient,
        queue: ExperienceQueue | None = None,
        *,
        run_id: int,
        num_threads: int,
        say: Callable[[str], None],
    ):
        config, worker = agent.config, agent.worker
        self._client = client
        if queue is not None:
            queue = CountedQueue(queue, self._count_bytes)
        agent_seeds, environment_seed = make_seeds(config, worker, client.env_steps)
        self.part: Actor | SeparateLearner
        self._env: VectorEnv | NoEnvironments = NoEnvironments()
        part = part_of(config, worker)
        if config.has_planners:
            assert isinstance(client, RoundTripClient) and queue is not None
            kind = Planner if part is Part.PLANNER else PlannedActorLearner
            self.part = kind(agent, client, queue, agent_seeds)
        elif part is Part.ACTOR_LEARNER:
            self.part = ActorLearner(agent, client, agent_seeds)
        elif part is Part.ACTOR:
            assert isinstance(client, RoundTripClient) and queue is not None
            self.part = SendingActor(agent, client, queue, agent_seeds)
        else:
            assert queue is not None
            self.part = SeparateLearner(agent, client, queue, agent_seeds)
        self._overlap_steps = config.overlap_steps
        self._has_run = False  # `run` is called again after an outage
        self._snapshots = Snapshots(config, run, worker, run_id=run_id, part=self.part, say=say)
        saved_seed, totals = self._snapshots.load()
        seed = environment_seed if saved_seed is None else saved_seed
        if part in (Part.ACTOR_LEARNER, Part.ACTOR):
            timeout = config.env_timeout if config.env_processes else 0.0
            self._env = registry.make_vector_env(
                agent.spec, config.envs_per_worker, seed, num_threads, process_timeout=timeout
            )
        self._snapshots.begin(self._env, seed, in_episode=saved_seed is not None)
        self._metrics = WorkerMetrics(config, run, worker, client, totals, say)
        self._bad_values = BadValues(agent.spec.id, say)
        gc.freeze()  # what is here now stays: searching TensorFlow's graphs for garbage took 3 % of the time

    def _count_bytes(self, num_bytes: int) -> None:
        self._client.exchanged_bytes += num_bytes

    def run(
        self, tick: Callable[[], None], should_stop: threading.Event, rescue: Callable[[], None] | None = None
    ) -> None:
        """Trains until the budget is spent, the run is stopped or `should_stop` is set; all is reported then.

        Args:
          tick: what else this process has to do after every step.
          rescue: saves what there is and ends the process, where an environment does not return once `should_stop` is
            set; called in another thread. None: it is waited for.

        Raises Outage, after which it may be called again.
        """
        env: VectorEnv | Gate | NoEnvironments = self._env
        if self._has_run and isinstance(self.part, ActorLearner) and not self._overlap_steps:
            self.part.learn()  # what an outage cut short, before the next step takes the place of its rollout
        self._has_run = True
        with contextlib.ExitStack() as stack:
            if rescue and isinstance(env, VectorEnv):
                env = Gate(env)
                stack.enter_context(rescued(env, should_stop.is_set, rescue))
            for step in stack.enter_context(contextlib.closing(self._ticks(env))):
                self._metrics.consume(step)
                self._bad_values.take(step.bad_values)
                tick()
                self._snapshots.tick(self._metrics.totals)
                if should_stop.is_set():
                    break
        self.part.finish()
        self._metrics.report()
        self._client.finish()

    def _ticks(self, env: VectorEnv | Gate | NoEnvironments) -> Generator[Tick, None, None]:
        part, client = self.part, self._client
        if isinstance(part, Planner):
            return run_planner(part, client)
        if isinstance(part, SeparateLearner):
            return run_learner(part, client)
        assert not isinstance(env, NoEnvironments)
        if isinstance(part, SendingActor):
            return run_actor(part, env, client, claim=_CLAIM)
        return run_loop(part, env, client, claim=_CLAIM, overlap_steps=self._overlap_steps)

    def forget(self) -> None:
        """Drops what the others have not heard of, as the run no longer contains these steps."""
        self._metrics.forget()
        self.part.begin_stream()

    def save(self, deadline: float) -> None:
        """Brings everything to disk, within `deadline` seconds."""
        self._metrics.log()
        self._snapshots.finish(self._metrics.totals, deadline)

    def close(self) -> None:
        """Frees the environments and their threads."""
        gc.unfreeze()  # much of it is the caller's own, where that calls `async_dqn.train`
        self._metrics.close()
        self._snapshots.close()
        self._env.close()
