"""Finds the user's module, a plain Keras module that does not import this package, and calls its functions."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tfgpujob_trainer.contract.exits import ConfigError
from tfgpujob_trainer.contract.text import did_you_mean

BUILTINS = ("convnet", "digits", "resnet50", "transformer", "wide_and_deep")
_OWN_SCRIPT = "run it as your own script: remove spec.trainer"


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """The user's `model(**params)` and `data(split, **params)`, each called with the params it names."""

    name: str
    module: ModuleType
    params: Mapping[str, Any]

    @property
    def file(self) -> Path | None:
        """The file of the module."""
        path = self.module.__file__
        return Path(path) if path else None

    def model(self) -> Any:
        """A new compiled model."""
        return self._call("model", {})

    def data(self, split: str) -> Any:
        """The data of the split `train`, `validation`, `test` or `predict`."""
        return self._call("data", {"split": split})

    def callbacks(self) -> Any:
        """The result of the module's callbacks()."""
        return self._call("callbacks", {}) if hasattr(self.module, "callbacks") else []

    def check(self) -> None:
        """Raise ConfigError if a function is missing, or a param is no parameter of any."""
        for name in ("model", "data"):
            if not callable(getattr(self.module, name, None)):
                raise ConfigError(f"{self.name} has no function {name}()", f"define it, or {_OWN_SCRIPT}")
        first, *_ = [*_parameters(self.module.data), ""]
        if first != "split":
            raise ConfigError(f"data()'s first parameter is {first!r}", "write def data(split):")
        functions = [getattr(self.module, n) for n in ("model", "data", "callbacks") if hasattr(self.module, n)]
        known = [p for function in functions for p in _parameters(function) if p != "split"]
        takes_any = any(_takes_any(function) for function in functions)
        for param in self.params:
            if param not in known and not takes_any:
                raise ConfigError(f"model() has no {param!r}", did_you_mean(param, known))
        self._check_required("model", set())
        self._check_required("data", {"split"})
        if hasattr(self.module, "callbacks"):
            self._check_required("callbacks", set())

    def _check_required(self, name: str, given: set[str]) -> None:
        for parameter in inspect.signature(getattr(self.module, name)).parameters.values():
            required = parameter.default is parameter.empty and parameter.kind in (
                parameter.POSITIONAL_OR_KEYWORD,
                parameter.KEYWORD_ONLY,
            )
            if required and parameter.name not in self.params and parameter.name not in given:
                raise ConfigError(
                    f"{name}() needs {parameter.name!r}", f"set trainer.params.{parameter.name}, or give it a default"
                )

    def _call(self, name: str, given: dict[str, Any]) -> Any:
        function = getattr(self.module, name)
        known = _parameters(function)
        chosen = {k: v for k, v in self.params.items() if k in known or _takes_any(function)}
        return function(**given, **chosen)


def locate(name: str, code_directory: Path) -> None:
    """Raise ConfigError if the entrypoint can't be found. Imports no module of the user's."""
    if name in BUILTINS:
        return
    if _is_file(name):
        _file(name, code_directory)
        return
    top = name.partition(".")[0]
    candidates = [code_directory / top, code_directory / f"{top}.py"]
    if not any(c.exists() for c in candidates) and importlib.util.find_spec(top) is None:
        raise ConfigError(
            f"trainer.entrypoint {name!r} is no built-in ({', '.join(BUILTINS)}), no module, and no file "
            f"under {code_directory}",
            did_you_mean(name, BUILTINS),
        )


def file_of(name: str, code_directory: Path) -> Path | None:
    """The file that the entrypoint names; None for a built-in and a module. Raises ConfigError if it does not exist."""
    return _file(name, code_directory) if name not in BUILTINS and _is_file(name) else None


def load(name: str, params: Mapping[str, Any], code_directory: Path) -> Entrypoint:
    """Import a built-in, a dotted module or a file under `code_directory`, and check its functions.

    Exceptions of the user's module pass through.
    """
    locate(name, code_directory)
    if code_directory.is_dir() and str(code_directory) not in sys.path:
        sys.path.insert(0, str(code_directory))
    try:
        module = _import(name, code_directory)
    except SystemExit as error:
        raise ConfigError(
            f"trainer.entrypoint: {name} ends the process as it is imported, with sys.exit({error.code})",
            "put what a script does under if __name__ == '__main__':",
        ) from error
    entrypoint = Entrypoint(name, module, params)
    entrypoint.check()
    return entrypoint


def _import(name: str, code_directory: Path) -> ModuleType:
    if name in BUILTINS:
        return importlib.import_module(f"tfgpujob_trainer.builtin.{name}")
    if _is_file(name):
        return _import_file(_file(name, code_directory))
    return importlib.import_module(name)


def _is_file(name: str) -> bool:
    return "/" in name or name.endswith(".py")


def _file(name: str, code_directory: Path) -> Path:
    path = code_directory / name
    if not path.is_file():
        raise ConfigError(f"trainer.entrypoint: there is no file {path}", "check trainer.code and the file's name")
    return path


def _import_file(path: Path) -> ModuleType:
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # a file named keras.py does not hide Keras
    spec.loader.exec_module(module)
    return module


def _parameters(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]


def _takes_any(function: Callable[..., Any]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
