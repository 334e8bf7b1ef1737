"""Names of environments and bad input, and frames against gymnasium's own preprocessing."""

import importlib.metadata
import itertools
import subprocess
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from ale_py import roms
from environment_helpers import Counting, counting_environments, make, play
from gymnasium.wrappers import AtariPreprocessing

from async_dqn.base import types
from async_dqn.base.errors import UserError
from async_dqn.envs import registry, vector_env

NOOP, FIRE = 0, 1


@pytest.fixture(autouse=True, scope="module")
def _counting_environments():
    with counting_environments():
        yield


def area_weights(source: int, target: int) -> np.ndarray:
    """Row i: how much of target pixel i each source pixel covers, which defines area interpolation."""
    edges = np.arange(target + 1) * source / target
    pixels = np.arange(source)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return (np.maximum(overlap, 0) * target / source).astype(np.float32)


@pytest.fixture
def preprocessing(monkeypatch):
    """Makes gymnasium's AtariPreprocessing; it needs OpenCV only to resize, for which numpy stands in."""
    rows, columns = area_weights(210, 84), area_weights(160, 84)

    def resize(frame, size, interpolation):
        return np.rint(rows @ frame.astype(np.float32) @ columns.T)

    cv2 = SimpleNamespace(INTER_AREA=3, resize=resize)
    monkeypatch.setitem(sys.modules, "cv2", cv2)

    def make_reference(game: str, seed: int, stickiness: float) -> AtariPreprocessing:
        raw = gymnasium.make(
            f"ALE/{game}-v5",
            frameskip=1,
            repeat_action_probability=stickiness,
            obs_type="grayscale",
            disable_env_checker=True,
        )
        reference = AtariPreprocessing(raw, noop_max=0, frame_skip=4)
        reference.ale.setInt("random_seed", seed)
        reference.ale.loadROM(roms.get_rom_path(game.lower()))
        return reference

    return make_reference


def assert_same_frame(ours, reference):
    # The emulators agree exactly; two area interpolations may round a half differently.
    np.testing.assert_allclose(ours.astype(int), reference.astype(int), atol=1)


@pytest.mark.parametrize("game", [pytest.param("Pong", marks=pytest.mark.slow), "Breakout"])
def test_a_whole_machado_game_is_gymnasiums_preprocessing(game, preprocessing):
    env, reference = make(game, protocol="machado", seed=5), preprocessing(game, 5, 0.25)
    assert_same_frame(env.reset()[0], reference.reset()[0])
    rng, done, total = np.random.default_rng(0), False, 0.0
    while not done:
        action = rng.integers(env.spec.num_actions)
        frame, reward, done, _, _ = reference.step(action)
        total += reward
        result = env.step(np.array([action]))
        assert_same_frame(result.next_observation[0], frame)
        assert (result.reward[0], result.terminated[0], result.truncated[0]) == (reward, done, False)
    assert [episode.episode_return for episode in result.episodes] == [total]
    assert_same_frame(result.observation[0], reference.reset()[0])  # the same stream goes on


@pytest.mark.slow
def test_a_classic_game_starts_with_fire_and_at_most_28_noops(preprocessing):
    _, results = play(make("breakout", num_envs=3, seed=7), [[action] * 3 for action in [2, 3, 1, 2, 0, 3]])
    reference = preprocessing("Breakout", 7, 0.0)
    frames = {}  # by the number of no-ops
    for noops in range(29):
        reference.reset()
        for action in [FIRE] + [NOOP] * noops:
            reference.env.step(action)
        frames[noops] = np.stack([reference.step(action)[0] for action in [2, 3, 1, 2, 0, 3]])
    starts = []
    for i in range(3):
        ours = np.stack([result.next_observation[i] for result in results])
        starts += [noops for noops in range(29) if np.abs(ours.astype(int) - frames[noops]).max() <= 1]
    assert len(starts) == 3 and len(set(starts)) > 1


