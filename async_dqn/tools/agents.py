"""What `async-dqn agents` shows: the algorithms, how each can be trained, and their presets and flags."""

import dataclasses
import textwrap

from async_dqn.agents.base import Agent
from async_dqn.agents.table import TABLE, find
from async_dqn.base.errors import UserError
from async_dqn.settings.config import UPDATE_MODES, Config

_WIDTH, _INDENT = 100, 12
_OWN = "One of your own: --agent=package.module:NAME, see docs/extending.md"


def listing() -> str:
    """All of the table, in lines of at most 100 characters."""
    blocks = [_block(name, find(name)) for name in TABLE]
    return "\n".join([*blocks, "All flags of one: async-dqn local --agent=NAME --help", _OWN])


def _block(name: str, agent: type[Agent]) -> str:
    parts = {
        "presets": ", ".join(agent.presets),
        "trains in": "; ".join(ways(agent)),
        "flags": flags(name),
        "metrics": ", ".join(agent.metrics),
    }
    lines = [agent.summary, *(f"{title}: {text}" for title, text in parts.items())]
    indent = " " * _INDENT
    wrapped = [textwrap.fill(line, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ") for line in lines]
    return name.ljust(_INDENT) + "\n".join(wrapped).lstrip()


def ways(agent: type[Agent]) -> list[str]:
    """Where an algorithm can be trained, and with which --update_mode, as its settings take it."""
    found = ["one process"]
    for store, modes in UPDATE_MODES.items() if agent.distributed else ():
        if taken := [mode for mode in modes if _goes_together(agent, store, mode)]:
            found.append(f"{'parameter servers' if store == 'ps' else 'shared memory'} ({', '.join(taken)})")
    fields = {field.name: field for field in dataclasses.fields(agent.Config)}
    crossing = [("replay", "global"), ("parallelism", "data")] if agent.distributed else []
    return found + [f"many actors (--{name}={value})" for name, value in crossing if name in fields]


def _goes_together(agent: type[Agent], store: str, mode: str) -> bool:
    given = {"store": store, "update_mode": mode, "num_workers": 2, "accumulate": 2 * (mode == "accumulate")}
    try:
        agent.Config.combine({}, given)
    except UserError:
        return False
    return True


def flags(name: str) -> str:
    """The flags that an algorithm has beside those of all: those of another one before it in the table, and its own."""
    own, others = _own_flags(name), list(TABLE)[: list(TABLE).index(name)]
    subsets = {other: _own_flags(other) for other in others if set(_own_flags(other)) <= set(own)}
    base = max(subsets, key=lambda other: len(subsets[other]), default="")
    new = [f"--{flag}" for flag in own if flag not in subsets.get(base, ())]
    return ", ".join([f"those of {base}"] * bool(base) + new)


def _own_flags(name: str) -> list[str]:
    return [field.name for field in dataclasses.fields(find(name).Config) if not hasattr(Config, field.name)]
