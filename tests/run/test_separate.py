"""Actors and a learner over one store in this process: every agent of the table, by turns."""

import dataclasses

import numpy as np
import pytest
from experience_queue_helpers import LocalQueue
from fakes import StandingStore

from async_dqn.agents import table
from async_dqn.base.errors import RunError, RunFailed
from async_dqn.envs import registry
from async_dqn.nn.module import initial_parameters
from async_dqn.run import build, separate
from async_dqn.run.build import Part, part_of
from async_dqn.run.loop import Tick, run_actor, run_learner
from async_dqn.run.separate import SendingActor, SeparateLearner
from async_dqn.settings.config import QueueSettings
from async_dqn.store.base import Counters, Stop

SMALL = {
    "env": "CartPole-v1",
    "threads": 1,
    "envs_per_worker": 2,
    "batch_size": 16,
    "warmup_steps": 40,
    "replay_capacity": 1_000,
    "target_period": 7,
    "rollout_length": 8,
    "t_max": 8,
    "send_period": 8,
    "queue_size": 2,
    "local_steps": 0,
}
ELSEWHERE = ("fast_dqn", "paac")  # one is a single process, the other's workers learn in step
AGENTS = [name for name in table.TABLE if issubclass(table.find(name).Config, QueueSettings) and name not in ELSEWHERE]


def make_config(agent_name, total_steps=1_003, **settings):
    cls = table.find(agent_name).Config
    crossing = cls.crossing.removeprefix("--").split("=")
    names = {field.name for field in dataclasses.fields(cls)}
    small = {name: value for name, value in SMALL.items() if name in names} | {"num_workers": 3}
    overrides = small | {"total_steps": total_steps} | dict([crossing]) | settings
    return table.make_config(agent_name, "cartpole", overrides)


class Parts:
    """A learner and two actors."""

    def __init__(self, agent_name, **settings):
        config = make_config(agent_name, **settings)
        agents = [build.make_agent(config, worker) for worker in range(3)]
        stores, ends = self.connect(agents, config)
        self.store = stores[0]
        self.store.initialize(initial_parameters(agents[0].modules, config.seed))
        self.clients = [build.make_client(agent, store) for agent, store in zip(agents, stores, strict=True)]
        for client in self.clients:
            client.start()
        seeds = [build.make_seeds(config, worker, 0) for worker in range(3)]
        self.learner = SeparateLearner(agents[0], self.clients[0], ends[0], seeds[0][0])
        self.actors = [
            SendingActor(agents[worker], self.clients[worker], ends[worker], seeds[worker][0]) for worker in (1, 2)
        ]
        self.envs = [registry.make_vector_env(agents[0].spec, config.envs_per_worker, seed, 1) for _, seed in seeds[1:]]
        for actor, env in zip(self.actors, self.envs, strict=True):
            actor.reset(env.reset())

    def connect(self, agents, config):
        """The store and the end of the queue that each worker has."""
        modules = build.store_modules(agents[0])
        store = StandingStore(modules, config.total_steps, agents[0].target_period)
        self.queue = LocalQueue(config.queue_size)
        return [store] * 3, [self.queue, *map(self.queue.sender, (1, 2))]

    def end_actors(self):
        self.store.states = ("active", "done", "done")

    def actor_ticks(self, index):
        return run_actor(self.actors[index], self.envs[index], self.clients[index + 1], claim=2)

    def run(self):
        """All by turns, to the end of the budget."""
        ticks = [run_learner(self.learner, self.clients[0]), self.actor_ticks(0), self.actor_ticks(1)]
        while ticks:
            for one in list(ticks):
                if next(one, None) is None:
                    ticks.remove(one)
                    if len(ticks) == 1:
                        self.end_actors()
        for client in self.clients:
            client.finish()
        return self.store.pull().counters


