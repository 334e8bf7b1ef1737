"""vector_env.py: lost lives, seams between episodes, seeds, states that are restored, bad actions."""

import io
from typing import Any

import gymnasium
import numpy as np
import pytest
from environment_helpers import counting_environments, make, play

from async_dqn.base import types
from async_dqn.envs import registry, vector_env
from async_dqn.envs.vector_env import VectorEnv
from async_dqn.settings.environment import EnvironmentOptions


@pytest.fixture(autouse=True, scope="module")
def _counting_environments():
    with counting_environments():
        yield


def assert_same_results(ours, theirs):
    for field in types.StepResult._fields:
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field), err_msg=field)


@pytest.mark.parametrize("protocol", ["classic", "machado"])
def test_a_lost_life_ends_the_training_episode_only_under_classic(protocol):
    env = make("breakout", num_envs=3, protocol=protocol, seed=2)
    env.reset()
    rng, rewards, terminations = np.random.default_rng(0), np.zeros(3), np.zeros(3, int)
    games: list[int] = []  # terminations of each
    while len(games) < 4:
        result = env.step(rng.integers(4, size=3))
        rewards += result.reward
        terminations += result.terminated
        over = [episode.environment for episode in result.episodes]
        same = [(result.observation[i] == result.next_observation[i]).all() for i in range(3)]
        assert same == [i not in over for i in range(3)]  # a lost life leaves the game where it is
        assert not result.truncated.any()
        for episode in result.episodes:
            i = episode.environment
            assert result.terminated[i] and episode.episode_return == rewards[i]
            games.append(terminations[i])
            rewards[i] = terminations[i] = 0
    assert games == [5 if protocol == "classic" else 1] * 4  # Breakout gives five lives


class ScriptedLives:
    """Two games that show the lives of a script [T, 2]; -1 is the end of that game, after which it has 3."""

    def __init__(self, script):
        self._script = iter(script)
        self._lives = np.array([3, 3])
        self.resets: list[list[bool]] = []

    def reset(self, seed=None, options=None):
        mask = options["reset_mask"] if options else np.array([True, True])
        self.resets.append(mask.tolist())
        self._lives = np.where(mask, 3, self._lives)
        return np.zeros((2, 84, 84), np.uint8), {"lives": self._lives}

    def send(self, actions):
        pass

    def recv(self):
        self._lives = np.array(next(self._script))
        none = np.zeros(2, bool)
        return np.ones((2, 84, 84), np.uint8), np.ones(2), self._lives < 0, none, {"lives": self._lives}


@pytest.mark.parametrize(("id", "protocol"), [("pong", "classic"), ("CartPole-v1", "none")])
def test_what_is_sent_is_received_once(id, protocol):
    spec = registry.resolve(id, protocol)
    env, twin = (registry.make_vector_env(spec, 2, seed=3) for _ in range(2))
    env.reset(), twin.reset()
    with pytest.raises(RuntimeError, match="there is nothing to receive"):
        env.receive()
    for actions in ([0, 1], [1, 1], [1, 0]):
        env.send(np.array(actions))
        with pytest.raises(RuntimeError, match=r"receive\(\) must come first"):
            env.send(np.array(actions))
        assert_same_results([env.receive()], [twin.step(np.array(actions))])
    with pytest.raises(ValueError, match="must be 2 integers"):
        env.send(np.array([0, 99]))
    env.step(np.array([0, 0]))  # what was refused is not under way
    env.close(), twin.close()


def test_what_counts_as_a_lost_life():
    # A life lost beside a game over; zero lives in a game that goes on; a life won; a fresh game.
    script = [[2, -1], [0, 3], [1, 2], [2, 2], [-1, 1]]
    games: Any = ScriptedLives(script)
    env = VectorEnv(games, registry.resolve("breakout", "classic"), 2, seed=0)
    _, results = play(env, [[0, 0]] * 5)
    expected = [[True, True], [False, False], [False, True], [False, False], [True, True]]
    assert [r.terminated.tolist() for r in results] == expected
    assert games.resets == [[True, True], [False, True], [True, False]]
    assert [r.episodes for r in results] == [[(1, 1.0, 1)], [], [], [], [(0, 5.0, 5)]]


def test_results_are_not_overwritten_by_later_steps():
    env = make("pong", 2)
    kept = env.reset()
    copy = kept.copy()
    for _ in range(20):
        env.step(np.array([2, 3]))
    np.testing.assert_array_equal(kept, copy)


