"""What the spaces of an environment become.

Agents see pictures, vectors or packed bytes of both, and act by numbers from 0, or by vectors in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from async_dqn.base.errors import UserError
from async_dqn.envs.packing import Packing

_WIDEST = 2**17  # between the bounds of a picture's numbers; those of uint16 are 65,535 apart
_UNBOUNDED = 1e18  # some write the largest number in place of infinity
MAX_COMBINATIONS = 1_024  # of several discrete choices that are numbered as one


class Unsupported(Exception):
    """A space that no agent can use; says what is supported instead."""


class Actions(NamedTuple):
    """A space that agents see, and the way between it and the environment's own.

    Attributes:
      space: what agents see.
      convert: an action of an agent -> the environment's own.
    """

    space: gymnasium.Space
    convert: Callable[[Any], Any]


def adapt_actions(space: gymnasium.Space) -> Actions:
    """Discrete choices numbered from 0; or vectors [D], whose -1 and 1 are the bounds of a Box.

    Components of a Box without two bounds less than 1e18 stay as they are. What lies outside of the bounds is clipped.

    Raises:
      Unsupported: it is none of Discrete, MultiDiscrete, MultiBinary and Box.
    """
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return Actions(spaces.Discrete(int(space.n)), lambda action: action + start)
    if isinstance(space, spaces.MultiDiscrete):
        return _combinations(space.nvec, space.start.ravel(), space)
    if isinstance(space, spaces.MultiBinary):
        return _combinations(np.full(space.shape, 2), np.zeros(1, int), space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return _scaled(space)
    raise Unsupported("only Discrete, MultiDiscrete, MultiBinary and a Box of floats are supported")


def _combinations(choices: np.ndarray, start: np.ndarray, space: gymnasium.Space) -> Actions:
    """Several choices as one: number i stands for the i-th combination, the last choice changing fastest."""
    with np.errstate(over="ignore"):  # what is beyond float64 is too many as well
        count = float(np.prod(choices, dtype=np.float64))
    if count > MAX_COMBINATIONS:
        raise Unsupported(f"these are {count:.10g} combinations, and at most {MAX_COMBINATIONS} are supported")
    sizes = tuple(int(one) for one in choices.ravel())

    def convert(action: Any) -> np.ndarray:
        return (np.array(np.unravel_index(int(action), sizes)) + start).reshape(space.shape).astype(space.dtype)

    return Actions(spaces.Discrete(int(count)), convert)


def _scaled(space: spaces.Box) -> Actions:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    is_bounded = (low > -_UNBOUNDED) & (high < _UNBOUNDED)
    with np.errstate(invalid="ignore", over="ignore"):
        middle, half = np.where(is_bounded, (low + high) / 2, 0), np.where(is_bounded, (high - low) / 2, 1)

    def convert(action: Any) -> np.ndarray:
        own = middle + half * np.reshape(action, space.shape)
        return np.clip(own, low, high).astype(space.dtype)

    return Actions(spaces.Box(-1, 1, (int(np.prod(space.shape)),), np.float32), convert)


class Observations(NamedTuple):
    """What agents see, and how it is made of what the environment shows.

    Attributes:
      space: what agents see: a picture [H, W] or [H, W, C], a vector, or packed bytes.
      convert: an observation of the environment, and the mask of actions -> that; None: it is that already, or lacks
        but a change of shape and type.
      packing: what packed bytes are; None: they are not packed.
      bounds: the least and the largest value in a picture.
      left_out: what nothing is learned from, as it is text, or of a space that is not gymnasium's.
    """

    space: spaces.Box
    convert: Callable[[Any, np.ndarray], np.ndarray] | None = None
    packing: Packing | None = None
    bounds: tuple[float, float] = (0.0, 255.0)
    left_out: tuple[str, ...] = ()


_EMPTY = np.zeros(0, np.uint8)
_UNSIZED = (spaces.Sequence, spaces.Graph, spaces.OneOf)
_KNOWN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, *_UNSIZED)


def adapt_observations(space: gymnasium.Space, num_masked: int = 0) -> Observations:
    """What agents see of a space: see `Observations`. A Dict or a Tuple may hold one picture beside other things.

    Args:
      num_masked: actions in the mask that goes with each observation; 0: there is none.

    Raises:
      Unsupported: it holds more than one picture, or a space that has no fixed size.
    """
    found = list(leaves(space))
    left_out = tuple(leaf.name for leaf in found if not isinstance(leaf.space, _KNOWN))
    known = [leaf for leaf in found if isinstance(leaf.space, _KNOWN)]
    for leaf in known:
        if isinstance(leaf.space, _UNSIZED):
            raise Unsupported(f"{leaf.name or 'these'} have no fixed size")
    pictures = [leaf for leaf in known if is_picture(leaf.space) and (len(known) == 1 or _as_bytes(leaf.space))]
    vectors = [leaf for leaf in known if leaf not in pictures]
    if len(pictures) > 1:
        raise Unsupported(f"{' and '.join(leaf.name for leaf in pictures)} are pictures, and one is supported")
    if not known:
        raise Unsupported("there is nothing but text, or a space that is not gymnasium's")
    size = sum(spaces.flatdim(leaf.space) for leaf in vectors)

    def vector(observation: Any) -> np.ndarray:
        parts: list[Any] = [spaces.flatten(leaf.space, leaf.get(observation)) for leaf in vectors]
        return np.concatenate(parts).astype(np.float32) if parts else _EMPTY

    if not pictures and not num_masked:
        flat = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        is_plain = isinstance(space, spaces.Box)
        return Observations(flat, None if is_plain else lambda seen, mask: vector(seen), left_out=left_out)
    if not pictures:
        packing = Packing(num_masked, (), size)
        return _packed(packing, lambda seen, mask: packing.pack(mask, _EMPTY, vector(seen)), left_out=left_out)

    picture = pictures[0]
    box: Any = picture.space
    order = _channels_last(box.shape)
    shape = tuple(box.shape[axis] for axis in order)
    shape = shape[:2] if shape[2:] == (1,) else shape
    dtype = np.dtype(np.uint8 if _as_bytes(box) else np.float32)
    bounds = float(box.low.min()), float(box.high.max())

    def frame(observation: Any) -> np.ndarray:
        return np.transpose(picture.get(observation), order).reshape(shape).astype(dtype, copy=False)

    if not vectors and not num_masked:
        canonical = spaces.Box(*bounds, shape, dtype.type)
        is_plain = isinstance(space, spaces.Box) and order == tuple(range(len(order)))
        return Observations(
            canonical, None if is_plain else lambda seen, mask: frame(seen), bounds=bounds, left_out=left_out
        )
    if dtype != np.uint8:
        raise Unsupported("with --action_mask, a picture must be of uint8 or bool")
    packing = Packing(num_masked, shape, size)
    return _packed(packing, lambda seen, mask: packing.pack(mask, frame(seen), vector(seen)), bounds, left_out)


def _packed(
    packing: Packing,
    convert: Callable[[Any, np.ndarray], np.ndarray],
    bounds: tuple[float, float] = (0.0, 255.0),
    left_out: tuple[str, ...] = (),
) -> Observations:
    return Observations(spaces.Box(0, 255, (sum(packing.sizes),), np.uint8), convert, packing, bounds, left_out)


def is_picture(space: gymnasium.Space) -> bool:
    """Whether it is a Box of [H, W], [H, W, C] or [C, H, W] that convolutions are for.

    Bytes and truth values are, from 3 pixels a side on; other numbers are where they have at least 8 pixels a side and
    finite bounds less than _WIDEST apart: float32 would not tell apart what lies between wider ones.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
        return False
    height, width = (space.shape[axis] for axis in _channels_last(space.shape)[:2])
    if _as_bytes(space):
        return min(height, width) >= 3
    distance = float(space.high.max()) - float(space.low.min())
    return min(height, width) >= 8 and bool(space.is_bounded()) and distance < _WIDEST


