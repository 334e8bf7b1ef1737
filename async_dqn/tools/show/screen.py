"""The picture a person sees of the games that an agent plays in the first of its environments.

The screen is a twin of that environment: made from the same seed and given the same actions it goes through the same
states, game after game, and renders them in colour and full size.
"""

import os
from collections.abc import Callable
from dataclasses import replace

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from async_dqn.base.errors import UserError, one_line
from async_dqn.envs.registry import ATARI_STEPS_PER_SEED, make_adapted, make_emulators
from async_dqn.envs.vector_env import EnvironmentSpec, VectorEnv

_ATARI_SHAPE = (210, 160, 3)


class Screen:
    """Pictures [H, W, 3] uint8 of one environment.

    Args:
      env: the twin.
      picture: makes the picture of it from its observation.
      frames_per_second: how many pictures make a second of play.
    """

    def __init__(self, env: VectorEnv, picture: Callable[[np.ndarray], np.ndarray], frames_per_second: int):
        self._env, self._picture = env, picture
        self.frames_per_second = frames_per_second

    def reset(self) -> np.ndarray:
        """Starts the first game."""
        return self._picture(self._env.reset()[0])

    def step(self, action: np.ndarray) -> np.ndarray:
        """What an action leads to; after the last one of a game, the first picture of the next."""
        return self._picture(self._env.step(np.array([action])).observation[0])

    def close(self) -> None:
        """Frees the environment."""
        self._env.close()


def make_screen(spec: EnvironmentSpec, seed: int, *, has_window: bool = False) -> Screen:
    """The screen of the first environment of those that `make_vector_env` seeds with `seed`.

    Args:
      has_window: the pictures are shown in a window of pygame's, which gymnasium draws with as well.

    Raises:
      UserError: the environment cannot be drawn.
    """
    if spec.is_atari:
        emulator = make_emulators(
            spec, 1, grayscale=False, img_height=_ATARI_SHAPE[0], img_width=_ATARI_SHAPE[1], num_threads=1
        )
        drawn = replace(spec, observation_shape=_ATARI_SHAPE)
        return Screen(VectorEnv(emulator, drawn, 1, seed, ATARI_STEPS_PER_SEED), lambda observation: observation, 15)
    if not has_window:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory, without looking for a screen
    single = SyncVectorEnv([lambda: _make(spec)], autoreset_mode=AutoresetMode.DISABLED)
    frames_per_second = max(1, round((single.metadata.get("render_fps") or 30) / spec.frame_skip))
    return Screen(VectorEnv(single, spec, 1, seed), lambda observation: _render(single), frames_per_second)


def _make(spec: EnvironmentSpec) -> gymnasium.Env:
    try:
        return make_adapted(spec, render_mode="rgb_array")
    except Exception as error:  # without pictures it could be made
        raise UserError(f"{spec.id} cannot be drawn; with render_mode=rgb_array: {one_line(error)}") from error


def _render(environment: SyncVectorEnv) -> np.ndarray:
    try:
        pictures = environment.render()
    except Exception as error:  # of any kind: it may be anybody's
        raise UserError(f"the environment cannot be drawn: {one_line(error)}") from error
    if not pictures or pictures[0] is None:
        raise UserError("the environment cannot be drawn: it renders no rgb_array")
    return np.asarray(pictures[0])
