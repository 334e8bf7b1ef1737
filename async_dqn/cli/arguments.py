"""What can be asked for on a command line: sub-commands, their flags, and how both are read."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from async_dqn.agents import table
from async_dqn.agents.base import Agent
from async_dqn.base.errors import UserError, one_line
from async_dqn.run import provenance
from async_dqn.run.directory import RunDirectory
from async_dqn.settings.config import Config
from async_dqn.settings.fields import type_of

TEXT: flags.ArgumentParser = flags.ArgumentParser()
SPEC = "JSON file with the addresses of all ps and workers; without it, TF_CONFIG is read."
Option = tuple[str, flags.ArgumentParser, Any, str]  # a flag: its name, parser, default and help
PROGRESS: Option = (
    "progress",
    flags.EnumParser(["auto", "plain"]),
    "auto",
    "auto: rewritten in place where there is a terminal; plain: lines that stay, for logs.",
)


class Number(flags.ArgumentParser):
    """Numbers, of at least `least` and at most `most` where these are given; without them inf and nan are some too."""

    syntactic_help = "a number"

    def __init__(self, least: float | None = None, most: float = math.inf):
        self._least, self._most = least, most

    def parse(self, argument: Any) -> Any:
        number = self._read(argument)
        if self._least is not None and not self._least <= number <= self._most:
            allowed = f"at least {self._least}" if self._most == math.inf else f"{self._least} to {self._most}"
            raise ValueError(f"must be {allowed}")
        return number

    def _read(self, argument: Any) -> Any:
        try:
            return float(argument)
        except ValueError:
            raise ValueError("must be a number") from None


class Whole(Number):
    """Whole numbers, also written 1_000 or 1e6; bounds are as of `Number`."""

    syntactic_help = "a whole number"

    def _read(self, argument: Any) -> Any:
        with contextlib.suppress(ValueError):
            return int(argument)
        with contextlib.suppress(ValueError):
            if (number := float(argument)).is_integer():
                return int(number)
        raise ValueError("must be a whole number")


class _TrueOrFalse(flags.BooleanParser):
    """What absl takes as a boolean, with a line for people on anything else."""

    def parse(self, argument: Any) -> bool:
        try:
            return super().parse(argument)
        except ValueError:
            raise ValueError("must be true or false") from None


_PARSERS: dict[type, flags.ArgumentParser] = {bool: flags.BooleanParser(), str: TEXT, int: Whole(), float: Number()}


class Call(NamedTuple):
    """What was asked for on the command line.

    Attributes:
      values: the flags.
      operands: what is no flag.
      arguments: the whole command line, as it was given.
    """

    values: flags.FlagValues
    operands: Sequence[str]
    arguments: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Command:
    """A sub-command: what it does, which flags it takes, and the function that gives its exit code.

    Attributes:
      logdir: what --logdir is for, as its help says it; empty: there is no such flag.
      operands: what it takes beside flags, as its usage says it; empty: nothing.
    """

    help: str
    run: Callable[[Call], int]
    logdir: str = ""
    trains: bool = False
    joins_cluster: bool = False
    options: Sequence[Option] = ()
    operands: str = ""


def _define(values: flags.FlagValues, command: Command, agent: type[Agent], shown: Mapping[str, Any]) -> None:
    """Defines the flags of a command; `shown` are settings whose values the help gives in place of defaults."""
    options: list[Option] = []
    for field in dataclasses.fields(agent.Config) if command.trains else ():
        choices = field.metadata["choices"]
        allowed = f" One of: {', '.join(choices)}." if choices else ""
        text = f"{field.metadata['help']}{allowed} [{shown.get(field.name, field.default)}]"
        options.append((field.name, _PARSERS[type_of(field)], None, text))
    if command.trains:
        text = f"Settings to start from: auto (by --env), {', '.join(agent.presets)}. Single flags override it."
        options += [("preset", TEXT, "auto", text), ("resume", _PARSERS[bool], False, "Resume the run in --logdir.")]
    if command.logdir:
        options.append(("logdir", TEXT, None, command.logdir))
    options.append(("verbose", _PARSERS[bool], False, "Show TensorFlow's own messages and full tracebacks."))
    if command.joins_cluster:
        place = "Which ps or worker of the cluster this process is, from 0."
        options += [("cluster_spec", TEXT, None, SPEC), ("task_index", Whole(), None, place)]
    serializer: flags.ArgumentSerializer = flags.ArgumentSerializer()
    for name, parser, default, text in (*options, *command.options):
        if isinstance(parser, flags.BooleanParser):
            flags.DEFINE_boolean(name, default, text, flag_values=values)
            values[name].parser = _TrueOrFalse()
        else:
            flags.DEFINE(parser, name, default, text, values, serializer)


def _usage(commands: Mapping[str, Command]) -> str:
    width = max(map(len, commands))
    lines = [f"  {name:{width}}  {command.help}" for name, command in commands.items()]
    others = "async-dqn COMMAND --help, async-dqn --version"
    return "\n".join(["usage: async-dqn COMMAND [--flag=value ...]", "", *lines, "", others])


def _check_argument(argument: str, command: str) -> None:
    """Refuses what absl or a terminal would choke on, and the flags that absl has of its own."""
    flag = argument.partition("=")[0]
    if argument.startswith("-") and (len(flag) > 100 or flag.lstrip("-") in ("flagfile", "undefok")):
        raise UserError(f"unknown flag {one_line(flag, 100)}; see async-dqn {command} --help")
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise UserError(f"argument {one_line(argument, 100)} is not UTF-8") from None


def _value(arguments: Sequence[str], flag: str) -> str | None:
    """The last value that is given for a flag, before flags are defined."""
    found = None
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name == flag:
            found = value if equals else following
    return found


def _agent_name(arguments: Sequence[str]) -> str:
    """The agent that is asked for, or the one of the run that is to be gone on with."""
    named = _value(arguments, "agent")
    logdir = _value(arguments, "logdir")
    if named is None and logdir and _value(arguments, "resume") not in (None, "false", "False", "f", "0"):
        return RunDirectory(logdir).agent_name() or Config.agent
    return Config.agent if named is None else named


def _preset(arguments: Sequence[str], agent: str, num_workers: int) -> tuple[str, Mapping[str, Any]]:
    """The preset that a command would start from, and its settings; ("", {}) where that is not known."""
    name, env = _value(arguments, "preset") or "auto", _value(arguments, "env") or Config.env
    given = {"env": env, "num_workers": num_workers}
    try:
        if name == "auto":
            name = table.auto_preset(agent, given)
        return name, table.make_config(agent, name, given).to_dict()
    except (UserError, ImportError):
        return "", {}


def _missing(flag: str, agent: str) -> str:
    """Says which other agents have such a flag; empty where none has."""
    found = next((name for name in (flag, flag.removeprefix("no")) if table.owners(name)), None)
    return f"--{flag}: {table.missing_setting(agent, found)}" if found else ""


def parse(arguments: Sequence[str], commands: Mapping[str, Command]) -> tuple[Command, Call] | str:
    """The command and what is asked of it, or a text to show instead."""
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        return _usage(commands)
    name, rest = arguments[0], list(arguments[1:])
    if name in ("--version", "version"):
        return ", ".join(f"{package} {version}" for package, version in provenance.versions().items())
    if name not in commands:
        raise UserError(f"unknown command {one_line(name, 100)!r}; must be one of {', '.join(commands)}")
    for argument in rest:
        _check_argument(argument, name)
    command = commands[name]
    agent = _agent_name(rest) if command.trains else Config.agent
    values = flags.FlagValues()
    wants_help = "--help" in rest or "-h" in rest
    given = _value(rest, "num_workers") or ""
    is_number = given.isdecimal() and len(given) < 5  # what is wrong with others is said where flags are read
    num_workers = 1 if name == "baseline" else int(given) if is_number else Config.num_workers
    preset, shown = _preset(rest, agent, num_workers) if command.trains and wants_help else ("", {})
    _define(values, command, table.find(agent), shown)
    if wants_help:
        usage = " ".join(["async-dqn", name, command.operands]).strip()
        own_flags = values.get_help(include_special_flags=False).strip().partition("\n")[2]  # less this module's name
        about = f", in [ ] their values with --preset={preset}" if preset else ""
        others = f" The flags of --agent={agent}{about}:" if command.trains else ""
        return f"{usage}: {command.help}{others}\n\n{own_flags}"
    try:
        leftover = values([f"async-dqn {name}", *rest])[1:]
    except (flags.Error, ValueError) as error:  # absl has plain ValueErrors too, as for --nodouble=3
        missing = command.trains and isinstance(error, flags.UnrecognizedFlagError) and _missing(error.flagname, agent)
        said = " ".join(str(error).split()).removeprefix("flag ")
        raise UserError(missing or f"{said}; see async-dqn {name} --help") from error
    if "logdir" in values and values.logdir == "":
        raise UserError("--logdir= is empty; give a folder, or leave the flag out")
    if leftover and not command.operands:
        raise UserError(f"unexpected argument {leftover[0]!r}; flags are written --name=value")
    if command.trains:
        values["agent"].value = agent
    return command, Call(values, leftover, arguments)
