"""A worker that acts and its planners over one store in this process, by turns."""

import itertools

import numpy as np
import pytest
from experience_queue_helpers import LocalQueue
from fakes import StandingStore

from async_dqn.agents.table import make_config
from async_dqn.base.errors import RunError, UserError
from async_dqn.cluster.experience_queue import Mailbox
from async_dqn.envs import registry
from async_dqn.nn.module import initial_parameters
from async_dqn.run import build, separate
from async_dqn.run.build import Part, part_of
from async_dqn.run.loop import Tick, run_loop, run_planner
from async_dqn.run.planner import PlannedActorLearner, Planner
from async_dqn.store.base import Counters, Stop
from async_dqn.store.delta_client import DeltaClient
from async_dqn.store.gradient_client import GradientClient

SMALL = {
    "env": "CartPole-v1",
    "threads": 1,
    "num_workers": 2,
    "envs_per_worker": 2,
    "batch_size": 16,
    "warmup_steps": 40,
    "train_period": 4,
    "replay_capacity": 1_000,
    "target_period": 50,
    "send_period": 8,
    "total_steps": 603,
    "max_model_error": 1e9,
    "local_steps": 0,
}


class Parts:
    """Worker 0 and its planners."""

    def __init__(self, real_size=100, **settings):
        config = make_config("dyna_q", "cartpole", SMALL | settings)
        agents = [build.make_agent(config, worker) for worker in range(config.num_workers)]
        modules = build.store_modules(agents[0])
        self.store = StandingStore(modules, config.total_steps, agents[0].target_period)
        self.store.initialize(initial_parameters(agents[0].modules, config.seed))
        self.simulated = LocalQueue(config.queue_size)
        self.real = [LocalQueue(real_size) for _ in agents[1:]]
        self.clients = [build.make_client(agent, self.store) for agent in agents]
        for client in self.clients:
            client.start()
        seeds = [build.make_seeds(config, worker, 0) for worker in range(config.num_workers)]
        mailbox = Mailbox(self.simulated, [queue.sender(0) for queue in self.real])
        self.actor = PlannedActorLearner(agents[0], self.clients[0], mailbox, seeds[0][0])
        self.planners = [
            Planner(
                agents[worker],
                self.clients[worker],
                Mailbox(self.real[worker - 1], [self.simulated.sender(worker)]),
                seeds[worker][0],
            )
            for worker in range(1, config.num_workers)
        ]
        self.env = registry.make_vector_env(agents[0].spec, config.envs_per_worker, seeds[0][1], 1)
        self.actor.reset(self.env.reset())
        self.drawn = []  # of every minibatch of worker 0: whether it was simulated, and the age of the model
        self._spy(self.actor._learner._experience)

    def _spy(self, experience):
        draw = experience.draw

        def spied(rng, step):
            draw(rng, step)
            self.drawn.append((float(experience.batch.is_simulated[0]), float(experience.batch.model_age[0])))

        experience.draw = spied

    def acting(self):
        return run_loop(self.actor, self.env, self.clients[0], claim=2)

    def planning(self, index):
        return run_planner(self.planners[index], self.clients[index + 1])

    def run(self, turns=1):
        """All by turns to the end of the budget, planners so many turns for each step."""
        planning = [self.planning(index) for index in range(len(self.planners))]
        for _ in self.acting():
            for ticks in planning:
                for _ in range(turns):
                    next(ticks)
        for ticks in planning:
            assert sum(1 for _ in itertools.islice(ticks, 1_000)) < 1_000, "it does not end"
        for client in self.clients:
            client.finish()
        return self.store.pull().counters

    def parameters(self, name):
        return self.store.pull().online[name].copy()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("async_dqn.run.loop._WAIT", 0)
    monkeypatch.setattr("async_dqn.data.planners._PAUSE", 0)
    monkeypatch.setattr(separate, "_LOOK_PERIOD", 0)


def is_within(drawn, ratio):
    """Whether at no time more minibatches were simulated than the real ones before allowed."""
    simulated = np.array([one for one, _ in drawn])
    return bool((np.cumsum(simulated) <= ratio * np.cumsum(1 - simulated)).all())


