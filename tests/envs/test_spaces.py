"""spaces.py: what agents see of the spaces of an environment, and back."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from async_dqn.envs.spaces import Unsupported, adapt_actions


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
        (spaces.Dict({"a": spaces.Discrete(2)}), "only Discrete"),
        (spaces.Box(0, 9, (2,), np.int64), "Box of floats"),
    ],
)
def test_other_actions_are_refused(space, words):
    with pytest.raises(Unsupported, match=words):
        adapt_actions(space)


def test_gymnasium_agrees_on_the_scale():
    """Against its own RescaleAction."""
    environment = gymnasium.make("Pendulum-v1")
    reference = gymnasium.wrappers.RescaleAction(environment, -1.0, 1.0)
    convert = adapt_actions(environment.action_space).convert
    for action in np.linspace(-1, 1, 9, dtype=np.float32)[:, None]:
        np.testing.assert_allclose(convert(action), reference.action(action), rtol=1e-6)
