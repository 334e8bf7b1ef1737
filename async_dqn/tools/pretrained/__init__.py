"""The trained agents that ship with the package.

Each lies in a folder of its own, as `async-dqn export --format=agent` writes it: a run directory with one small
checkpoint, and what it was trained with, on and by which command.
"""

from pathlib import Path

from async_dqn.base.errors import UserError
from async_dqn.run.directory import RunDirectory

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Those that there are."""
    return sorted(path.parent.name for path in _FOLDER.glob("*/config.json"))


def find(name: str) -> RunDirectory:
    """The folder of one. Raises UserError where there is none of that name."""
    if name not in names():
        raise UserError(f"--pretrained={name} is unknown: use {' or '.join(names())}")
    return RunDirectory(_FOLDER / name)