@pytest.mark.slow
@pytest.mark.parametrize("num_workers, turns, ratio", [(2, 1, 3.0), (4, 2, 3.0), (4, 2, 0.5)])
def test_the_ratio_stays_within_its_bound_whatever_the_number_of_planners(num_workers, turns, ratio):
    parts = Parts(num_workers=num_workers, max_simulated_ratio=ratio)
    counters = parts.run(turns)
    assert counters.env_steps == counters.claimed_steps == 603
    simulated = sum(one for one, _ in parts.drawn)
    real = len(parts.drawn) - simulated
    assert (603 - 60) // 4 <= real <= 603 // 4
    assert is_within(parts.drawn, ratio)
    assert simulated > 0.6 * ratio * real
    assert parts.clients[0].own_minibatches == len(parts.drawn)
    assert counters.updates == counters.minibatches and counters.nonfinite == 0
    # Planners train the model once for each real minibatch, all of them together.
    trained = sum(client.own_minibatches for client in parts.clients[1:])
    assert counters.model_updates == trained == counters.minibatches - len(parts.drawn)
    assert 0.6 * real <= trained <= real
    # Each planner has all that happened, but for what is in its queue and the block that was being gathered.
    waiting = sum(len(queue.items) for queue in parts.real) * 8 * 2
    assert (num_workers - 1) * (603 - 16 - 1) - waiting <= counters.received <= (num_workers - 1) * 603
    ages = [age for one, age in parts.drawn if one]
    assert min(ages) >= 0 and 0 < max(ages) < trained
    row = parts.actor.metrics()
    assert row["simulated_age"] == pytest.approx(np.mean(ages)) and 0 < row["simulated_share"] <= ratio / (1 + ratio)


@pytest.mark.parametrize("local_steps", [0, 4])
def test_values_are_worker_0_s_and_the_model_is_the_planners(local_steps):
    parts = Parts(local_steps=local_steps)
    values, model = parts.parameters("q"), parts.parameters("model")
    for _, _ in zip(range(100), parts.acting(), strict=False):
        pass
    assert np.abs(parts.parameters("q") - values).max() > 0
    np.testing.assert_array_equal(parts.parameters("model"), model)
    values = parts.parameters("q")
    for _, _ in zip(range(20), parts.planning(0), strict=False):
        pass
    np.testing.assert_array_equal(parts.parameters("q"), values)
    assert np.abs(parts.parameters("model") - model).max() > 0
    parts.planners[0].plan()
    for name in ("q", "model"):  # what it plans with is the newest
        np.testing.assert_array_equal(parts.clients[1].online[name].numpy(), parts.parameters(name))


@pytest.mark.parametrize(
    ("num_workers", "kind", "of_model"), [(2, DeltaClient, "add"), (3, GradientClient, "adam")], ids=["one", "several"]
)
def test_the_model_of_several_planners_has_one_optimizer(num_workers, kind, of_model):
    """The values, which worker 0 alone learns, are stepped by it as often as --local_steps says."""
    parts = Parts(num_workers=num_workers, local_steps=4)
    assert [type(client) for client in parts.clients] == [DeltaClient] + [kind] * (num_workers - 1)
    assert {module.name: module.optimizer.name for module in parts.store.modules} == {"q": "add", "model": of_model}


def test_a_planner_learns_on_the_model_that_others_have_stepped():
    """One optimizer serves them all, but gradients on a model that is many updates old make it learn badly."""
    parts = Parts(num_workers=3, local_steps=4)
    parts.run()
    for client in parts.clients[1:]:
        assert len(client.stalenesses) > 20 and not any(client.stalenesses)  # nobody steps between, by turns


def test_planners_train_by_turns_a_block_each():
    parts = Parts(num_workers=4)
    planning = [parts.planning(index) for index in range(3)]
    trained = []  # minibatches of each planner until each block was taken in
    for _ in parts.acting():
        has_block = bool(parts.real[0].items)
        for ticks in planning:
            next(ticks)
        if has_block:
            trained.append([client.own_minibatches for client in parts.clients[1:]])
    after_warmup = np.diff(trained, axis=0)[3:]  # [blocks, planners]
    expected = [np.roll([4, 0, 0], number) for number in range(4, len(trained))]  # 16 agent steps, one for every 4
    np.testing.assert_array_equal(after_warmup, expected)
    assert len(trained) > 30


def test_worker_0_goes_on_without_any_planner():
    parts = Parts(real_size=3)
    for _ in parts.acting():
        pass
    assert parts.clients[0].counters.env_steps == 603
    assert [len(queue.items) for queue in parts.real] == [3]
    assert parts.drawn and not any(one for one, _ in parts.drawn)