def test_the_frame_at_truncation_is_the_true_last_one(preprocessing):
    env = make("pong", protocol="machado", seed=3, max_episode_steps=30)
    reference = preprocessing("Pong", 3, 0.25)
    env.reset()
    reference.reset()
    for step in range(1, 31):
        action = step % 6
        result = env.step(np.array([action]))
        assert_same_frame(result.next_observation[0], reference.step(action)[0])
        assert (result.terminated[0], result.truncated[0]) == (False, step == 30)
    assert [episode.length for episode in result.episodes] == [30]
    assert_same_frame(result.observation[0], reference.reset()[0])


def test_an_idle_game_of_pong_is_lost_by_21_points():
    env = make("pong", num_envs=2, num_threads=1)
    env.reset()
    rewards, steps, ends = np.zeros(2), np.zeros(2, int), 0
    episodes: dict[int, types.Episode] = {}
    while len(episodes) < 2:
        result = env.step(np.zeros(2, np.int32))
        for i in range(2):
            if i not in episodes:
                rewards[i] += result.reward[i]
                steps[i] += 1
        ends += result.terminated.sum()
        episodes.update({e.environment: e for e in result.episodes})
    assert [tuple(episodes[i]) for i in range(2)] == [(i, -21.0, steps[i]) for i in range(2)]
    assert ends == 2 and list(rewards) == [-21, -21]


@pytest.mark.parametrize("protocol", ["classic", "machado"])
def test_the_same_seed_gives_the_same_frames_whatever_the_threads(protocol):
    actions = np.random.default_rng(0).integers(4, size=(60, 1)).repeat(3, axis=1)
    runs = []
    for seed, threads in [(4, 1), (4, 2), (5, 1)]:
        first, results = play(make("breakout", 3, protocol, seed, num_threads=threads, max_episode_steps=25), actions)
        runs.append(np.stack([first, *(r.observation for r in results)]))
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0][:, 1], runs[2][:, 0])  # environment i has the seed + i
    assert (runs[0][:, 0] != runs[0][:, 2]).any()
    assert runs[0].dtype == np.uint8 and runs[0].shape == (61, 3, 84, 84)


@pytest.mark.parametrize("id", ["ms_pacman", "MsPacman", "mspacman", "ALE/MsPacman", "ALE/MsPacman-v5"])
def test_the_names_of_an_atari_game(id):
    spec = registry.resolve(id, "machado")
    assert (spec.id, spec.protocol, spec.num_actions) == ("ALE/MsPacman-v5", "machado", 9)
    assert (spec.observation_shape, spec.stack, spec.frame_skip) == ((84, 84), 4, 4)
    assert spec.max_episode_steps == 27_000 and spec.is_atari


@pytest.mark.parametrize("game", ["UpNDown", "TicTacToe3D", "Et"])
def test_the_canonical_id_is_the_registered_one(game):
    assert registry.resolve(game, "classic").id == f"ALE/{game}-v5"


def test_a_gymnasium_environment():
    spec = registry.resolve("CartPole-v1", "classic")
    assert spec == vector_env.EnvironmentSpec(
        "CartPole-v1",
        False,
        "none",
        2,
        (4,),
        np.dtype(np.float32),
        frame_skip=1,
        stack=1,
        max_episode_steps=500,
    )
    assert registry.resolve(spec.id, spec.protocol) == spec


def test_an_exact_id_of_gymnasium_is_no_atari_game(monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("Blackjack-v7", "faulty_environments:Plain")
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    found = registry.resolve("Blackjack-v7", "classic")
    assert (found.id, found.is_atari) == ("Blackjack-v7", False)
    assert registry.resolve("blackjack", "classic").id == "ALE/Blackjack-v5"


def test_an_entry_point_for_gymnasium_of_the_module_registers_its_environments(monkeypatch):
    def register():
        gymnasium.register("Plugged/Counter-v0", Counting)

    def refuse():
        raise AssertionError("an entry point of another package")

    points = [("environment_helpers.more", register), ("another_package", refuse)]
    entries = [SimpleNamespace(module=module, load=lambda made=made: made) for module, made in points]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    spec = registry.resolve("environment_helpers:Plugged/Counter-v0", "classic")
    assert spec.id == "environment_helpers:Plugged/Counter-v0"
    assert spec.observation_shape == (2,)
    registry.make_vector_env(spec, 2, 0).close()


def test_continuous_actions():
    spec = registry.resolve("Pendulum-v1", "classic")
    assert (spec.is_continuous, spec.num_actions, spec.action_shape) == (True, 0, (1,))
    assert spec.action_dtype == np.float32
    cartpole = registry.resolve("CartPole-v1", "classic")
    assert (cartpole.is_continuous, cartpole.action_shape, cartpole.action_dtype) == (False, (), np.int32)


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "breakout"])
def test_random_actions_fit(id):
    env = make(id, num_envs=3)
    actions = registry.random_actions(env.spec, 3, np.random.default_rng(0))
    assert (actions.shape, actions.dtype) == ((3, *env.spec.action_shape), env.spec.action_dtype)
    env.reset()
    env.step(actions)