@pytest.mark.parametrize(
    "name, terminated, truncated",
    [
        ("Terminating", True, False),
        ("Truncating", False, True),
        ("Limited", False, True),
        ("Both", True, False),
    ],
)
def test_no_transition_crosses_the_end_of_an_episode(name, terminated, truncated):
    env = make(f"{name}Counter-v0", num_envs=2)
    first, results = play(env, np.array([[0, 1]] * 7))
    np.testing.assert_array_equal(first, [[0, 0]] * 2)
    assert first.dtype == np.float32 and results[0].reward.dtype == np.float32
    assert [r.next_observation[0, 0] for r in results] == [1, 2, 3, 1, 2, 3, 1]
    assert [r.observation[1, 1] for r in results] == [1, 2, 0, 1, 2, 0, 1]
    assert [r.terminated.tolist() for r in results] == [[i in (2, 5) and terminated] * 2 for i in range(7)]
    assert [r.truncated.tolist() for r in results] == [[i in (2, 5) and truncated] * 2 for i in range(7)]
    assert [r.episodes for r in results if r.episodes] == [[(0, 30.0, 3), (1, 33.0, 3)]] * 2


def test_a_given_limit_replaces_the_environments_own():
    longer = make("LimitedCounter-v0", max_episode_steps=5)
    assert [bool(r.truncated[0]) for r in play(longer, [[0]] * 5)[1]] == [False] * 4 + [True]
    endless = make("EndlessCounter-v0")
    assert endless.spec.max_episode_steps is None
    assert not any(r.truncated[0] for r in play(endless, [[0]] * 9)[1])


def test_reset_starts_every_episode_anew():
    env = make("EndlessCounter-v0", max_episode_steps=3)
    play(env, [[0], [0]])
    _, results = play(env, [[1]] * 3)
    assert [r.episodes for r in results] == [[], [], [(0, 33.0, 3)]]


def test_a_second_reset_does_not_repeat_the_first():
    for id in ("CartPole-v1", "breakout"):
        env = make(id, num_envs=8)
        assert (env.reset() != env.reset()).any()


def test_cartpole_is_gymnasiums_own():
    actions = np.random.default_rng(0).integers(2, size=(80, 2))
    env = make("CartPole-v1", 2, seed=11)
    first, results = play(env, actions)
    for i in range(2):
        reference = gymnasium.make("CartPole-v1")
        np.testing.assert_array_equal(first[i], reference.reset(seed=11 + i)[0])
        lengths: list[int] = []
        length = 0
        for action, result in zip(actions[:, i], results, strict=True):
            observation, reward, terminated, _, _ = reference.step(action)
            np.testing.assert_array_equal(result.next_observation[i], observation)
            assert (result.reward[i], result.terminated[i]) == (reward, terminated)
            length += 1
            if terminated:
                lengths.append(length)
                length = 0
                seed = (11 + i + len(lengths) * vector_env._SEED_STRIDE) % 2**30
                observation = reference.reset(seed=seed)[0]
            np.testing.assert_array_equal(result.observation[i], observation)
        assert lengths == [e.length for r in results for e in r.episodes if e.environment == i] != []


@pytest.mark.parametrize(
    "id, protocol, steps_per_seed, num_steps",
    [
        ("CartPole-v1", "none", 0, 300),
        ("CartPole-v1", "none", 50, 300),
        ("breakout", "classic", 0, 400),
        pytest.param("breakout", "classic", 300, 700, marks=pytest.mark.slow),
        pytest.param("breakout", "machado", 300, 700, marks=pytest.mark.slow),
        ("pong", "classic", 10_000, 1_300),
        pytest.param("pong", "machado", 500, 1_300, marks=pytest.mark.slow),
    ],
)
def test_restored_environments_go_on_as_if_they_had_never_stopped(id, protocol, steps_per_seed, num_steps):
    def make_one():
        env: Any = make(id, num_envs=3, protocol=protocol)
        env._steps_per_seed = steps_per_seed
        return env

    env, rng = make_one(), np.random.default_rng(0)
    _, results = play(env, rng.integers(env.spec.num_actions, size=(num_steps, 3)))
    state = env.state()
    assert {episode.environment for result in results for episode in result.episodes} == {0, 1, 2}
    assert len(set(state["lengths"])) == 3  # each stands somewhere else in its game
    assert (state["series"] > 0).all() == (steps_per_seed < num_steps)

    actions = rng.integers(env.spec.num_actions, size=(300, 3))
    expected = [env.step(a) for a in actions]
    other = make_one()
    np.testing.assert_array_equal(other.restore(state), results[-1].observation)
    np.testing.assert_equal(other.state(), state)
    assert_same_results([other.step(a) for a in actions], expected)
    np.testing.assert_equal(other.state(), env.state())


