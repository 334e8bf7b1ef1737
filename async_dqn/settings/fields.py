"""What settings are made of: fields with a help text and bounds, checked, and carried through JSON."""

import dataclasses
import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from async_dqn.base.errors import UserError

Self = TypeVar("Self", bound="Fields")
_NOTHING: Mapping[str, Sequence[Any]] = {}
_LARGEST = 10**12  # of whole numbers without a bound of their own, which have to fit TensorFlow's


def setting(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    shared: bool = True,
    only_with: Mapping[str, Sequence[Any]] = _NOTHING,
    not_with: Mapping[str, Sequence[Any]] = _NOTHING,
) -> Any:
    """A field of settings.

    Args:
      shared: whether all processes of a run need the same value; false for what concerns one host, or the chief alone.
      only_with, not_with: the values of other settings with which alone, or with which not, this one means something.
    """
    if type(default) is int and maximum is None:
        maximum = _LARGEST
    metadata = {"help": help, "choices": tuple(choices), "minimum": minimum, "maximum": maximum, "shared": shared}
    return dataclasses.field(default=default, metadata=metadata | {"only_with": only_with, "not_with": not_with})


@dataclasses.dataclass(frozen=True)
class Fields:
    """Frozen, validated settings.

    Raises:
      UserError: at construction, naming the setting, the value and what is allowed.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        self.check()

    def check(self) -> None:
        """Raises UserError where settings do not go together. Subclasses extend it."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinity as a string."""
        values = dataclasses.asdict(self)
        return {name: str(value) if value in (float("inf"), float("-inf")) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls: type[Self], values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; names that this version does not know are left out."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        return cls(**{name: _as_saved(fields[name], value) for name, value in values.items() if name in fields})

    def refuse_idle(self, given: Mapping[str, Any]) -> None:
        """Raises UserError where one of the settings that a person gave means nothing beside the others."""
        fields = {field.name: field for field in dataclasses.fields(self)}
        for name in given:
            if getattr(self, name) != fields[name].default:
                self._refuse_idle(fields[name])

    @classmethod
    def without_idle(cls, given: Mapping[str, Any], decided: Mapping[str, Any]) -> dict[str, Any]:
        """What was given, less what means nothing beside what is decided, with that in its place."""
        wanted = {field.name: field.metadata["only_with"].items() for field in dataclasses.fields(cls)}
        idle = [name for name in given if any(decided.get(other, of[0]) not in of for other, of in wanted[name])]
        return {name: value for name, value in given.items() if name not in idle} | dict(decided)

    def _refuse_idle(self, field: dataclasses.Field) -> None:
        flag = f"--{field.name}={getattr(self, field.name)}"
        for other, wanted in field.metadata["only_with"].items():
            if getattr(self, other, wanted[0]) not in wanted:
                raise UserError(f"{flag}: is for --{other}={' or '.join(map(str, wanted))}; leave it out")
        for other, unwanted in field.metadata["not_with"].items():
            if getattr(self, other, None) in unwanted:
                raise UserError(f"{flag}: means nothing with --{other}={getattr(self, other)}; leave it out")

    def shared_names(self) -> set[str]:
        """The settings that all processes of a run need to have in common."""
        return {field.name for field in dataclasses.fields(self) if field.metadata["shared"]}

    def shared_id(self) -> int:
        """A number of 62 bits that processes have in common if the settings are the same that they need to share."""
        names = self.shared_names()
        shared = {name: value for name, value in self.to_dict().items() if name in names}
        digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 2 | 1


_TYPES = {"bool": bool, "int": int, "float": float, "str": str}


def type_of(field: dataclasses.Field) -> type:
    """The type of a setting: bool, int, float or str, also where the module's annotations are not evaluated."""
    return _TYPES.get(field.type, field.type)  # type: ignore[arg-type,return-value]


def did_you_mean(value: str, names: Iterable[str]) -> str:
    """A hint at the nearest of `names`, with a blank behind it; empty where none is near."""
    close = difflib.get_close_matches(value, list(names), 1)
    return f"did you mean {close[0]}? " if close else ""


def _as_saved(field: dataclasses.Field, value: Any) -> Any:
    """A value from JSON, of the field's own type: no text counts as true, no fraction as a whole number."""
    if type_of(field) is float and (type(value) is int or value in ("inf", "-inf")):
        return float(value)
    return value


def _check(field: dataclasses.Field, value: Any) -> None:
    flag, metadata, kind = f"--{field.name}={value}", field.metadata, type_of(field)
    if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool) != (kind is bool):
        raise UserError(f"{flag}: must be of type {kind.__name__}, not {type(value).__name__}")
    if metadata["choices"] and value not in metadata["choices"]:
        hint = did_you_mean(str(value), metadata["choices"])
        raise UserError(f"{flag}: {hint}must be one of {', '.join(metadata['choices'])}")
    low, high = metadata["minimum"], metadata["maximum"]
    endless = value in (math.inf, -math.inf) and field.default != value
    if value != value or endless or (low is not None and value < low) or (high is not None and value > high):
        bounds = [("at least", low), ("at most", high)]
        allowed = " and ".join(
            f"{word} {bound if isinstance(bound, int) else f'{bound:g}'}" for word, bound in bounds if bound is not None
        )
        plain = "finite number or inf" if field.default == math.inf else "finite number"
        finite = "finite " if endless else ""
        raise UserError(f"{flag}: must be a {f'{finite}number of {allowed}' if allowed else plain}")
