"""One worker of an agent in this process, built as the program builds it."""

import os

from async_dqn.envs import registry
from async_dqn.nn.module import initial_parameters
from async_dqn.run import build
from async_dqn.run.actor_learner import ActorLearner
from async_dqn.run.loop import run_loop
from async_dqn.store.local import LocalParameterStore


class OneWorker:
    """Its agent, its store with parameters {module: [P]} to start from, its client, and all that steps and learns.

    Args:
      is_baseline: whether it computes on the store itself.
    """

    def __init__(self, config, *, is_baseline=True):
        self.agent = build.make_agent(config)
        if is_baseline:
            self.store = build.make_local_store(self.agent)
        elif config.store == "shared_memory":
            descriptor = build.create_shared_memory(self.agent)
            self.store = build.make_shared_store(self.agent, descriptor)
            os.close(descriptor)  # the store has the memory, and a description of its own for the lock
        else:
            modules = build.store_modules(self.agent)
            self.store = LocalParameterStore(modules, config.total_steps, self.agent.target_period)
        self.start = initial_parameters(self.agent.modules, config.seed)
        self.store.initialize(self.start)
        if is_baseline:
            self.client = build.make_direct_client(config, self.store)
        else:
            self.client = build.make_client(self.agent, self.store)
        self.client.start()
        seeds, env_seed = build.make_seeds(config, 0, 0)
        self.actor_learner = ActorLearner(self.agent, self.client, seeds)
        self.env = registry.make_vector_env(self.agent.spec, config.envs_per_worker, env_seed, 1)

    def begin(self):
        self.actor_learner.reset(self.env.reset())
        return self

    def steps(self, claim=2):
        return run_loop(self.actor_learner, self.env, self.client, claim=claim)

    def run(self):
        """To the end of the budget."""
        for _ in self.steps():
            pass
        self.client.finish()
        return self