def test_continuous_actions_are_taken_and_played_again():
    env, other = make("Pendulum-v1", 2), make("Pendulum-v1", 2)
    reference = gymnasium.make("Pendulum-v1")
    np.testing.assert_array_equal(env.reset()[1], reference.reset(seed=2)[0])
    rng = np.random.default_rng(0)
    for _ in range(50):
        actions = rng.normal(size=(2, 1)).astype(np.float32)
        result = env.step(actions)
        observation, reward, *_ = reference.step(np.clip(2 * actions[1], -2, 2))  # its bounds are -2 and 2
        np.testing.assert_allclose(result.observation[1], observation, rtol=1e-5)
        assert result.reward[1] == pytest.approx(reward, rel=1e-5)
    np.testing.assert_array_equal(other.restore(env.state()), result.observation)
    assert_same_results([other.step(actions)], [env.step(actions)])
    for wrong in (np.zeros(2, np.float32), np.zeros((2, 2), np.float32)):
        with pytest.raises(ValueError, match=r"2 vectors \(1,\)"):
            env.step(wrong)


def test_a_state_of_any_moment_can_be_restored_into_environments_that_are_elsewhere():
    env, other = make("CartPole-v1", 3), make("CartPole-v1", 3)
    observation, rng = env.reset(), np.random.default_rng(0)
    other.reset()
    for _ in range(60):
        np.testing.assert_array_equal(other.restore(env.state()), observation)
        actions = rng.integers(2, size=3)
        result = env.step(actions)
        assert_same_results([other.step(actions)], [result])
        observation = result.observation
        other.step(1 - actions)


