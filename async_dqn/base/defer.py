"""Packages that are imported when they are first used, so that commands without need of them start at once."""

import contextlib
import gc
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

_WITHOUT: dict[str, Sequence[str]] = {}  # of each deferred package


class _Deferred(types.ModuleType):
    """Stands in for a package until something is asked of it."""

    def __getattr__(self, name: str) -> Any:
        package = self.__name__
        if sys.modules.get(package) is self:
            del sys.modules[package]
        with _hidden(() if package in sys.modules else _WITHOUT[package]), _no_collection():
            module = importlib.import_module(package)
        # What is there now is found at once from here on; what the package loads by itself later comes this way again.
        self.__dict__.update({key: value for key, value in vars(module).items() if not key.startswith("__")})
        return getattr(module, name)


@contextlib.contextmanager
def _hidden(packages: Sequence[str]) -> Iterator[None]:
    """Those of the packages that are not imported yet seem not to be installed meanwhile; afterwards they are."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            if sys.modules.get(name, hidden) is None:
                del sys.modules[name]


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No search for garbage meanwhile: all that an import makes stays, and to look through it takes a tenth longer."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def defer(package: str, without: Sequence[str] = ()) -> None:
    """Has `import package` import it on first use, which raises ImportError where it is not installed.

    Args:
      without: packages that it would import if they are installed, and does well without.
    """
    _WITHOUT[package] = without
    if package not in sys.modules:
        deferred = _Deferred(package)
        deferred.__spec__ = importlib.util.find_spec(package)  # an import statement asks for it: that is no use
        sys.modules[package] = deferred
