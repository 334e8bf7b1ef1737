"""The picture a person sees of the games that an agent plays in the first of its environments.

The screen is a twin of that environment: made from the same seed and given the same actions it goes through the same
states, game after game, and renders them in colour and full size.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from async_dqn.base.errors import UserError, one_line
from async_dqn.envs.registry import ATARI_STEPS_PER_SEED, make_adapted, make_emulators
from async_dqn.envs.spec import EnvironmentSpec
from async_dqn.envs.vector_env import VectorEnv

_ATARI_SHAPE = (210, 160, 3)


class Screen:
    """Pictures [H, W, 3] uint8 of one environment.

    Attributes:
      frames_per_second: how many pictures make a second of play.
      observation: what the twin sees; None on Atari, where it sees colours.

    Args:
      env: the twin.
      drawn: its one environment, which draws itself; None: its observations are pictures.
    """

    def __init__(self, env: VectorEnv, frames_per_second: int, drawn: _Drawn | None = None):
        self._env, self._drawn = env, drawn
        self.frames_per_second = frames_per_second
        self.observation: np.ndarray | None = None

    def reset(self) -> np.ndarray:
        """Starts the first game."""
        observation = self._env.reset()[0]
        return self._drawn.take()[-1] if self._drawn else observation

    def step(self, action: np.ndarray) -> list[np.ndarray]:
        """What an action leads to; where it ends a game, the end and the first picture of the next."""
        result = self._env.step(np.array([action]))
        if self._drawn:
            self.observation = result.observation[0]
            return self._drawn.take()
        return [*(result.next_observation if result.episodes else []), result.observation[0]]

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
        return Screen(VectorEnv(emulator, drawn, 1, seed, ATARI_STEPS_PER_SEED), 15)
    if not has_window:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory, without looking for a screen
    try:
        single = _Drawn(make_adapted(spec, render_mode="rgb_array"))
    except Exception as error:  # without pictures it could be made
        raise UserError(f"{spec.id} cannot be drawn; with render_mode=rgb_array: {one_line(error)}") from error
    frames_per_second = max(1, round((single.metadata.get("render_fps") or 30) / spec.frame_skip))
    env = VectorEnv(SyncVectorEnv([lambda: single], autoreset_mode=AutoresetMode.DISABLED), spec, 1, seed)
    return Screen(env, frames_per_second, single)


class _Drawn(gymnasium.Wrapper):
    """Draws what each step and each reset leads to; after a game has ended, only this moment shows its end."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self._pictures: list[np.ndarray] = []

    def reset(self, **options: Any) -> Any:
        result = self.env.reset(**options)
        self._draw()
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self._draw()
        return result

    def take(self) -> list[np.ndarray]:
        """The pictures since the last call."""
        pictures, self._pictures = self._pictures, []
        return pictures

    def _draw(self) -> None:
        try:
            picture = self.env.render()
        except Exception as error:  # of any kind: it may be anybody's
            raise UserError(f"the environment cannot be drawn: {one_line(error)}") from error
        if picture is None:
            raise UserError("the environment cannot be drawn: it renders no rgb_array")
        self._pictures.append(np.asarray(picture))
