"""Prioritized replay: draws against a slow model of the priorities, importance weights by hand, saving."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_dqn.base.schedules import constant, linear
from async_dqn.data.experience import ReplayExperience, Step
from async_dqn.data.prioritized import PrioritizedSampler, priority_bytes
from async_dqn.data.replay import Replay

ALPHA = 0.6


def make_replay(*, num_envs=2, capacity=32, stack=1, n_step=1):
    return Replay(
        num_envs=num_envs,
        capacity=capacity,
        observation_shape=(1,),
        observation_dtype=np.float32,
        stack=stack,
        n_step=n_step,
        discount=0.9,
    )


def add(replay, ended=None):
    """One step of all environments; an observation is 1,000 times the environment plus the number of its slot."""
    ended = np.zeros(replay.num_envs, bool) if ended is None else ended
    observation = (1_000 * np.arange(replay.num_envs) + replay.added).astype(np.float32)[:, None]
    replay.add(observation, np.zeros(replay.num_envs, int), observation[:, 0], ended, ended & False, observation + 1)


def make_sampler(replay, alpha=ALPHA, beta=1.0):
    return PrioritizedSampler(replay, priority_exponent=alpha, importance_exponent=constant(beta))


def sample(sampler, batch_size, rng):
    """Environments and indices of a minibatch, and its weights."""
    batch = sampler.make_batch(batch_size)
    sampler.sample(rng, 0, batch)
    env, index = np.divmod(batch.s_tm1[:, -1, 0].astype(int), 1_000)
    return env, index, batch.weight


def priorities_of(sampler, replay):
    """{(environment, index): priority to the power of alpha} of all valid starts."""
    env, index = replay.valid_starts()
    leaves = env * replay.slots_per_env + index % replay.slots_per_env
    return dict(zip(zip(env.tolist(), index.tolist(), strict=True), sampler._tree.values[leaves], strict=True))


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3), st.integers(0, 0)),
        st.tuples(st.just("learn"), st.integers(1, 9), st.integers(0, 2**31)),
        st.tuples(st.just("truncate"), st.integers(0, 0), st.integers(0, 0)),
    ),
    min_size=10,
    max_size=120,
)


@given(OPERATIONS, st.integers(1, 3), st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_priorities_are_those_of_a_slow_model_under_random_operations(operations, stack, n_step):
    replay = make_replay(stack=stack, n_step=n_step, capacity=2 * 12)
    sampler = make_sampler(replay)
    model, seen, largest = {}, [0, 0], 1.0
    for what, number, seed in operations:
        if what == "add":
            add(replay, np.array([number & 1, number & 2], bool))
        elif what == "truncate":
            replay.truncate()
        elif len(replay):
            for env in range(2):
                model |= {(env, index): largest for index in range(seen[env], replay.added[env])}
            seen = replay.added.tolist()
            rng = np.random.default_rng(seed)
            env, index, _ = sample(sampler, number, rng)
            assert replay.is_valid(env, index).all()
            errors = rng.normal(size=number) * 10.0 ** rng.integers(-4, 4)
            sampler.feedback(errors)
            for one in zip(env.tolist(), index.tolist(), errors.tolist(), strict=True):
                model[one[:2]] = (abs(one[2]) + 1e-6) ** ALPHA
                largest = max(largest, model[one[:2]])
            found = priorities_of(sampler, replay)
            assert found == pytest.approx({key: model[key] for key in found})
        sampler.check_valid()
        replay.check_valid()


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_transitions_are_drawn_in_proportion_to_their_priorities(alpha):
    replay = make_replay(num_envs=1, capacity=10)
    for step in range(14):
        add(replay, np.array([step == 8]))
    sampler = make_sampler(replay, alpha)
    valid = replay.valid_starts()[1]
    assert len(valid) == 10 - 1 - 1  # the newest, and a last one
    _, index, _ = sample(sampler, 1_000, np.random.default_rng(0))
    assert np.unique(index).tolist() == valid.tolist()
    sampler.feedback(-((index - 3.0) ** 2))
    errors = (valid - 3.0) ** 2
    _, index, _ = sample(sampler, 100_000, np.random.default_rng(1))
    shares = np.array([(index == one).mean() for one in valid])
    np.testing.assert_allclose(shares, errors**alpha / (errors**alpha).sum(), atol=0.006)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_by_hand(beta):
    replay = make_replay(num_envs=1, capacity=10)
    for _ in range(4):
        add(replay)
    sampler = make_sampler(replay, alpha=0.5, beta=beta)
    _, index, _ = sample(sampler, 100, np.random.default_rng(0))
    assert set(index) == {0, 1, 2}
    sampler.feedback(np.array([4.0, -9.0, 1.0])[index] - np.array([1e-6, -1e-6, 1e-6])[index])
    # Drawn with probabilities as 2 : 3 : 1. A weight is (N P) ** -beta, over the largest of the minibatch.
    expected = {0: (1 / 2) ** beta, 1: (1 / 3) ** beta, 2: 1.0}
    _, index, weight = sample(sampler, 100, np.random.default_rng(1))
    assert set(index) == {0, 1, 2} and weight.dtype == np.float32
    np.testing.assert_allclose(weight, [expected[one] for one in index], rtol=1e-5)
    for seed in range(20):
        _, index, weight = sample(sampler, 2, np.random.default_rng(seed))
        weights = np.array([expected[one] for one in index])
        np.testing.assert_allclose(weight, weights / weights.max(), rtol=1e-5)


def test_what_is_new_has_the_largest_priority_that_there_ever_was():
    replay, rng = make_replay(num_envs=1, capacity=20), np.random.default_rng(0)
    sampler = make_sampler(replay, alpha=1.0)
    for _ in range(2):
        add(replay)
    sample(sampler, 1, rng)  # slot 0, as slot 1 is not complete
    assert priorities_of(sampler, replay) == {(0, 0): 1.0}
    sampler.feedback(np.array([50.0]))
    sampler.feedback(np.array([2.0]))  # it is no longer so large, but was
    for _ in range(2):
        add(replay)
    sample(sampler, 1, rng)
    assert priorities_of(sampler, replay) == pytest.approx({(0, 0): 2, (0, 1): 1, (0, 2): 50}, abs=1e-5)
    sampler.check_valid()


def test_a_replay_that_was_filled_from_elsewhere_is_drawn_from_uniformly():
    """So it is with one that comes from disk without priorities."""
    replay = make_replay(num_envs=1, capacity=10)
    for _ in range(35):
        add(replay)
    sampler = make_sampler(replay)
    _, index, weight = sample(sampler, 500, np.random.default_rng(0))
    assert np.unique(index).tolist() == replay.valid_starts()[1].tolist()
    assert set(priorities_of(sampler, replay).values()) == set(weight) == {1.0}
    sampler.check_valid()


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="cannot sample 3: none of 0 slots"):
        sample(make_sampler(make_replay()), 3, np.random.default_rng(0))


class Game:
    """A prioritized experience whose observations are numbers of slots, and a loss that is scripted."""

    def __init__(self, importance_exponent=None, seed=0):
        replay = make_replay(capacity=40)
        beta = importance_exponent or linear(0.4, 1.0, begin=0, steps=100)
        sampler = PrioritizedSampler(replay, priority_exponent=ALPHA, importance_exponent=beta)
        self.experience = ReplayExperience(replay, batch_size=6, train_period=1, warmup_steps=4, sampler=sampler)
        self.rng, self.step = np.random.default_rng(seed), 0

    def add(self):
        ring = self.experience.ring
        observation = ring.added.astype(np.float32)[:, None]
        ended = self.rng.random(2) < 0.2
        zeros = np.zeros(2, np.int32)
        self.experience.add(
            Step(observation, observation[:, None], zeros, {}, observation[:, 0], ended, ended, observation + 1), 2
        )
        self.step += 2

    def learn(self):
        """The minibatches that are due, as copies; their errors are random."""
        batches = []
        while self.experience.due():
            self.experience.draw(self.rng, self.step)
            batches.append(type(self.experience.batch)(*(one.copy() for one in self.experience.batch)))
            self.experience.feedback(self.rng.normal(size=6).astype(np.float32))
        return batches


def test_minibatches_hold_what_was_drawn_and_the_weights_of_the_step():
    game = Game(importance_exponent=lambda step: {20: 0.0, 40: 1.0}[step])
    for _ in range(10):
        game.add()
    for batch in game.learn():
        np.testing.assert_array_equal(batch.r_t, batch.s_tm1[:, 0, 0])
        np.testing.assert_array_equal(batch.s_t, batch.s_tm1 + 1)
        assert batch.weight.tolist() == [1] * 6
    for _ in range(10):
        game.add()
    weights = np.array([batch.weight for batch in game.learn()])
    assert (weights.max(axis=1) == 1).all() and (weights > 0).all() and np.ptp(weights) > 0.1


def test_without_importance_exponent_every_transition_counts_alike():
    game = Game(importance_exponent=constant(0.0))
    for _ in range(10):
        game.add()
        assert all((batch.weight == 1).all() for batch in game.learn())


@pytest.mark.parametrize("steps", [3, 11, 40])
def test_what_was_saved_goes_on_to_the_last_bit(steps):
    expected, other = Game(seed=1), Game(seed=2)
    for game in (expected, other):
        for _ in range(steps):
            game.add()
            game.learn()
    expected.add()  # is not drawn from yet when it is saved
    arrays, values = expected.experience.state()
    saved = {name: array.copy() for name, array in arrays.items()}
    ring, rng = expected.experience.ring, expected.rng.bit_generator.state
    resumed = Game()
    vars(resumed.experience.ring).update(copy.deepcopy(vars(ring)))
    resumed.experience.restore(saved, values)
    resumed.rng.bit_generator.state, resumed.step = rng, expected.step
    assert arrays.keys() == {"priority/values", "priority/added", "priority/largest"}
    drawn = []
    for game in (expected, resumed):
        batches = game.learn()
        for _ in range(30):
            game.add()
            batches += game.learn()
        drawn.append(batches)
    assert len(drawn[0]) == len(drawn[1]) > 50
    for one, two in zip(*drawn, strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)
    for name, array in arrays.items():  # a snapshot is written while training goes on
        np.testing.assert_array_equal(array, saved[name])


def test_priorities_of_another_replay_are_refused():
    saved, other = Game(), Game()
    for _ in range(5):
        saved.add()
    arrays, values = saved.experience.state()
    with pytest.raises(ValueError, match="those of another replay"):
        other.experience.restore(arrays, values)
    with pytest.raises(KeyError):
        other.experience.restore({}, values)


@pytest.mark.parametrize(("num_envs", "capacity"), [(1, 10), (2, 32), (3, 100), (8, 4_000)])
def test_memory_is_that_of_the_tree(num_envs, capacity):
    replay = make_replay(num_envs=num_envs, capacity=capacity)
    tree = make_sampler(replay)._tree
    assert priority_bytes(num_envs, capacity) == tree._nodes.nbytes
