"""Whether an environment keeps to gymnasium's interface: looked at in its first reset and its first step."""

from typing import Any, NoReturn

import gymnasium
import numpy as np

from async_dqn.base.errors import RunFailed, one_line
from async_dqn.envs.spaces import leaves


class Checked(gymnasium.Wrapper):
    """Raises RunFailed, which names environment and remedy, where a faulty one would end in an error elsewhere.

    Args:
      id: of the environment, for people.
    """

    def __init__(self, env: gymnasium.Env, id: str):
        super().__init__(env)
        self._id = id
        self._has_reset = self._has_stepped = False

    def reset(self, **options: Any) -> Any:
        try:
            result = self.env.reset(**options)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            self._fail(f"reset() takes no {', '.join(options)}", "declare reset(self, *, seed=None, options=None)")
        if not self._has_reset:
            self._has_reset = True
            if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
                self._fail(
                    f"reset() gave {_described(result)}, not an observation and a dict",
                    "since gymnasium 0.26 it is: return observation, {}",
                )
            self._check_observation(result[0], "reset()")
        return result

    def step(self, action: Any) -> Any:
        result: Any = self.env.step(action)
        if not self._has_stepped:
            self._has_stepped = True
            if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)):
                self._fail(
                    f"step() gave {_described(result)}, not observation, reward, terminated, truncated and a dict",
                    "since gymnasium 0.26 done is two: return observation, reward, terminated, truncated, {}",
                )
            observation, reward, *ends, _ = result
            self._check_observation(observation, "step()")
            if np.ndim(reward):
                self._fail(f"step() gave the reward {_described(reward)}", "give a number, such as float(reward)")
            for name, end in zip(("terminated", "truncated"), ends, strict=True):
                if np.ndim(end):
                    self._fail(f"step() gave {name} as {_described(end)}", f"give a boolean, such as bool({name})")
        return result

    def _check_observation(self, observation: Any, source: str) -> None:
        space = self.env.observation_space
        if isinstance(space, gymnasium.spaces.Box) and np.shape(observation) != space.shape:
            self._fail(
                f"{source} gave the observation {_described(observation)}, but its observation_space has the shape "
                f"{space.shape}",
                "make them agree",
            )
        for leaf in leaves(space):
            if isinstance(leaf.space, gymnasium.spaces.Box) and leaf.space.dtype.kind in "biu":
                dtype = np.asarray(leaf.get(observation)).dtype
                if dtype.kind not in "biu":  # a cast would make 0 of all that is less than 1
                    self._fail(
                        f"{source} gave {leaf.name or 'an observation'} of {dtype}, but its observation_space is of "
                        f"{leaf.space.dtype}",
                        "make them agree",
                    )

    def _fail(self, fault: str, remedy: str) -> NoReturn:
        raise RunFailed(f"{self._id}: {fault}; {remedy}")


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return one_line(repr(value), 80)
