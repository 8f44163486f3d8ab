"""Empty modules in the place of those that are not installed."""

import importlib.abc
import importlib.machinery
from typing import Any
from unittest.mock import MagicMock


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that are not installed, as empty ones."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Found, if the module is one of these or below one."""
        wanted = any(name == n or name.startswith(f"{n}.") for n in self.names)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

    def create_module(self, spec: Any) -> Any:
        """An object that has every attribute."""
        made = MagicMock(name=spec.name)
        made.__path__, made.__spec__ = [], spec
        return made

    def exec_module(self, module: Any) -> None:
        """Nothing to run."""
