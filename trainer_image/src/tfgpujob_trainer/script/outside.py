"""What the functions of a script's callback use besides the callback: globals of the script, and those of closures."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_NOT_THE_SCRIPTS = ("site-packages", "dist-packages")
_CONTAINERS = (bytearray, deque, dict, list, np.ndarray, set)
_HOLDERS = (tf.Variable, tf.Module, keras.Variable, keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric)
_FEW = 100
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
    """The names of those that a function sets, and of containers that it changes."""
    return list(dict.fromkeys(name for function in _functions(callback) for name in _changed(function)))


def _functions(callback: keras.callbacks.Callback) -> Iterator[FunctionType]:
    held = [vars(kind) for kind in type(callback).__mro__ if not kind.__module__.startswith("keras.")]
    for function in (one for attributes in (*held, vars(callback)) for one in attributes.values()):
        file = function.__code__.co_filename if isinstance(function, FunctionType) else ""
        if file and not any(part in file for part in _NOT_THE_SCRIPTS):
            yield function


def _outside(function: FunctionType) -> dict[str, Any]:
    known = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # nothing is in it yet
            known[name] = cell.cell_contents
    names = {name for code in _codes(function.__code__) for name in (*code.co_names, *code.co_freevars)}
    return {name: known[name] for name in names if name in known}


def _changed(function: FunctionType) -> Iterator[str]:
    tree = ast.Module([], [])
    with suppress(OSError, TypeError, SyntaxError):  # no source, or a part of a statement
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    containers = {name for name, value in _outside(function).items() if isinstance(value, _CONTAINERS)}
    for node in ast.walk(tree):
        match node:
            case ast.Global(names) | ast.Nonlocal(names):
                yield from names
            case ast.Subscript(base, _, ast.Store() | ast.Del()):
                yield from containers & {_name(base)}
            case ast.Call(ast.Attribute(base, method)) if method in _CHANGE:
                yield from containers & {_name(base)}


def _name(base: ast.expr) -> str:
    while isinstance(base, ast.Subscript):
        base = base.value
    return base.id if isinstance(base, ast.Name) else ""


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)