@pytest.mark.slow
def test_a_planner_that_comes_late_is_caught_up_with_by_little():
    parts = Parts(num_workers=2, max_simulated_ratio=2.0, total_steps=2_003)
    planning = parts.planning(0)
    for step, _ in enumerate(parts.acting()):
        if step > 500:
            next(planning)
            next(planning)
    first = next(index for index, (one, _) in enumerate(parts.drawn) if one)
    assert first > 200
    assert is_within(parts.drawn, 2.0)
    assert is_within([(0.0, 0.0)] * 17 + parts.drawn[first:], 2.0)  # not with all the real ones before


def test_nothing_is_planned_before_the_model_is_good_enough():
    parts = Parts(max_model_error=0.0)
    counters = parts.run()
    assert counters.model_updates > 50
    assert not parts.simulated.items and not any(one for one, _ in parts.drawn)


def test_planners_wait_while_their_queue_is_full():
    parts = Parts(num_workers=3)
    for _, _ in zip(range(60), parts.acting(), strict=False):
        pass
    parts.simulated.items.clear()
    planning = [parts.planning(index) for index in range(2)]
    for _ in range(30):
        assert all(next(ticks) == Tick(0, []) for ticks in planning)
    assert len(parts.simulated.items) == 2
    waiting = [planner._encoded for planner in parts.planners]
    parts.simulated.take()
    for ticks in planning:
        next(ticks)
    assert len(parts.simulated.items) == 2
    assert [planner._encoded is one for planner, one in zip(parts.planners, waiting, strict=True)].count(False) == 1


def test_a_stop_ends_planners_and_so_does_the_loss_of_worker_0():
    parts = Parts(num_workers=3, ps_deadline=1.0)
    parts.store.states = ("lost", "active", "active")
    with pytest.raises(RunError, match="^worker 0, which acts, was lost"):
        for _ in parts.planning(0):
            pass
    parts.store.states = ("active", "active", "active")
    parts.store.add_counts(Counters(stopped=Stop.SOLVED))
    for _ in parts.planning(1):
        pass


def test_after_the_parameters_were_put_back_nothing_of_before_is_sent_or_learned_from():
    parts = Parts()
    acting, planning = parts.acting(), parts.planning(0)
    for _ in range(60):
        next(acting)
        next(planning)
    while not parts.actor._plans.at_hand(1):
        next(planning)
    parts.actor.begin_stream()
    parts.planners[0].begin_stream()
    parts.simulated.items.clear()
    assert not parts.actor._plans.at_hand(1) and parts.planners[0]._encoded is None
    for queue in parts.real:
        queue.items.clear()
        queue._last.clear()
    for _ in range(9):
        next(acting)
    assert [item.number for item in parts.real[0].items] == [0]
    acting.close()


def test_which_part_a_worker_runs_follows_from_the_settings():
    def parts_of(**settings):
        config = make_config("dyna_q", "cartpole", SMALL | {"num_workers": 3, "send_period": 16} | settings)
        return [part_of(config, worker) for worker in range(config.num_workers)]

    all_alike = [Part.ACTOR_LEARNER] * 3
    assert parts_of() == parts_of(planning="separate") == [Part.ACTOR_LEARNER, Part.PLANNER, Part.PLANNER]
    assert parts_of(planning="own") == all_alike
    assert parts_of(store="shared_memory", num_ps=0) == all_alike
    assert parts_of(update_mode="sync") == all_alike
    assert parts_of(local_steps=0) == parts_of(local_steps=2) == parts_of()
    assert parts_of(replay="global") == [Part.LEARNER, Part.ACTOR, Part.ACTOR]
    assert parts_of(num_workers=1, planning="separate") == [Part.ACTOR_LEARNER]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"store": "shared_memory", "num_ps": 0}, "--store=shared_memory: --planning=separate needs"),
        ({"update_mode": "sync"}, "--update_mode=sync: with --planning=separate"),
        ({"local_steps": 2, "averages": "shared"}, "--averages=shared: with --planning=separate"),
        ({"replay": "global"}, "--replay=global: with --planning=separate"),
    ],
)
def test_what_does_not_go_with_planners_is_refused(settings, message):
    with pytest.raises(UserError, match=f"^{message}"):
        make_config("dyna_q", "cartpole", SMALL | {"planning": "separate"} | settings)