def _as_bytes(space: Any) -> bool:
    """Whether each of its values is one of 0 to 255."""
    return not np.issubdtype(space.dtype, np.floating) and bool(space.low.min() >= 0 and space.high.max() <= 255)


def _channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The order of axes that has the channels last: in [C, H, W] they are fewer than rows and columns."""
    return (1, 2, 0) if len(shape) == 3 and shape[0] < min(shape[1:]) else tuple(range(len(shape)))


class _Leaf(NamedTuple):
    name: str
    space: gymnasium.Space
    get: Callable[[Any], Any]  # out of the whole observation


def leaves(space: gymnasium.Space, name: str = "", get: Callable[[Any], Any] = lambda seen: seen) -> Iterator[_Leaf]:
    """What a space consists of, in gymnasium's order of flattening."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, part in items:
            inner = f"{name}.{key}" if name else str(key)
            yield from leaves(part, inner, lambda seen, key=key: get(seen)[key])  # type: ignore[misc]
    else:
        yield _Leaf(name, space, get)


class Adapted(gymnasium.Wrapper):
    """An environment with the spaces that agents see. Raises Unsupported where there are none.

    Args:
      action_mask: obey the `action_mask` in `info`: it is made a part of the observation.
    """

    def __init__(self, env: gymnasium.Env, *, action_mask: bool = False):
        super().__init__(env)
        self.actions = adapt_actions(env.action_space)
        if action_mask and not isinstance(self.actions.space, spaces.Discrete):
            raise Unsupported("--action_mask is for discrete actions")
        self._num_masked = int(self.actions.space.n) if isinstance(self.actions.space, spaces.Discrete) else 0
        self._num_masked *= action_mask
        self.observations = adapt_observations(env.observation_space, self._num_masked)
        self.action_space = self.actions.space
        if self.observations.convert:
            self.observation_space = self.observations.space

    def reset(self, **options: Any) -> Any:
        if options.get("options") == {}:  # what a vector of environments leaves of its own
            options["options"] = None
        observation, info = self.env.reset(**options)
        return self._seen(observation, info), {}  # a vector of environments cannot hold what differs between them

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(self.actions.convert(action))
        if terminated or truncated:  # nothing is done there
            info = {"action_mask": np.ones(self._num_masked, bool), **info}
        return self._seen(observation, info), reward, terminated, truncated, {}

    def _seen(self, observation: Any, info: dict[str, Any]) -> Any:
        convert = self.observations.convert
        if convert:
            return convert(observation, self._mask(info))
        return np.asarray(observation, self.observation_space.dtype)  # as it comes out of a process too

    def _mask(self, info: dict[str, Any]) -> np.ndarray:
        """[A] bool; all, where it says none, as a game that is over may."""
        if not self._num_masked:
            return _EMPTY
        if "action_mask" not in info:
            raise UserError("--action_mask: the environment's info has no action_mask; leave the flag out")
        mask = np.asarray(info["action_mask"], bool).ravel()
        if len(mask) != self._num_masked:
            raise UserError(
                f"--action_mask: the mask is of {len(mask)} actions, the environment has {self._num_masked}"
            )
        return mask if mask.any() else np.ones_like(mask)
