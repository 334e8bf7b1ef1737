"""The table of algorithms, and settings by the name of one."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from async_dqn.agents.base import Agent
from async_dqn.base.errors import UserError, import_fault
from async_dqn.settings.config import Config
from async_dqn.settings.fields import did_you_mean

TABLE = {
    "dqn": "async_dqn.agents.dqn:DQN",
    "fast_dqn": "async_dqn.agents.fast_dqn:FastDQN",
    "c51": "async_dqn.agents.c51:C51",
    "rainbow": "async_dqn.agents.rainbow:Rainbow",
    "dyna_q": "async_dqn.agents.dyna_q:DynaQ",
    "nstep_q": "async_dqn.agents.nstep_q:NStepQ",
    "pqn": "async_dqn.agents.pqn:PQN",
    "a3c": "async_dqn.agents.a3c:A3C",
    "paac": "async_dqn.agents.paac:PAAC",
    "ppo": "async_dqn.agents.ppo:PPO",
}


def find(name: str) -> type[Agent]:
    """The class of an algorithm: one of the table, or a user's own as package.module:NAME.

    Raises:
      UserError: there is none of this name, or the module cannot be imported.
    """
    path = TABLE.get(name, name)
    module_name, colon, attribute = path.partition(":")
    if not colon:
        hint = did_you_mean(name, TABLE)
        raise UserError(f"--agent={name}: {hint}must be one of {', '.join(TABLE)}, or package.module:NAME")
    try:
        found = getattr(importlib.import_module(module_name), attribute, None)
    except (Exception, SystemExit) as error:  # it may be any module
        fault = import_fault(error, module_name)
        raise UserError(f"--agent={name}: {module_name} cannot be imported: {fault}") from error
    if not (isinstance(found, type) and issubclass(found, Agent)):
        raise UserError(f"--agent={name}: {module_name} has no Agent of the name {attribute!r}")
    for field in dataclasses.fields(found.Config):
        if "choices" not in field.metadata:
            raise UserError(f"--agent={name}: its setting {field.name} must be made by setting(DEFAULT, HELP)")
    return found


def auto_preset(agent: str, settings: Mapping[str, Any]) -> str:
    """The name of the preset for the environment in settings. Raises UserError for one that there is not."""
    from async_dqn.envs import registry  # gymnasium takes its time, and who names a preset needs none of it
    from async_dqn.settings.environment import EnvironmentOptions

    env = settings.get("env", Config.env)
    return find(agent).default_preset(registry.resolve(env, Config.protocol, EnvironmentOptions.from_dict(settings)))


def make_config(agent: str, preset: str, overrides: Mapping[str, Any]) -> Config:
    """A preset of an agent, or auto: the one for the environment, with single settings replaced.

    Raises UserError for an unknown preset or a bad value.
    """
    cls = find(agent)
    if preset == "auto":
        preset = auto_preset(agent, overrides)
    if preset not in cls.presets:
        hint = did_you_mean(preset, cls.presets)
        names = ", ".join(cls.presets)
        raise UserError(f"--preset={preset}: {hint}must be one of {names} for --agent={agent}")
    known = {field.name for field in dataclasses.fields(cls.Config)}
    for name in overrides:
        if name not in known:
            raise UserError(f"--{name}: {missing_setting(agent, name)}")
    num_workers = max(1, overrides.get("num_workers", Config.num_workers))  # fewer are refused with all else
    settings = cls.preset(preset, num_workers)
    if unknown := settings.keys() - known:
        names = ", ".join(sorted(unknown))
        raise UserError(f"--agent={agent}: its preset {preset} sets {names}, which are no settings of it")
    return for_many_workers(cls.Config, settings | {"agent": agent}, overrides)


def for_many_workers(cls: type[Config], base: Mapping[str, Any], given: Mapping[str, Any]) -> Config:
    """`Config.combine` where `base` is for at most two workers.

    More of them, each with an optimizer of its own, make one local step, and the decay rates of all together are those
    of one optimizer: else updates are so stale that DQN hardly learns Pong. Where there are planners, worker 0 alone
    learns. What is given stays.
    """
    config = cls.combine(base, given)
    if config.local_steps and config.num_learners > 2 and not config.has_planners:
        config = cls.combine({**base, "local_steps": 1, "averages": "shared"}, given)
    return config


def set_by_workers(agent: str, preset: str, given: Mapping[str, Any]) -> set[str]:
    """Names of the settings that a preset, or auto, sets by the number of workers, but those that are given."""
    name = auto_preset(agent, given) if preset == "auto" else preset
    one, *more = (find(agent).preset(name, num_workers) for num_workers in (1, 2, 4))
    varied = {key for key in one if any(other.get(key) != one[key] for other in more)}
    return (varied | {"local_steps", "averages"}) - set(given)  # these by `for_many_workers`


def config_from_dict(values: Mapping[str, Any]) -> Config:
    """Settings from config.json, of the class of their agent. Raises UserError for bad ones."""
    return find(str(values.get("agent", Config.agent))).Config.from_dict(values)


def missing_setting(agent: str, name: str) -> str:
    """Says that an agent has no setting of this name, and which agents have it."""
    *others, last = owners(name) or [""]
    if not last:
        return f"--agent={agent} has no such setting, and neither has any other; see --help"
    having = f"{', '.join(others)} and {last} have it" if others else f"{last} has it"
    return f"--agent={agent} has no such setting; {having}"


def owners(flag: str) -> list[str]:
    """The agents of the table that have a setting of this name."""
    classes = {name: find(name).Config for name in TABLE}
    return [name for name, cls in classes.items() if flag in {field.name for field in dataclasses.fields(cls)}]
