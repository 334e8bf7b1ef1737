"""spaces.py: what agents see of the spaces of an environment, and back."""

import contextlib

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from async_dqn.base.errors import UserError
from async_dqn.envs import registry
from async_dqn.envs.packing import Packing
from async_dqn.envs.spaces import Adapted, Unsupported, adapt_actions, adapt_observations, is_picture


def test_discrete_actions_begin_at_zero():
    adapted = adapt_actions(spaces.Discrete(3, start=5))
    assert adapted.space == spaces.Discrete(3)
    assert [adapted.convert(action) for action in range(3)] == [5, 6, 7]


@pytest.mark.parametrize(
    "space",
    [spaces.MultiDiscrete([3, 2]), spaces.MultiDiscrete([3, 2], start=[1, 7]), spaces.MultiBinary(4)],
)
def test_several_choices_are_numbered_as_one(space):
    adapted = adapt_actions(space)
    assert isinstance(adapted.space, spaces.Discrete)
    own = [adapted.convert(np.int64(action)) for action in range(int(adapted.space.n))]
    assert all(space.contains(one) for one in own)
    assert len({tuple(one) for one in own}) == len(own) == (16 if isinstance(space, spaces.MultiBinary) else 6)


def test_the_bounds_of_a_box_are_minus_one_and_one():
    space = spaces.Box(np.float32([[-2, 0]]), np.float32([[2, 10]]))
    adapted = adapt_actions(space)
    assert adapted.space == spaces.Box(-1, 1, (2,), np.float32)
    for action, own in ([-1, -1], [[-2, 0]]), ([0, 0], [[0, 5]]), ([0.5, 1], [[1, 10]]), ([-7, 3], [[-2, 10]]):
        found = adapted.convert(np.float32(action))
        np.testing.assert_allclose(found, own)
        assert space.contains(found)


def test_components_without_bounds_stay_as_they_are():
    space = spaces.Box(np.float32([-np.inf, 0]), np.float32([np.inf, np.inf]))
    np.testing.assert_allclose(adapt_actions(space).convert(np.float32([70, -3])), [70, 0])


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.MultiDiscrete([1_025]), "1025 combinations, and at most 1024"),
        (spaces.MultiBinary(200), "at most 1024"),
        (spaces.MultiBinary(1_100), "these are inf combinations"),  # more than a float holds
        (spaces.Dict({"a": spaces.Discrete(2)}), "only Discrete"),
        (spaces.Box(0, 9, (2,), np.int64), "Box of floats"),
    ],
)
def test_other_actions_are_refused(space, words):
    with pytest.raises(Unsupported, match=words):
        adapt_actions(space)


def test_bounds_that_stand_for_infinity_are_none():
    largest = np.finfo(np.float32).max
    convert = adapt_actions(spaces.Box(np.float32([-largest, -2]), np.float32([largest, 2]))).convert
    np.testing.assert_allclose(convert(np.float32([0.5, 0.5])), [0.5, 1])


def test_gymnasium_agrees_on_the_scale():
    """Against its own RescaleAction."""
    environment = gymnasium.make("Pendulum-v1")
    reference = gymnasium.wrappers.RescaleAction(environment, -1.0, 1.0)
    convert = adapt_actions(environment.action_space).convert
    for action in np.linspace(-1, 1, 9, dtype=np.float32)[:, None]:
        np.testing.assert_allclose(convert(action), reference.action(action), rtol=1e-6)


U8 = np.uint8


def picture_box(*shape, low=0, high=255, dtype=U8):
    return spaces.Box(low, high, shape, dtype)


@pytest.mark.parametrize(
    ("space", "shape", "dtype", "bounds"),
    [
        (picture_box(10, 12), (10, 12), U8, (0, 255)),
        (picture_box(10, 12, 1), (10, 12), U8, (0, 255)),
        (picture_box(64, 48, 3), (64, 48, 3), U8, (0, 255)),
        (picture_box(3, 64, 48), (64, 48, 3), U8, (0, 255)),
        (picture_box(10, 10, 4, high=1, dtype=bool), (10, 10, 4), U8, (0, 1)),
        (picture_box(7, 7, 3, high=10, dtype=np.int64), (7, 7, 3), U8, (0, 10)),
        (picture_box(64, 48, 3, low=-1, high=1, dtype=np.float32), (64, 48, 3), np.float32, (-1, 1)),
        (picture_box(8, 9, low=-1, high=1, dtype=np.int8), (8, 9), np.float32, (-1, 1)),
    ],
)
def test_pictures_stay_pictures(space, shape, dtype, bounds):
    found = adapt_observations(space)
    assert (found.space.shape, found.space.dtype, found.bounds) == (shape, dtype, bounds)
    space.seed(0)
    seen = space.sample()
    agents = found.convert(seen, None) if found.convert else seen.reshape(shape).astype(dtype)
    expected = np.moveaxis(seen, 0, 2) if space.shape == (3, 64, 48) else seen
    np.testing.assert_array_equal(agents, expected.reshape(shape))
    assert agents.dtype == dtype


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (4,)),
        spaces.Box(-np.inf, np.inf, (5, 5)),  # a table
        spaces.Box(-np.inf, np.inf, (20, 20)),
        spaces.Box(0, 1, (5, 5)),
        spaces.Box(0, 255, (2, 9), np.uint8),
        spaces.Box(0, 255, (128,), np.uint8),
        spaces.Discrete(5, start=3),
        spaces.MultiDiscrete([3, 4, 5]),
        spaces.MultiBinary(6),
        spaces.Tuple([spaces.Discrete(32), spaces.Box(-1, 1, (2, 2))]),
        spaces.Dict(b=spaces.Dict(x=spaces.Box(-1, 1, (3,)), y=spaces.MultiBinary(2)), a=spaces.Discrete(2)),
    ],
)
def test_other_spaces_are_flattened_as_gymnasium_does(space):
    found = adapt_observations(space)
    assert found.space.shape == (spaces.flatdim(space),) and found.space.dtype == np.float32
    space.seed(0)
    for _ in range(3):
        seen = space.sample()
        agents = found.convert(seen, None) if found.convert else seen.reshape(-1)
        np.testing.assert_allclose(agents, np.float32(spaces.flatten(space, seen)))


