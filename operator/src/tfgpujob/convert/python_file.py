"""What a Python file is, told by its text: a module with model() and data(split), or a script that calls fit().

The trainer's contract/script.py decides by the same rules; tests/contract holds the two against each other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_FUNCTIONS: Final = ("model", "data")
_CALLS: Final = ("fit", "evaluate", "predict")


def is_script(file: Path) -> bool:
    """Whether the file is a plain script. Runs nothing of it. Raises ValueError if it is neither that nor a module."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        raise ValueError(f"{file.name} is no Python file: {error.msg}, at {file.name}:{error.lineno}") from error
    functions = set(_bound(tree.body))
    fits = any(_is_call(node) for node in ast.walk(tree))
    # What `*` hides may be both functions, or Keras' layers alone, as in many a notebook.
    if functions >= {*_FUNCTIONS} or ("*" in functions and not (fits and functions.isdisjoint(_FUNCTIONS))):
        return False
    if fits:
        return True
    missing = " and ".join(f"{name}()" for name in _FUNCTIONS if name not in functions)
    raise ValueError(
        f"{file.name} has no function {missing}, and calls no {', '.join(_CALLS)} by itself: define model() and "
        "data(split), or write a script that calls model.fit()"
    )


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda | ast.Name):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _bound([*node.body, *getattr(node, "orelse", ())])


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CALLS
