"""How a gymnasium environment is made, beside its id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from async_dqn.base.errors import UserError, one_line


@dataclass(frozen=True)
class Options:
    """The settings of the same names; 0 leaves things as they are."""

    env_args: str = "{}"
    wrapper: str = ""
    frame_skip: int = 0
    frame_stack: int = 0
    frame_size: int = 0
    grayscale: bool = False
    action_mask: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Options:
        """Those of all settings that are options; a default where one is missing."""
        return cls(**{field.name: settings[field.name] for field in fields(cls) if field.name in settings})

    def texts(self) -> list[str]:
        """Those that are not the default, as flags."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return [f"--{field.name}={found[field.name]}" for field in fields(self) if found[field.name] != field.default]

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
        return found
