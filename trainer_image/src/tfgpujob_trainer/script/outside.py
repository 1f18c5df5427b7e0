"""What the functions of a script's callback use besides the callback: globals of the script, and those of closures."""

from __future__ import annotations

import ast
import inspect
import random
import textwrap
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_NOT_THE_SCRIPTS = (
    "site-packages",
    "dist-packages",
    "<frozen ",
    str(Path(inspect.__file__).parent),
    str(Path(__file__).parents[1]),
)
_CONTAINERS = (bytearray, deque, dict, list, np.ndarray, set)
_HOLDERS = (tf.Variable, tf.Module, keras.Variable, keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric)
_FEW = 100
_GENERATORS = tuple(getattr(draw, "__self__", draw) for draw in (random.random, np.random.rand))
"""The generators behind the functions of `random` and of `np.random`."""
_CHANGE = frozenset(
    {"add", "append", "appendleft", "clear", "extend", "insert", "pop", "popleft", "remove", "setdefault", "update"}
)


def used(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Those that are, or hold, variables, by name. Larger containers are data, and take long to look through."""
    found = {name: value for function in _functions(callback) for name, value in _outside(function).items()}
    return {name: value for name, value in found.items() if any(isinstance(one, _HOLDERS) for one in _parts(value))}


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict | list | tuple) and len(value) <= _FEW:
        return value.values() if isinstance(value, dict) else value
    return (value,)


def changed(callback: keras.callbacks.Callback) -> list[str]:
    """The names of those that a function sets or changes, and of modules from whose generator it draws.

    An object counts if it has a method of the script's that changes it, and any of its methods is called.
    """
    return list(dict.fromkeys(name for function in _functions(callback) for name in _changed(function)))


def _functions(callback: keras.callbacks.Callback) -> Iterator[FunctionType]:
    """Those of the callback, and those of the script that they use."""
    held = [vars(kind) for kind in type(callback).__mro__ if not kind.__module__.startswith("keras.")]
    left = deque(one for attributes in (*held, vars(callback)) for one in attributes.values())
    seen: set[CodeType] = set()
    while left:
        function = left.popleft()
        if isinstance(function, FunctionType) and _is_scripts(function) and function.__code__ not in seen:
            seen.add(function.__code__)
            left.extend(_outside(function).values())
            yield function


def methods(value: Any) -> list[FunctionType]:
    """The functions of an object's class, and of those above it, that are the script's."""
    found = [one for kind in (value if isinstance(value, type) else type(value)).__mro__ for one in vars(kind).values()]
    return [one for one in found if isinstance(one, FunctionType) and _is_scripts(one)]


def is_scripts(value: Any) -> bool:
    """Whether an object has attributes, and a class of the script's; or is such a class."""
    of = value if isinstance(value, type) else type(value)
    return hasattr(value, "__dict__") and (of.__module__ == "__main__" or bool(methods(value)))


def names(function: FunctionType) -> set[str]:
    """All that a function of the script uses by name."""
    return {name for code in _codes(function.__code__) for name in code.co_names}


def words(function: FunctionType) -> set[str]:
    """All that a function of the script may read by name, or with `getattr`."""
    codes = [*_codes(function.__code__)]
    return names(function) | {one for code in codes for one in code.co_consts if isinstance(one, str)}


def used_cells(function: FunctionType) -> dict[str, CellType]:
    """What a function of the script uses of the functions that it stands in."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell for name, cell in cells if cell != CellType() and _is_scripts(function)}


def used_globals(function: FunctionType) -> dict[str, Any]:
    """What a function of the script uses of its module."""
    return {n: function.__globals__[n] for n in names(function) & function.__globals__.keys() if _is_scripts(function)}


def _is_scripts(function: FunctionType) -> bool:
    file = function.__code__.co_filename
    return bool(file) and not any(part in file for part in _NOT_THE_SCRIPTS)


def _outside(function: FunctionType) -> dict[str, Any]:
    known = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # nothing is in it yet
            known[name] = cell.cell_contents
    names = {name for code in _codes(function.__code__) for name in (*code.co_names, *code.co_freevars)}
    return {name: known[name] for name in names if name in known}


def _changed(function: FunctionType) -> Iterator[str]:
    known = _outside(function)
    containers = {name for name, value in known.items() if isinstance(value, _CONTAINERS)}
    others = {name: value for name, value in known.items() if not isinstance(value, _HOLDERS)}
    objects = {name for name, value in others.items() if _sets_attributes(value)}
    for node in ast.walk(_source(function)):
        match node:
            case ast.Global(names) | ast.Nonlocal(names):
                yield from names
            case ast.Subscript(base, _, ast.Store() | ast.Del()):
                yield from containers & {_name(base)}
            case ast.Call(ast.Attribute(base, method)) if _name(base) in (
                objects | containers if method in _CHANGE else objects
            ):
                yield _name(base)
            case ast.Attribute(base, _, ast.Store()):
                yield from others.keys() & {_name(base)}
            case ast.Call(called) if getattr(_of_module(called, known), "__self__", None) in _GENERATORS:
                yield ast.unparse(called).rpartition(".")[0] or ast.unparse(called)


def _sets_attributes(value: Any) -> bool:
    """Whether a method of an object's class, which is the script's, sets an attribute of the object."""
    methods = [m for m in vars(type(value)).values() if isinstance(m, FunctionType) and m.__name__ != "__init__"]
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        for method in methods
        if _is_scripts(method)
        for node in ast.walk(_source(method))
    )


def _of_module(called: ast.expr, known: Mapping[str, Any]) -> Any:
    """What a name stands for, such as `np.random.rand`; None for attributes of what is no module."""
    match called:
        case ast.Name(name):
            return known.get(name)
        case ast.Attribute(base, name) if isinstance(module := _of_module(base, known), ModuleType):
            return getattr(module, name, None)
    return None


def _source(function: FunctionType) -> ast.AST:
    with suppress(OSError, TypeError, SyntaxError):  # no source, or a part of a statement
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    return ast.Module([], [])


def _name(base: ast.expr) -> str:
    while isinstance(base, ast.Subscript):
        base = base.value
    return base.id if isinstance(base, ast.Name) else ""


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)
