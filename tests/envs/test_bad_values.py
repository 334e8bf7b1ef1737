"""Values that nothing can be learned from: where they come in, what follows of the game, and when it is too much."""

import numpy as np
import pytest
from environment_helpers import make
from faulty_environments import RARE

from async_dqn.base.errors import RunFailed


def played(name, num_steps, num_envs=1):
    env = make(f"faulty_environments:Faulty/{name}-v0", num_envs=num_envs)
    first = env.reset()
    return env, first, [env.step(np.ones(num_envs, int)) for _ in range(num_steps)]


@pytest.mark.parametrize("name", RARE)
def test_a_game_ends_before_a_bad_step_and_does_not_count(name):
    env, _, results = played(name, 3 * 20)
    (number,) = (number for number, result in enumerate(results) if result.bad_values)
    assert number == 2 * 20 + 7  # two whole games, then the eighth step of the third
    bad = results[number]
    value = bad.bad_values[0]
    field = "observation[0]" if name == "RareNanObservation" else "reward"
    assert (value.environment, value.step, value.field) == (0, 8, field)
    assert not abs(value.value) < 1e39
    assert bad.spoilt().tolist() == [0] and bad.first().tolist() == [True]
    assert not bad.terminated[0] and not bad.truncated[0] and bad.reward[0] == 0 and bad.episodes == []
    np.testing.assert_array_equal(bad.next_observation, [[3, 7]])  # what was acted on
    np.testing.assert_array_equal(bad.observation, [[4, 0]])
    later = results[2 * 20 + 8 :]
    assert [result.observation[0].tolist() for result in later] == [[4, t] for t in range(1, 13)]
    assert [episode.episode_return for result in results for episode in result.episodes] == [20, 20]
    assert all(np.isfinite(one).all() for result in results for one in (result.next_observation, result.reward))


def test_the_games_of_the_others_go_on():
    env, _, results = played("RareNanReward", 100, num_envs=2)
    env._environments.envs[1].unwrapped.game += 3  # its next bad step comes in another game
    results += [env.step(np.ones(2, int)) for _ in range(500)]
    spoilt = [result for result in results if result.bad_values]
    assert {tuple(result.spoilt()) for result in spoilt} >= {(0,), (1,)}
    for result in spoilt:
        for other in {0, 1} - set(result.spoilt()):
            assert result.first()[other] == (result.terminated | result.truncated)[other]
            assert result.reward[other] == 1
    assert all(episode.episode_return == 20 for result in results for episode in result.episodes)


def test_a_game_whose_first_observation_is_bad_is_not_played():
    env, _, results = played("RareNanStart", 3 * 20)
    end, following = results[2 * 20 - 1], results[2 * 20]
    assert end.terminated[0] and [episode.episode_return for episode in end.episodes] == [20]
    assert end.bad_values == []
    np.testing.assert_array_equal(end.observation, [[0, 0]])  # in place of what was no number
    assert [(bad.step, bad.field) for bad in following.bad_values] == [(0, "observation[0]")]
    assert following.spoilt().tolist() == [0] and following.first().tolist() == [True]
    np.testing.assert_array_equal(following.observation, [[4, 0]])
    assert [episode.episode_return for result in results for episode in result.episodes] == [20, 20]


def test_a_state_between_bad_steps_can_be_restored():
    env, _, results = played("SeededNan", 20 * 20 + 3, num_envs=3)
    assert {bad.environment for result in results for bad in result.bad_values} == {0, 1, 2}
    other = make(env.spec.id, num_envs=3)
    np.testing.assert_array_equal(other.restore(env.state()), results[-1].observation)
    for _ in range(100):
        ours, theirs = (one.step(np.ones(3, int)) for one in (env, other))
        np.testing.assert_array_equal(ours.observation, theirs.observation)
        assert str(ours.bad_values) == str(theirs.bad_values)  # NaN is not equal to itself


@pytest.mark.parametrize(
    "name, words",
    [
        ("OftenNanReward", r"OftenNanReward-v0, environment \d: reward is nan at step \d+ of its game, and so it was"),
        ("BreaksDown", r"BreaksDown-v0, environment \d: observation\[0\] is nan at .*, and so it was"),
    ],
)
def test_too_many_bad_values_end_the_run(name, words):
    with pytest.raises(RunFailed, match=words):
        played(name, 1_000, num_envs=2)


def test_few_bad_values_never_do():
    _, _, results = played("RareNanReward", 5_000)
    assert sum(len(result.bad_values) for result in results) == 27  # in 48 steps, and 188 later ones each


def test_what_atari_calls_lives_is_nothing_elsewhere():
    env, _, results = played("StrangeLives", 50)
    assert env.state()["lives"].tolist() == [0]
    assert sum(result.terminated[0] for result in results) == 2
