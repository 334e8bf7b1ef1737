"""Planning: how wrong the model is, where it starts from, and its rows against a model that is known exactly."""

import numpy as np
import pytest
from planning_helpers import DISCOUNT, imagine, make

from async_dqn.data.planning import ModelError, RunningDeviation, VisitCounts


def test_the_error_of_the_model_is_the_share_of_the_variance_that_it_does_not_explain():
    error, rng = ModelError(2), np.random.default_rng(0)
    assert np.isnan(error.share)
    change = rng.normal(size=(5_000, 2)) * [3, 0.1] + [5, 0]
    error.add(np.broadcast_to([5, 0], change.shape), change)
    assert error.share == pytest.approx(1, abs=0.15)
    error.add(change + np.array([0.3, 0.01]), change)
    assert error.share == pytest.approx(0.01, abs=0.003)  # (0.3 / 3) ** 2


def draws(experience, count, seed=1):
    """So many minibatches, as copies."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        experience.draw(rng, 0)
        yield type(experience.batch)(*(column.copy() for column in experience.batch))


def test_each_real_minibatch_is_followed_by_so_many_simulated_ones():
    experience = make(simulated_ratio=1.5)
    found = [int(batch.is_simulated[0]) for batch in draws(experience, 10)]
    assert found == [0, 1, 0, 1, 1, 0, 1, 0, 1, 1]
    assert experience.due() == 51 - 4 + 0  # 60 steps less the 9 of the warm-up, and 4 were real


def test_simulated_rows_are_what_the_model_says():
    experience = make()
    for batch in draws(experience, 20):
        assert experience.plans
        np.testing.assert_array_equal(batch.model_error, 0)
        np.testing.assert_array_equal(batch.weight, 1)
        state, action = batch.s_tm1[:, 0, 0], batch.a_tm1
        np.testing.assert_array_equal(batch.s_t[:, 0, 0], state + 1 + action)
        np.testing.assert_array_equal(batch.r_t, state)
        if batch.is_simulated.all():
            expected = np.where(action == 0, DISCOUNT * (1 - 0.25), DISCOUNT)
        else:
            np.testing.assert_array_equal(batch.is_simulated, 0)
            expected = np.where(batch.s_t[:, 0, 0] > 12, 0, DISCOUNT)
        np.testing.assert_allclose(batch.discount_t, expected)


def test_trajectories_go_on_greedily_and_end_where_the_episode_probably_does():
    def ends(outputs, observation):
        imagined = imagine(outputs, observation)
        return imagined._replace(termination=np.where(observation[:, -1] >= 6, 0.9, 0.0).repeat(2, axis=1))

    experience = make(imagine=ends, depth=4)
    _, batch = draws(experience, 2)
    rows = [slice(2 * depth, 2 * depth + 2) for depth in range(4)]
    alive = np.ones(2)
    for before, after in zip(rows, rows[1:], strict=False):
        np.testing.assert_array_equal(batch.s_tm1[after], batch.s_t[before])
        np.testing.assert_array_equal(batch.a_tm1[after], 1)  # as the states are positive
        alive = alive * (batch.s_tm1[before][:, 0, 0] < 6)
        np.testing.assert_array_equal(batch.weight[after], alive)
    np.testing.assert_array_equal(batch.weight[rows[0]], 1)


def test_nothing_is_planned_while_the_model_is_too_wrong():
    def wrong(outputs, observation):
        imagined = imagine(outputs, observation)
        return imagined._replace(next_observation=imagined.next_observation + 5)

    experience = make(imagine=wrong)
    assert not any(batch.is_simulated.any() for batch in draws(experience, 5))
    assert experience.batch.model_error.min() > 1 and not experience.plans


def test_nothing_is_planned_where_nothing_is_asked_for():
    assert not any(batch.is_simulated.any() for batch in draws(make(simulated_ratio=0.0), 5))


def test_the_model_learns_from_single_steps_whatever_the_length_of_returns():
    experience = make(n_step=3)
    rng = np.random.default_rng(0)
    experience.sample(rng, 0)
    batch = experience.batch
    state, following = batch.s_tm1[:, 0, 0], batch.s_1[:, 0, 0]
    np.testing.assert_array_equal(following, state + 1 + batch.a_tm1)
    np.testing.assert_array_equal(batch.r_1, state)
    ended = following > 12
    np.testing.assert_allclose(batch.discount_1, np.where(ended, 0, DISCOUNT))
    assert ended.any() and (batch.discount_t[~ended] < DISCOUNT).all() and (batch.r_t[~ended] > state[~ended]).all()


def errors_by_hand(state, action):
    """Of actions in states [C] of the known model, the larger of the error there and of that where they lead."""

    def error(x, a):
        return abs(x + discount(a) * 10 * (x + 1 + a) - (10 * x if a else 0))

    def discount(a):
        return DISCOUNT * (0.75 if a == 0 else 1)

    return [max(error(x, a), discount(a) * error(x + 1 + a, 1)) for x, a in zip(state, action, strict=True)]


def test_prioritized_sweeping_prefers_large_errors_and_what_leads_to_them():
    experience, uniform = make(sweeping="prioritized"), make()
    state, action = np.arange(12, dtype=np.float32), np.arange(12, dtype=np.int32) % 2
    found = experience._bellman_errors(state[:, None, None], action)
    np.testing.assert_allclose(found, errors_by_hand(state, action), rtol=1e-5)
    means = []
    for each in (experience, uniform):
        rng = np.random.default_rng(0)
        starts = [each._starts(rng) for _ in range(300)]
        means.append(np.mean([errors_by_hand(state[:, 0, 0], action) for state, action in starts]))
        assert {len(action) for _, action in starts} == {8}
        assert {int(one) for _, action in starts for one in action} == {0, 1}
    assert means[0] > 1.15 * means[1]


def test_novelty_prefers_what_was_seldom_seen():
    visits = VisitCounts(2)
    common, rare = np.array([[1.0, 2.0]]), np.array([[-3.0, 0.5]])
    visits.add(np.repeat(common, 50, axis=0))
    visits.add(rare)
    np.testing.assert_array_equal(visits.of(np.concatenate([common, rare])), [50, 1])
    experience, uniform = make(sweeping="novelty"), make()
    means = []
    for each in (experience, uniform):
        rng = np.random.default_rng(0)
        means.append(np.mean([experience._visits.of(each._starts(rng)[0]) for _ in range(300)]))
    assert means[0] < 0.95 * means[1]


def test_deviations_are_those_of_the_latest_minibatches_and_of_states_where_the_episode_goes_on():
    spread = RunningDeviation(2)
    np.testing.assert_array_equal(spread.deviation, 1)  # nothing is known
    change = np.array([[1, 5], [3, 5], [99, 99]], np.float32)
    spread.add(change, np.array([True, True, False]), np.array([0, 0, 6], np.float32))
    np.testing.assert_allclose(spread.deviation, [1, 1, np.sqrt(8)], rtol=1e-6)  # the second does not vary
    rng = np.random.default_rng(0)
    for scale in (50, 2):
        for _ in range(2_000):
            spread.add(scale * rng.normal(size=(8, 2)) + 7, np.ones(8, bool), scale * rng.normal(size=8))
    np.testing.assert_allclose(spread.deviation, 2, rtol=0.1)


@pytest.mark.parametrize("sweeping", ["uniform", "prioritized", "novelty"])
def test_its_state_comes_back(sweeping):
    first, second = make(sweeping=sweeping), make(num_steps=0, sweeping=sweeping)
    first.draw(np.random.default_rng(0), 0)
    arrays, values = first.state()
    vars(second.ring).update(vars(first.ring))
    second.restore(arrays, values)
    assert second.due() == first.due()
    rngs = [np.random.default_rng(5), np.random.default_rng(5)]
    for _ in range(60):  # past the next look at the model
        first.draw(rngs[0], 0)
        second.draw(rngs[1], 0)
        meaningless = ("r_1", "discount_1", "s_1") if first.batch.is_simulated.any() else ()
        for name, one in first.batch._asdict().items():
            if name not in meaningless:
                np.testing.assert_array_equal(one, getattr(second.batch, name))