class SharedParts(Parts):
    """The same in memory that processes share."""

    def connect(self, agents, config):
        memory, queue = build.create_shared_memory(agents[0]), build.create_shared_queue(config)
        self.stores = [build.make_shared_store(agent, memory) for agent in agents]
        for store in self.stores:
            store.join()
        return self.stores, [
            build.make_shared_queue(agent, store, queue) for agent, store in zip(agents, self.stores, strict=True)
        ]

    def end_actors(self):
        for store in self.stores[1:]:
            store.leave()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent_name", "mode"),
    [*((name, "async") for name in AGENTS), ("dqn", "hogwild"), ("ppo", "hogwild"), ("dqn", "locked")],
)
def test_every_step_crosses_and_is_learned_from_as_the_settings_say(agent_name, mode):
    shared = {"store": "shared_memory", "update_mode": mode}
    parts = Parts(agent_name) if mode == "async" else SharedParts(agent_name, **shared)
    config = parts.learner.agent.config
    counters = parts.run()
    assert counters.env_steps == counters.claimed_steps == counters.received == 1_003
    assert counters.updates == counters.minibatches > 20
    assert counters.staleness_max == 0  # nobody else pushes
    assert 0 < counters.age_sum / counters.received < 500
    row = parts.learner.metrics()
    assert np.isfinite(row["loss"]) and row.keys() == {"loss", "gradient_norm", *parts.learner.agent.metrics}
    if config.crossing == "--replay=global":
        warm = config.warmup_steps + 2 * config.n_step * config.num_actors * config.envs_per_worker
        assert counters.minibatches >= (1_003 - warm) // config.train_period
        if agent_name == "dqn":  # others have minibatches beside those of real steps
            assert counters.minibatches <= 1_003 // config.train_period
        parts.learner.experience.ring.check_valid()
    assert not any(np.array_equal(value.numpy(), np.zeros_like(value)) for value in parts.clients[1].online.values())


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"vtrace": False}, {"rollouts_per_batch": 2}], ids=["plain", "vtrace"])
def test_what_an_agent_remembers_crosses_with_its_rollouts(settings):
    parts = Parts("a3c", lstm=True, t_max=4, **settings)
    counters = parts.run()
    waiting = counters.env_steps - counters.received  # a rollout that no other came beside
    assert counters.env_steps == 1_003 and 0 <= waiting <= 4 * 2 * ("rollouts_per_batch" in settings)
    assert counters.nonfinite == 0 and counters.updates == counters.minibatches > 50
    assert np.abs(parts.learner.experience.batch.recurrent_state).max() > 0


def test_rewards_that_came_through_the_queue_are_named_where_they_are_too_large():
    parts = Parts("a3c", reward_scale=1e30, max_nonfinite=1)
    with pytest.raises(RunFailed, match=r"the data are the cause \(a reward of size 1e\+30\)"):
        parts.run()


def test_actors_wait_while_the_queue_is_full_and_go_on_when_there_is_room():
    parts = Parts("dqn")
    ticks = parts.actor_ticks(0)
    taken = sum(next(ticks).num_steps for _ in range(100))
    assert taken == 3 * 8 * 2  # two blocks are in the queue, and one is ready
    assert len(parts.queue.items) == 2
    assert next(ticks) == Tick(0, [])
    assert parts.learner.learn()
    assert sum(next(ticks).num_steps for _ in range(50)) == 8 * 2
    ticks.close()


def test_a_stop_ends_the_wait():
    parts = Parts("dqn")
    ticks = parts.actor_ticks(0)
    for _ in range(60):
        next(ticks)
    parts.store.add_counts(Counters(stopped=Stop.SOLVED))
    for _ in range(200):
        if next(ticks, None) is None:
            break
    else:
        pytest.fail("it still waits")
    parts.clients[1].finish()
    counters = parts.store.pull().counters
    assert counters.env_steps == counters.claimed_steps == 3 * 8 * 2


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(separate, "_LOOK_PERIOD", 0.001)


def test_an_actor_ends_where_the_learner_is_lost_for_good(impatient):
    parts = Parts("dqn", ps_deadline=1.0)
    parts.store.states = ("lost", "active", "active")
    with pytest.raises(RunError, match="^worker 0, which learns, was lost"):
        for _ in parts.actor_ticks(0):
            pass


