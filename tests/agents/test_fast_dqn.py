"""Fast DQN: what it learns does not depend on threads, and it acts on the target network."""

import json
import threading
import time

import numpy as np
import pytest
from one_worker import OneWorker

from async_dqn.agents.table import make_config
from async_dqn.base.errors import UserError

SMALL = {
    "env": "CartPole-v1",
    "num_workers": 1,
    "threads": 1,
    "envs_per_worker": 2,
    "batch_size": 16,
    "warmup_steps": 40,
    "replay_capacity": 1_000,
    "target_period": 6,
    "train_period": 2,
    "total_steps": 203,
}


class Run(OneWorker):
    """One run in this process, from the beginning; `delay` is called before every minibatch and every step."""

    def __init__(self, delay=lambda what: None, **settings):
        super().__init__(make_config("fast_dqn", "cartpole", SMALL | settings))
        experience, send = self.actor_learner.experience, self.env.send
        sample = experience.sample
        experience.sample = lambda rng, step: (delay("minibatch"), sample(rng, step))
        self.env.send = lambda actions: (delay("step"), send(actions))


def slow(what, seconds=0.01):
    def delay(part):
        if part == what:
            time.sleep(seconds)  # whichever of the two threads is slower, the result is the same

    return delay


@pytest.fixture(scope="module")
def expected():
    """What training between the steps gives."""
    state = Run(concurrent=False).begin().run().store.state()
    assert state["counter/minibatches"] > 70 and state["counter/target_refreshes"] >= 12
    return state


@pytest.mark.parametrize("delay", [slow("nothing"), slow("minibatch"), slow("step")], ids=["none", "learner", "actor"])
def test_training_beside_acting_gives_the_same_bits_whatever_the_threads_do(expected, delay):
    np.testing.assert_equal(Run(delay).begin().run().store.state(), expected)


@pytest.mark.parametrize("concurrent", [True, False])
def test_a_prediction_for_each_environment_gives_the_same_run(expected, concurrent):
    np.testing.assert_equal(Run(concurrent=concurrent, synchronized=False).begin().run().store.state(), expected)


@pytest.mark.parametrize("num_steps", [1, 30, 51, 54])
def test_a_run_that_was_stopped_goes_on_as_if_it_never_was(expected, num_steps):
    stopped = Run(slow("minibatch", 0.001)).begin()
    steps = stopped.steps()
    for _ in range(num_steps):
        next(steps)
    steps.close()
    stopped.client.finish()
    arrays, values = stopped.actor_learner.state()
    resumed = Run(seed=1)
    resumed.store.restore(stopped.store.state())
    resumed.client.start()
    vars(resumed.actor_learner.experience.ring).update(vars(stopped.actor_learner.experience.ring))
    resumed.actor_learner.restore(arrays, json.loads(json.dumps(values)), in_episode=True)
    resumed.env = stopped.env
    np.testing.assert_equal(resumed.run().store.state(), expected)


def test_where_a_crash_left_no_replay_the_result_still_does_not_depend_on_threads():
    """Then the target network is refreshed within periods, as the count of minibatches goes on from anywhere."""
    stopped = Run(concurrent=False).begin()
    steps = stopped.steps()
    for _ in range(51):
        next(steps)
    steps.close()
    stopped.client.finish()
    state = stopped.store.state()
    assert state["counter/minibatches"] % SMALL["target_period"]

    def after(delay, **settings):
        run = Run(delay, seed=1, epsilon_start=0.0, epsilon_final=0.0, **settings).begin()  # the target network acts
        run.store.restore(state)
        run.client.start()
        return run.run().store.state()

    expected = after(slow("nothing"), concurrent=False)
    assert expected["counter/target_refreshes"] > state["counter/target_refreshes"] + 1
    for delay in (slow("minibatch"), slow("step")):
        np.testing.assert_equal(after(delay), expected)


def test_acting_goes_on_while_a_minibatch_is_computed():
    due, begun, stepped = (threading.Event() for _ in range(3))

    def delay(part):
        if part == "step" and due.is_set():
            assert begun.wait(30), "the first minibatch was due, but did not begin"
            stepped.set()
        if part == "minibatch" and not begun.is_set():
            begun.set()
            assert stepped.wait(30), "no step was taken while the first minibatch was under way"

    run = Run(delay)
    take_due = run.actor_learner.experience.take_due

    def take_and_tell():
        number = take_due()
        if number:
            due.set()
        return number

    run.actor_learner.experience.take_due = take_and_tell
    run.begin().run()
    assert begun.is_set()


def test_actions_are_those_of_the_target_network():
    run = Run(epsilon_start=0.0, epsilon_final=0.0).begin()
    for _ in run.steps():
        pass
    layout = run.agent.modules[0].layout
    observation = np.random.default_rng(0).normal(size=(200, 1, 4)).astype(np.float32)
    run.client.online["q"].assign(-run.client.target["q"])  # as different as can be
    found = run.actor_learner.evaluate(observation)["q_values"]
    target = layout.unflatten(run.client.target["q"].numpy())
    np.testing.assert_allclose(found, run.agent.apply({"q": target}, observation)["q_values"], rtol=1e-5)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"envs_per_worker": 5}, "--envs_per_worker=5: must divide the 12 agent steps"),
        ({"envs_per_worker": 1}, "--envs_per_worker=1: there is nothing to synchronize"),
        ({"overlap_steps": True}, "--overlap_steps: --agent=fast_dqn has no such setting"),
        ({"noisy": True, "synchronized": False}, "--noisy=True: is one noise for all environments"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        make_config("fast_dqn", "cartpole", SMALL | settings)


def test_after_a_crash_periods_still_end_where_the_target_is_refreshed(expected):
    run = Run().begin()
    steps = run.steps()
    for _ in range(51):
        next(steps)
    experience = run.actor_learner.experience
    refreshes = run.client.counters.target_refreshes
    experience.truncate()  # as where new games begin
    while not experience.ends_period:
        next(steps)
    assert run.client.counters.minibatches % SMALL["target_period"] == 0
    assert run.client.counters.target_refreshes == refreshes + 1
    steps.close()


def test_after_a_crash_a_replay_that_is_warm_is_learned_from_at_once():
    run = Run().begin()
    steps = run.steps()
    experience = run.actor_learner.experience
    while not (experience.ends_period and experience._is_warm):
        next(steps)
    steps.close()
    experience._flush()
    experience._is_warm = False  # as of one that was made anew, on the replay of before
    experience.truncate()
    assert experience._is_warm
