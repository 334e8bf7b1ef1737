"""Packages that are imported when they are first used, so that commands without need of them start at once."""

import importlib
import importlib.util
import sys
import types
from typing import Any


class _Deferred(types.ModuleType):
    """Stands in for a package until something is asked of it."""

    def __getattr__(self, name: str) -> Any:
        package = self.__name__
        if sys.modules.get(package) is self:
            del sys.modules[package]
        module = importlib.import_module(package)
        # What is there now is found at once from here on; what the package loads by itself later comes this way again.
        self.__dict__.update({key: value for key, value in vars(module).items() if not key.startswith("__")})
        return getattr(module, name)


def defer(package: str) -> None:
    """Has `import package` import it on first use, unless it is imported already or not installed."""
    spec = None if package in sys.modules else importlib.util.find_spec(package)
    if spec:
        deferred = _Deferred(package)
        deferred.__spec__ = spec  # an import statement asks for it, which must not count as a use
        sys.modules[package] = deferred
