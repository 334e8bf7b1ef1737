"""How an environment other than Atari's is made and run."""

import dataclasses
import json
from typing import Any

from async_dqn.base.errors import UserError, one_line
from async_dqn.settings.fields import Fields, setting


@dataclasses.dataclass(frozen=True)
class EnvironmentOptions(Fields):
    """How an environment other than Atari's is made; the defaults leave it as gymnasium has it."""

    env_args: str = setting("{}", "What the environment is constructed with, as JSON: '{\"size\": 8}'.")
    wrapper: str = setting("", "MODULE:FUNCTION that takes each environment and gives the one to learn in.")
    frame_skip: int = setting(
        0, "Take each action this many times, and add up the rewards; 0: once.", minimum=0, maximum=1_000
    )
    frame_stack: int = setting(
        0, "The newest observations that the network sees at once; 0: one.", minimum=0, maximum=255
    )
    frame_size: int = setting(
        0, "Resize pictures of uint8 to this many pixels a side; 0: leave them.", minimum=0, maximum=1_024
    )
    grayscale: bool = setting(False, "Turn pictures of three colours into grey ones.")
    action_mask: bool = setting(
        False, "Take and value only the actions that the `action_mask` in the environment's info allows."
    )

    def texts(self) -> list[str]:
        """Those that are not the default, as flags."""
        defaults = type(self)().to_dict()
        return [f"--{name}={value}" for name, value in self.to_dict().items() if value != defaults[name]]

    def arguments(self) -> dict[str, Any]:
        """What the environment is constructed with. Raises UserError where it is no JSON object."""
        try:
            found = json.loads(self.env_args)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"--env_args={one_line(self.env_args)}: is no JSON, such as '{{\"size\": 8}}': {one_line(error)}"
            ) from error
        if not isinstance(found, dict):
            raise UserError(f"--env_args={one_line(self.env_args)}: must be a JSON object, such as '{{\"size\": 8}}'")
        if "max_episode_steps" in found:
            raise UserError(f"--env_args={one_line(self.env_args)}: for the limit there is --max_episode_steps")
        return found


@dataclasses.dataclass(frozen=True)
class EnvironmentSettings(EnvironmentOptions):
    """The same, and how its environments are run."""

    env_processes: bool = setting(
        False,
        "Have each environment in a process of its own; if one crashes or hangs, all environments of that worker start "
        "anew.",
        shared=False,
    )
    env_timeout: float = setting(
        60.0,
        "Seconds that a step of an environment may take (with --env_processes).",
        minimum=0.01,
        maximum=86_400,
        shared=False,
        only_with={"env_processes": (True,)},
    )
