"""What holds for every agent of the table, by every way to a store that runs in one process."""

import copy
import dataclasses
import functools
import itertools

import numpy as np
import pytest
from one_worker import OneWorker

from async_dqn.agents import table
from async_dqn.base.errors import RunFailed
from async_dqn.envs import registry
from async_dqn.run import build, checkpoints

SHARED = ["hogwild", "locked", "sync"]  # in memory that processes share
WAYS = ["direct", "gradient", "delta", *SHARED]


NORMALIZED = [f"{name} --normalize_observations" for name in ("dqn", "ppo", "dyna_q")]

# Options that change what is drawn, handed back or saved, beside the agents as they are.
AGENTS = [
    *table.TABLE,
    "dqn --prioritized",
    "dqn --noisy --dueling --layer_norm",
    "fast_dqn --prioritized --noisy",
    *NORMALIZED,
    "a3c --lstm",
]


QUICK = ["dqn", "ppo", NORMALIZED[1]]  # one that learns from replay, one from rollouts


def pairs(ways=WAYS):
    """The agents with the ways that they go: those that train in one process have the direct one alone."""
    classes = {agent: table.find(agent.split()[0]) for agent in AGENTS}
    found = [(agent, way) for agent in AGENTS for way in ways if way == "direct" or classes[agent].distributed]
    return [pytest.param(*pair, marks=[] if pair[0] in QUICK else pytest.mark.slow) for pair in found]


EVERY_PAIR = pytest.mark.parametrize("agent_name, way", pairs())

# Small enough for seconds; each agent takes those of these settings that it has.
SMALL = {
    "env": "CartPole-v1",
    "num_workers": 1,
    "update_mode": "async",
    "threads": 1,
    "envs_per_worker": 2,
    "batch_size": 16,
    "overlap": False,
    "overlap_steps": False,
    "warmup_steps": 40,
    "replay_capacity": 1_000,
    "target_period": 7,
    "rollout_length": 8,
    "max_model_error": 1e9,
    "t_max": 4,
}


class Parts(OneWorker):
    """One worker of an agent that goes one of the ways to a store."""

    def __init__(self, agent_name, way, total_steps=203, **settings):
        agent_name, *options = agent_name.split()
        names = {field.name for field in dataclasses.fields(table.find(agent_name).Config)}
        small = {name: value for name, value in SMALL.items() if name in names}
        small |= {option.removeprefix("--"): True for option in options}
        overrides = small | {"total_steps": total_steps, "local_steps": int(way == "delta")} | settings
        overrides |= {"store": "shared_memory", "update_mode": way} if way in SHARED else {}
        config = table.make_config(agent_name, "cartpole", overrides)
        super().__init__(config, is_baseline=way == "direct")


@functools.lru_cache(maxsize=len(WAYS))  # conftest.py has all tests of an agent follow each other
def finished(agent_name, way):
    """A run of 203 steps in environments that are stepped two at a time, from beginning to end."""
    return Parts(agent_name, way).begin().run()


@pytest.mark.parametrize("agent_name, way", pairs(["gradient", *SHARED]))
def test_pushing_gradients_equals_the_baseline_to_the_last_bit(agent_name, way):
    expected = finished(agent_name, "direct")
    np.testing.assert_equal(finished(agent_name, way).store.state(), expected.store.state())
    assert expected.store.pull().counters.updates > 20


@pytest.mark.parametrize("agent_name, way", pairs(["delta"]))
def test_pushing_deltas_equals_the_baseline_to_rounding_over_50_updates(agent_name, way):
    found, expected = (Parts(agent_name, name, total_steps=10_000).begin() for name in (way, "direct"))
    for parts in (found, expected):
        steps = parts.steps()
        while parts.client.counters.updates < 50:
            next(steps)
    assert found.store.pull().counters == expected.store.pull().counters
    for name, start in found.start.items():
        online = expected.client.online[name].numpy()
        np.testing.assert_allclose(found.client.online[name].numpy(), online, atol=1e-5)
        assert np.abs(online - start).max() > 1e-2


@EVERY_PAIR
def test_the_budget_is_met_exactly_and_metrics_have_the_columns_that_the_agent_names(agent_name, way):
    parts = finished(agent_name, way)
    counters = parts.store.pull().counters
    assert counters.env_steps == counters.claimed_steps == 203
    assert counters.minibatches == counters.updates == parts.client.own_minibatches
    row = parts.actor_learner.metrics()
    assert row.keys() == {"loss", "gradient_norm", *parts.agent.metrics}
    is_known = {name: bool(np.isfinite(value)) for name, value in row.items()}
    assert is_known == dict.fromkeys(row, True) | {"gradient_norm": parts.agent.config.max_gradient_norm > 0}