class Strict(gymnasium.Env):
    """Breaks where it is given an action that its mask forbids; a game is as long as its seed says."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(3)

    def _seen(self):
        self._allowed = int(self.np_random.integers(1, 3))
        return np.full(1, self._allowed / 3, np.float32), {"action_mask": np.arange(3) == self._allowed}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(2, 9))
        return self._seen()

    def step(self, action):
        assert action == self._allowed
        self._left -= 1
        return *(seen := self._seen())[:1], 1.0, self._left == 0, False, seen[1]


def test_environments_that_wait_for_others_while_a_state_is_restored_take_allowed_actions(monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Strict-v0", gymnasium.envs.registration.EnvSpec("Strict-v0", Strict))
    spec = registry.resolve("Strict-v0", "classic", EnvironmentOptions(action_mask=True))
    env, other = (registry.make_vector_env(spec, 4, seed=1) for _ in range(2))
    observation = env.reset()
    for _ in range(20):
        np.testing.assert_array_equal(other.restore(env.state()), observation)
        observation = env.step(observation[:, :3].argmax(1).astype(np.int32)).observation


def test_a_state_outlives_a_file_without_pickle_and_is_not_changed_by_later_steps():
    env = make("breakout", 2)
    play(env, [[2, 3]] * 20)
    state, file = env.state(), io.BytesIO()
    np.savez(file, **state)
    env.step(np.array([2, 2]))
    file.seek(0)
    with np.load(file, allow_pickle=False) as saved:
        np.testing.assert_equal(dict(saved), state)
        other = make("breakout", 2)
        other.restore(dict(saved))
    other.step(np.array([2, 2]))
    np.testing.assert_equal(other.state(), env.state())
    assert sum(array.nbytes for array in state.values()) < 1_000


def test_a_long_game_is_kept_whole():
    env, other = make("EndlessCounter-v0", 2), make("EndlessCounter-v0", 2)
    play(env, [[0, 1]] * 3_000)
    assert env.state()["series_steps"].tolist() == [3_000, 3_000]
    assert other.restore(env.state()).tolist() == [[3_000, 3_000]] * 2


def test_a_series_ends_with_a_game():
    env: Any = make("TerminatingCounter-v0")  # games of three steps
    env._steps_per_seed = 4
    env.reset()
    stands = []
    for _ in range(7):
        env.step(np.array([0]))
        state = env.state()
        stands.append((int(state["series"][0]), int(state["series_steps"][0]), int(state["lengths"][0])))
    assert stands == [(0, 1, 1), (0, 2, 2), (0, 3, 0), (0, 4, 1), (0, 5, 2), (1, 0, 0), (1, 1, 1)]


def test_the_start_of_a_game_depends_on_its_number_alone():
    starts = []
    for action in (0, 1):
        env = make("CartPole-v1", 2, max_episode_steps=5)
        starts.append([play(env, [[action] * 2] * 5)[1][-1].observation, env.reset()])
    np.testing.assert_array_equal(starts[0], starts[1])
    assert len(np.unique(np.reshape(starts[0], (4, 4)), axis=0)) == 4


def test_after_a_reset_in_mid_game_the_state_is_that_of_the_new_games():
    env, other = make("breakout", 2), make("breakout", 2)
    play(env, [[2, 3]] * 30)
    first, results = play(env, [[3, 2]] * 10)
    state = env.state()
    assert state["series"].tolist() == [1, 1] and state["series_steps"].tolist() == [10, 10]
    assert (first != make("breakout", 2).reset()).any()
    np.testing.assert_array_equal(other.restore(state), results[-1].observation)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"id": "pong"}, "environment=ALE/Breakout-v5 classic .* here it is ALE/Pong-v5 classic"),
        ({"protocol": "machado"}, "environment=.* classic .* here it is .* machado"),
        ({"max_episode_steps": 9}, "environment=.* of at most 27000 steps, here it is .* of at most 9 steps"),
        ({"num_envs": 3}, "num_envs=2, here it is 3"),
        ({"seed": 2}, "seed=1, here it is 2"),
    ],
)
def test_a_state_of_other_environments_is_refused_and_changes_nothing(change, words):
    given = make("breakout", 2)
    given.reset()
    arguments = {"id": "breakout", "num_envs": 2} | change
    env, twin = make(**arguments), make(**arguments)
    env.reset()
    twin.reset()
    with pytest.raises(ValueError, match=words):
        env.restore(given.state())
    actions = np.zeros((3, env.num_envs), int)
    assert_same_results([env.step(a) for a in actions], [twin.step(a) for a in actions])


def test_a_damaged_state_is_refused():
    env = make("CartPole-v1", 2)
    play(env, [[0, 1]] * 5)
    state = env.state()
    with pytest.raises(ValueError, match="environment=None"):
        env.restore({})
    with pytest.raises(ValueError, match=r"lives must have the shape \(2,\), is missing"):
        env.restore({name: array for name, array in state.items() if name != "lives"})
    with pytest.raises(ValueError, match=r"actions must have the shape \(10,\), is \(9,\)"):
        env.restore(state | {"actions": state["actions"][:-1]})
    with pytest.raises(ValueError, match=r"in \[0, 2\)"):
        env.restore(state | {"actions": state["actions"] + 7})


def test_an_environment_that_is_not_deterministic_is_refused_and_can_be_reset():
    env = make("WhimsicalCounter-v0", 2)
    play(env, [[0, 0]] * 4)
    with pytest.raises(ValueError, match="WhimsicalCounter-v0 is not deterministic.* led to other checksums"):
        env.restore(env.state())
    _, results = play(env, [[0, 0]] * 3)
    assert [len(result.episodes) for result in results] == [0, 0, 2]
    assert env.state()["series"].tolist() == [3, 3]  # no game that was played before comes again


def test_there_is_no_state_before_the_first_reset():
    with pytest.raises(RuntimeError, match=r"before reset\(\)"):
        make("CartPole-v1").state()


@pytest.mark.parametrize("actions", [[0], [0, 2], [0, -1], [0.0, 1.0], [[0], [1]]])
def test_bad_actions_are_refused(actions):
    env = make("CartPole-v1", 2)
    env.reset()
    with pytest.raises(ValueError, match=r"2 integers in \[0, 2\)"):
        env.step(np.array(actions))


def test_closing_twice_is_harmless():
    for env in (make("pong"), make("CartPole-v1")):
        env.reset()
        env.close()
        env.close()


def test_a_game_without_an_end_is_not_played_again(monkeypatch):
    monkeypatch.setattr(vector_env, "_MOST_RECORDED", 1_500)
    env, other = make("EndlessCounter-v0", 2), make("EndlessCounter-v0", 2)
    play(env, [[0, 1]] * 1_500)
    assert other.restore(env.state()).tolist() == [[1_500, 1_500]] * 2
    for _ in range(2_000):
        env.step(np.array([0, 1]))
    assert sum(array.nbytes for array in env.state().values()) < 5_000
    with pytest.raises(ValueError, match="gone on for more than 1,500 steps"):
        other.restore(env.state())


def test_playing_again_takes_a_bounded_time(monkeypatch):
    env, other = make("EndlessCounter-v0", 2), make("EndlessCounter-v0", 2)
    play(env, [[0, 1]] * 50)
    monkeypatch.setattr(vector_env, "_MOST_SECONDS", -1.0)
    with pytest.raises(ValueError, match="to play 50 steps again takes more than"):
        other.restore(env.state())
    assert other.reset().tolist() == [[0, 0]] * 2


def test_while_one_game_is_too_long_those_of_others_are_recorded(monkeypatch):
    monkeypatch.setattr(vector_env, "_MOST_RECORDED", 30)
    env, other = make("CartPole-v1", 2), make("CartPole-v1", 2)
    env._steps_per_seed = other._steps_per_seed = 1
    env.reset()
    rng, longest = np.random.default_rng(0), 0
    for step in range(2_000):
        result = env.step(np.array([rng.integers(2), step % 2]))  # 0 falls after some 20 steps, 1 after more
        longest = max([episode.length for episode in result.episodes if episode.environment], default=0)
        if longest > 30 and 10 < env.state()["series_steps"][0] < 30:
            break  # the game of 0 has begun while that of 1 was too long
    assert longest > 30
    np.testing.assert_array_equal(other.restore(env.state()), result.observation)
