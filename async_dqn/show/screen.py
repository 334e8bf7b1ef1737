"""The picture a person sees of a game that an agent plays from another one.

The screen is a twin of the agent's environment: made from the same seed and given the same actions it goes through the
same states, and renders them in colour and full size.
"""

import os
from typing import Any, Protocol

import gymnasium
import numpy as np

from async_dqn.environments import make_emulators
from async_dqn.errors import UserError
from async_dqn.vector_env import EnvironmentSpec


class Screen(Protocol):
    """A picture [H, W, 3] uint8 after each step of one environment, and how many of them make a second."""

    frames_per_second: int

    def reset(self) -> np.ndarray: ...

    def step(self, action: int) -> np.ndarray: ...

    def close(self) -> None: ...


def make_screen(spec: EnvironmentSpec, seed: int) -> Screen:
    """The screen of the environment that `make_vector_env` seeds with `seed`. Raises UserError if it cannot draw."""
    return _AtariScreen(spec, seed) if spec.is_atari else _GymnasiumScreen(spec, seed)


class _AtariScreen:
    frames_per_second = 15

    def __init__(self, spec: EnvironmentSpec, seed: int):
        self._emulator = make_emulators(spec, 1, grayscale=False, img_height=210, img_width=160, num_threads=1)
        self._seed = seed

    def reset(self) -> np.ndarray:
        observation, _ = self._emulator.reset(seed=self._seed)
        return observation.reshape(210, 160, 3)

    def step(self, action: int) -> np.ndarray:
        return self._emulator.step(np.array([action]))[0].reshape(210, 160, 3)

    def close(self) -> None:
        self._emulator.close()


class _GymnasiumScreen:
    frames_per_second = 30

    def __init__(self, spec: EnvironmentSpec, seed: int):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory, without looking for a screen
        self._environment: gymnasium.Env = gymnasium.make(
            spec.id, render_mode="rgb_array", max_episode_steps=-1, disable_env_checker=True
        )
        self._seed = seed

    def reset(self) -> np.ndarray:
        self._environment.reset(seed=self._seed)
        return self._picture()

    def step(self, action: int) -> np.ndarray:
        self._environment.step(action)
        return self._picture()

    def close(self) -> None:
        self._environment.close()

    def _picture(self) -> np.ndarray:
        picture: Any = None
        try:
            picture = self._environment.render()
        except gymnasium.error.Error as error:
            raise UserError(f"--video: the environment cannot be drawn: {' '.join(str(error).split())}") from error
        if picture is None:
            raise UserError("--video: the environment cannot be drawn: it renders no rgb_array")
        return np.asarray(picture)