def test_the_learner_ends_the_run_where_nobody_acts_any_more(impatient):
    parts = Parts("dqn", ps_deadline=1.0)
    parts.store.states = ("active", "lost", "lost")
    with pytest.raises(RunFailed, match="^no worker is left that acts"):
        for _ in run_learner(parts.learner, parts.clients[0]):
            pass


def test_the_run_is_at_its_end_where_nobody_acts_any_more_and_a_server_has_lost_the_last_steps(impatient):
    parts = Parts("dqn", ps_deadline=1.0)
    state = parts.store.state()
    parts.store.add_counts(Counters(env_steps=1_003, claimed_steps=1_003))
    parts.clients[0].report()
    assert parts.clients[0].is_over and not parts.learner.is_done()  # the actors are there
    parts.store.restore(state)
    parts.clients[0].restart(rolled_back=True)
    parts.store.states = ("active", "lost", "lost")
    ticks = run_learner(parts.learner, parts.clients[0])
    assert not parts.clients[0].is_over and list(ticks)[-1] == Tick(0, [])


def test_patience_begins_when_somebody_looks(monkeypatch):
    client, clock = Parts("dqn").clients[0], [0.0]
    monkeypatch.setattr(separate.time, "monotonic", lambda: clock[0])
    watch, impatient = separate._Watch(60.0), separate._Watch(1.0)

    def misses(now):
        clock[0] = now
        return watch.misses(client, lambda workers: False)

    assert not any(map(misses, (1.0, 2.0, 55.0, 60.5, 64.0, 114.0)))  # busy but for these moments
    looks = np.arange(114.5, 180.0, 0.5)
    assert looks[[*map(misses, looks)].index(True)] == 174.5

    clock[0] = 200.0  # a deadline that is not much longer than the time between two looks
    assert not impatient.misses(client, lambda workers: False)
    for clock[0], is_missed in ((200.6, False), (201.2, True)):
        assert impatient.misses(client, lambda workers: False) == is_missed


def test_which_part_a_worker_runs_follows_from_the_settings():
    apart, alone = make_config("dqn"), make_config("dqn", num_workers=1)
    assert [part_of(apart, worker) for worker in range(3)] == [Part.LEARNER, Part.ACTOR, Part.ACTOR]
    assert part_of(alone, 0) is Part.ACTOR_LEARNER
    assert part_of(make_config("dqn", replay="local", send_period=16), 1) is Part.ACTOR_LEARNER
    assert (apart.num_actors, apart.num_learners, alone.num_actors, alone.num_learners) == (2, 1, 1, 1)


def test_the_constant_epsilons_of_ape_x_are_spread_over_those_that_act():
    config = make_config("dqn", exploration="ape_x")
    epsilons = np.concatenate([build.make_agent(config, worker).epsilon(0) for worker in (1, 2)])
    np.testing.assert_allclose(epsilons, 0.4 ** (1 + 7 * np.arange(4) / 3))


def test_what_was_gathered_before_the_parameters_were_put_back_is_dropped():
    parts = Parts("dqn")
    ticks = parts.actor_ticks(0)
    for _ in range(5):
        next(ticks)
    parts.actors[0].begin_stream()
    for _ in range(8):
        next(ticks)
    assert not parts.queue.items  # a block is sent before the step after it
    next(ticks)
    assert len(parts.queue.items) == 1
    ticks.close()


def test_an_actor_that_an_outage_interrupted_sends_its_block_before_it_acts():
    parts = Parts("dqn")
    ticks = parts.actor_ticks(0)
    for _ in range(60):
        next(ticks)
    ticks.close()  # with a whole block in hand
    parts.clients[1].report()
    ticks = parts.actor_ticks(0)
    assert all(next(ticks) == Tick(0, []) for _ in range(5))
    assert parts.learner.learn()
    assert sum(next(ticks).num_steps for _ in range(9)) == 8 * 2
    ticks.close()