@EVERY_PAIR
def test_a_run_that_was_stopped_goes_on_as_if_it_never_was(agent_name, way, tmp_path):
    stopped = Parts(agent_name, way).begin()
    steps = stopped.steps()
    assert sum(tick.num_steps for tick in itertools.islice(steps, 45)) == 2 * 45
    steps.close()
    stopped.client.finish()
    checkpoints.save(tmp_path / "own", 90, *stopped.actor_learner.state(), keep=1)
    checkpoints.save(tmp_path / "store", 90, stopped.store.state(), {}, keep=1)

    resumed = Parts(agent_name, way, seed=1)  # what it begins with does not matter
    assert any((one != stopped.start[name]).any() for name, one in resumed.start.items())  # and is another
    own = checkpoints.load(tmp_path / "own", 90)
    resumed.store.restore(checkpoints.load(tmp_path / "store", 90).arrays)
    resumed.client.start()
    if (ring := stopped.actor_learner.experience.ring) is not None:
        vars(resumed.actor_learner.experience.ring).update(vars(copy.deepcopy(ring)))
    resumed.actor_learner.restore(own.arrays, own.values, in_episode=True)
    resumed.env = stopped.env
    resumed.run()
    np.testing.assert_equal(resumed.store.state(), finished(agent_name, way).store.state())


@EVERY_PAIR
def test_what_was_saved_plays(agent_name, way):
    trained = finished(agent_name, way)
    state, agent = trained.store.state(), build.make_agent(trained.agent.config)
    params, acted_on = (
        {module.name: module.layout.unflatten(state[f"{module.name}/{part}"]) for module in agent.modules}
        for part in ("online", "target" if agent.acts_on_target else "online")
    )
    env = registry.make_vector_env(agent.spec, 1, 0, 1)
    observation, episodes = env.reset(), []
    recurrent_state = [np.zeros((1, agent.recurrent_size), np.float32)] if agent.recurrent_size else []
    while not episodes:
        outputs = {
            name: one.numpy() for name, one in agent.apply(params, observation[:, None], *recurrent_state).items()
        }
        expected = agent.apply(acted_on, observation[:, None], *recurrent_state)
        for name, one in trained.actor_learner.evaluate(observation[:, None], *recurrent_state).items():
            np.testing.assert_allclose(expected[name], one, rtol=1e-5, atol=1e-6)
        actions = agent.greedy(outputs)
        (chosen_by,) = {"q_values", "logits"} & outputs.keys()
        np.testing.assert_array_equal(actions, outputs[chosen_by].argmax(axis=1))
        result = env.step(actions)
        observation, episodes = result.observation, result.episodes
        recurrent_state = [outputs["recurrent_state"]] if recurrent_state else []
    assert episodes[0].episode_return >= 8  # CartPole falls no sooner


class SpoiltEnv:
    """Environments whose rewards are not numbers."""

    def __init__(self, env):
        self.num_envs, self.reset, self.send, self._env = env.num_envs, env.reset, env.send, env

    def receive(self):
        result = self._env.receive()
        return result._replace(reward=np.full_like(result.reward, np.nan))


@EVERY_PAIR
def test_minibatches_that_are_not_finite_are_counted_and_not_applied(agent_name, way):
    # What a model imagines is finite, and comes between.
    planning = {"max_simulated_ratio": 0.0} if agent_name.startswith("dyna_q") else {}
    parts = Parts(agent_name, way, max_nonfinite=3, **planning)
    slots = parts.client.slots()
    before = parts.store.state()
    parts.env = SpoiltEnv(parts.env)
    with pytest.raises(RunFailed, match="^3 minibatches"):
        parts.begin().run()
    parts.client.finish()
    counters = parts.store.pull().counters
    assert (counters.minibatches, counters.nonfinite, counters.updates) == (3, 3, 0)
    for name, value in parts.store.state().items():
        if not name.startswith("counter/"):
            np.testing.assert_array_equal(value, before[name], err_msg=name)
    np.testing.assert_equal(parts.client.slots(), slots)
    assert np.isnan(parts.actor_learner.metrics()["loss"])


@EVERY_PAIR
def test_bad_values_of_an_environment_are_kept_out_of_what_is_learned(agent_name, way):
    parts = Parts(agent_name, way, env="faulty_environments:Faulty/SeventhNan-v0", total_steps=403)
    parts.begin()
    rewards = []
    for tick in parts.steps():
        rewards += [episode.episode_return for episode in tick.episodes]
        for column in parts.actor_learner.experience.batch if parts.client.own_minibatches else ():
            assert np.isfinite(column).all()
    parts.client.finish()
    counters = parts.store.pull().counters
    assert counters.env_steps == 403 and counters.bad_values >= 4
    assert counters.nonfinite == 0 and counters.updates > 20
    assert np.isfinite(rewards).all() and len(rewards) > 4
    for name, value in parts.store.state().items():
        assert np.isfinite(value).all(), name
