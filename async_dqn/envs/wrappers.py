"""What gymnasium environments are wrapped in, as options ask for it."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from PIL import Image

from async_dqn.base.errors import UserError, import_fault, one_line
from async_dqn.settings.environment import EnvironmentOptions


def wrap(env: gymnasium.Env, options: EnvironmentOptions) -> gymnasium.Env:
    """The environment in the wrappers that are asked for. Raises UserError where one does not fit."""
    if options.wrapper:
        made, env = env, _user_wrapper(options.wrapper)(env)
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"--wrapper={options.wrapper}: gives a {type(env).__name__}, not a gymnasium.Env")
        env.unwrapped.spec = env.unwrapped.spec or made.spec  # it may be no Wrapper
    if options.frame_skip > 1:
        env = Repeated(env, options.frame_skip)
    if options.grayscale:
        try:
            env = gymnasium.wrappers.GrayscaleObservation(env)
        except (TypeError, ValueError) as error:
            raise UserError(f"--grayscale: does not fit the observations: {one_line(error)}") from error
    if options.frame_size:
        env = Resized(env, options.frame_size)
    return env


def _user_wrapper(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise UserError(f"--wrapper={name}: must be MODULE:FUNCTION, which takes an environment and gives one")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # it may be any module
        raise UserError(f"--wrapper={name}: cannot be imported: {import_fault(error, module)}") from error


class Repeated(gymnasium.Wrapper):
    """Takes each action several times, unless the episode ends; the rewards are added up."""

    def __init__(self, env: gymnasium.Env, times: int):
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self._times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += np.float64(reward)  # of None it makes NaN, which is found out later
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class Resized(gymnasium.ObservationWrapper):
    """Pictures [H, W] or [H, W, C] of uint8, with both sides `size`; each pixel is the mean of its area."""

    def __init__(self, env: gymnasium.Env, size: int):
        super().__init__(env)
        space = env.observation_space
        is_picture = isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)
        channels: Any = space.shape[2:] if is_picture and space.shape else ()
        if not is_picture or channels not in ((), (1,), (3,), (4,)):
            raise UserError(f"--frame_size={size}: the observations are no pictures of uint8, but {one_line(space)}")
        self._size = (size, size)
        self.observation_space = spaces.Box(0, 255, (size, size, *channels), np.uint8)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        picture = observation[..., 0] if observation.shape[2:] == (1,) else observation
        resized = np.asarray(Image.fromarray(picture).resize(self._size, Image.Resampling.BOX))
        return resized.reshape(self.observation_space.shape)  # type: ignore[arg-type]