@pytest.mark.parametrize(
    "id, protocol, words",
    [
        ("pnog", "classic", ["=pnog", "did you mean pong"]),
        ("ALE/Breakuot-v5", "classic", ["=ALE/Breakuot-v5", "did you mean", "reakout"]),
        ("cartpole", "classic", ["=cartpole", "did you mean CartPole-v1"]),
        ("CartPole-v9", "classic", ["=CartPole-v9", "CartPole-v1"]),
        ("", "classic", ["--env=", "pong", "CartPole-v1"]),
        ("no/such thing", "classic", ["=no/such thing", "pong", "CartPole-v1"]),
        ("ALE/Combat-v5", "classic", ["=ALE/Combat-v5", "Atari game such as pong"]),
        ("PongNoFrameskip-v4", "classic", ["=PongNoFrameskip-v4", "use pong", "classic or machado"]),
        ("MsPacman-ram-v0", "classic", ["=MsPacman-ram-v0", "use ms_pacman"]),
        ("VastCounter-v0", "classic", ["=VastCounter-v0", "MultiBinary(11)", "2048 combinations", "1024"]),
        ("LunarLander-v2", "classic", ["=LunarLander-v2", "LunarLander-v3"]),
        ("no_such_module:Env-v0", "classic", ["=no_such_module:Env-v0", "missing", "no_such_module"]),
        ("faulty_environments:Nothing-v0", "classic", ["=faulty_environments:Nothing-v0", "unknown", "MODULE:ID"]),
        ("faulty_environments:Faulty/Needy-v0", "classic", ["cannot be made: Error: no licence key in LICENCE_KEY"]),
        ("environment_that_exits:Any-v0", "classic", ["cannot be made: SystemExit: 3"]),
        ("environment_that_registers_badly:Any-v0", "classic", ["cannot be made: Error: gymnasium is too old for me"]),
        ("hypothesis-Empty-v0", "classic", ["=hypothesis-Empty-v0 is unknown", "hypothesis:hypothesis-Empty-v0"]),
    ],
)
def test_bad_input_ends_in_one_clear_line(id, protocol, words, tmp_path, monkeypatch):
    (tmp_path / "environment_that_exits.py").write_text("raise SystemExit(3)")
    (tmp_path / "environment_that_registers_badly.py").write_text(
        "import gymnasium\nraise gymnasium.error.Error('gymnasium is too old for me')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as caught:
        registry.resolve(id, protocol)
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == [], message


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d", raising=False)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d.lunar_lander", raising=False)
    with pytest.raises(UserError, match=r"--env=LunarLander-v3.*-m pip install \"gymnasium\[box2d\]\""):
        registry.resolve("LunarLander-v3", "classic")


def test_a_missing_rom_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    with pytest.raises(UserError, match=r"--env=pong: has no ROM .*pong\.bin"):
        registry.resolve("pong", "classic")


def test_nothing_is_written_on_the_terminal():
    program = """if True:
        from async_dqn.envs.registry import make_vector_env, resolve
        from async_dqn.base.errors import UserError
        for id in ("pong", "CartPole-v0", "CartPole-v1"):
            make_vector_env(resolve(id, "classic"), 1, 0).reset()
        for id in ("LunarLander-v2", "Pnog"):
            try:
                resolve(id, "classic")
            except UserError:
                pass
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout + done.stderr == ""


def test_games_are_listed_as_they_can_be_asked_for():
    listed = [*itertools.islice(registry.atari_games(), 4)]
    assert "air_raid" in dict(listed)  # of two words
    for name, spec in listed:
        assert registry.resolve(name, "classic") == spec
