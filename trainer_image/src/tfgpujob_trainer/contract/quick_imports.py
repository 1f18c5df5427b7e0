"""Import this before TensorFlow and Keras, and call `end` after them: it takes a third off their import.

`keras.wrappers` imports scikit-learn and SciPy when it is first used. Keras imports them for three classes that wrap
models for scikit-learn. A program that uses scikit-learn imports it as ever.

Python's garbage collector rests: the imports make half a million objects, and next to no garbage. It never looks at
those objects later, either, so that a collection during the training takes less, and forks share their pages.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_LAZY = "keras.wrappers"
_OWN = "keras.src.wrappers.sklearn_wrapper"
_CLASSES = ("SKLearnClassifier", "SKLearnRegressor", "SKLearnTransformer")


class _Lazily(MetaPathFinder, Loader):
    """Finds and loads keras.wrappers, and no other module."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == _LAZY else None

    def exec_module(self, module: ModuleType) -> None:
        def get(name: str) -> Any:
            if name not in _CLASSES:
                raise AttributeError(f"module {_LAZY!r} has no attribute {name!r}")
            return getattr(import_module(_OWN), name)

        module.__dict__.update(__getattr__=get, __all__=[*_CLASSES])


def end() -> None:
    """TensorFlow and Keras are imported."""
    gc.freeze()
    gc.enable()


gc.disable()
if "keras" not in sys.modules:
    sys.meta_path.insert(0, _Lazily())