class Mission(gymnasium.Space):
    """A space of its own, as MiniGrid has it."""

    def sample(self, mask=None):
        return "go"


def test_a_picture_beside_other_things_is_packed_and_text_is_left_out():
    space = spaces.Dict(
        image=picture_box(7, 7, 3), mission=Mission(), direction=spaces.Discrete(4), at=spaces.Box(-9, 9, (2,))
    )
    found = adapt_observations(space)
    assert found.packing == Packing(0, (7, 7, 3), 2 + 4) and found.left_out == ("mission",)
    assert found.space == spaces.Box(0, 255, (7 * 7 * 3 + 4 * 6,), np.uint8)
    space.seed(1)
    seen = space.sample()
    agents = found.convert(seen, np.zeros(0))
    np.testing.assert_array_equal(agents[:147], seen["image"].ravel())
    np.testing.assert_array_equal(found.packing.vectors(agents), [*np.eye(4)[seen["direction"]], *seen["at"]])


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Dict(a=picture_box(8, 8), b=picture_box(9, 9)), "a and b are pictures, and one is supported"),
        (spaces.Sequence(spaces.Discrete(3)), "no fixed size"),
        (spaces.Graph(spaces.Box(-1, 1, (2,)), None), "no fixed size"),
        (spaces.Dict(a=spaces.Text(3)), "nothing but text"),
        (Mission(), "nothing but text"),
    ],
)
def test_other_observations_are_refused(space, words):
    with pytest.raises(Unsupported, match=words):
        adapt_observations(space)


class Masked(gymnasium.Env):
    """Allows one action alone, which its observation does not tell; with `says` its info says so."""

    observation_space, action_space = spaces.Discrete(3), spaces.Discrete(4)

    def __init__(self, says=True):
        self._says = says

    def _info(self):
        self._allowed = int(self.np_random.integers(4))
        return {"action_mask": np.arange(4) == self._allowed} if self._says else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, self._info()

    def step(self, action):
        allowed, info = self._allowed, self._info()
        return 1, float(action == allowed), False, False, info


def test_a_mask_of_actions_is_a_part_of_the_observation():
    env = Adapted(Masked(), action_mask=True)
    packing = env.observations.packing
    assert packing == Packing(mask=4, vector=3)
    seen, _ = env.reset(seed=0)
    for _ in range(5):
        np.testing.assert_array_equal(seen[:4], np.arange(4) == env.unwrapped._allowed)
        seen, *_ = env.step(0)
        np.testing.assert_array_equal(packing.vectors(seen), [0, 1, 0])
    assert Adapted(Masked()).observations.packing is None
    with pytest.raises(UserError, match=r"--action_mask: the environment's info has no action_mask"):
        Adapted(Masked(says=False), action_mask=True).reset()
    with pytest.raises(Unsupported, match="--action_mask is for discrete actions"):
        Adapted(gymnasium.make("Pendulum-v1"), action_mask=True)


class Over(Masked):
    """One whose info says nothing once the game is over."""

    def __init__(self, *ends):
        super().__init__()
        self._ends = ends

    def step(self, action):
        return 1, 0.0, *self._ends, {}


@pytest.mark.parametrize("ends", [(True, False), (False, True)])
def test_a_mask_that_is_left_out_once_the_game_is_over_allows_all(ends):
    env = Adapted(Over(*ends), action_mask=True)
    env.reset()
    assert env.step(0)[0][:4].tolist() == [1, 1, 1, 1]


def test_what_environments_say_beside_may_differ_and_a_vector_of_them_asks_for_nothing():
    spec = registry.resolve("faulty_environments:Faulty/RaggedInfo-v0", "none")
    with contextlib.closing(registry.make_vector_env(spec, 2, seed=0)) as env:
        env.reset()
        for actions in ([0, 1], [1, 0]):
            assert not env.step(np.array(actions)).bad_values


@pytest.mark.parametrize("bound", [np.finfo(np.float32).max, 1e10])
def test_a_table_of_numbers_whose_bounds_are_far_apart_is_no_picture(bound):
    assert is_picture(spaces.Box(0, 65_535, (9, 9), np.float32))
    assert not is_picture(spaces.Box(-bound, bound, (9, 9), np.float32))
