"""What a run needs to know of its environment: what agents see and do there."""

from dataclasses import dataclass

import numpy as np

from async_dqn.envs.packing import Packing
from async_dqn.settings.environment import EnvironmentOptions


@dataclass(frozen=True)
class EnvironmentSpec:
    """What a run needs to know of its environment before it makes one."""

    id: str  # canonical, as gymnasium registers it: "ALE/Pong-v5", "CartPole-v1"
    is_atari: bool
    protocol: str  # "classic" or "machado"; "none" where it is not Atari
    num_actions: int  # 0 where they are continuous
    observation_shape: tuple[int, ...]  # of one observation: a picture [H, W] or [H, W, C], or a vector
    observation_dtype: np.dtype  # uint8 or float32 for pictures, uint8 for packed bytes, float32 for vectors
    frame_skip: int  # frames of the environment in an agent step
    stack: int  # observations that the network sees at once
    max_episode_steps: int | None  # agent steps after which an episode is truncated
    action_shape: tuple[int, ...] = ()  # of one action: () where they are discrete, (D,) where they are continuous
    packing: Packing | None = None  # what the bytes of an observation of several parts are
    bounds: tuple[float, float] = (0.0, 255.0)  # the least and the largest value in a picture
    left_out: tuple[str, ...] = ()  # parts of an observation that nothing is learned from, as they are text or unknown
    options: EnvironmentOptions = EnvironmentOptions()  # how it is made

    @property
    def is_continuous(self) -> bool:
        """Whether an action is a vector, whose -1 and 1 stand for the environment's own bounds."""
        return bool(self.action_shape)

    @property
    def picture_shape(self) -> tuple[int, ...]:
        """Of the picture in an observation; (): there is none."""
        if self.packing:
            return self.packing.picture
        return self.observation_shape if len(self.observation_shape) > 1 else ()

    @property
    def action_dtype(self) -> np.dtype:
        """Of an action, as agents choose it."""
        return np.dtype(np.float32 if self.is_continuous else np.int32)
