"""client/synchronous.py, from client/asynchronous.py: `python generate.py --write`, as `make crds` does.

`Client` has each public method of `AsyncClient`, with its arguments and its docstring. A coroutine becomes a call that
waits for its result, an asynchronous iterator a generator. How one waits stands in `blocking.py`, written by hand.
Run as a file that imports nothing of ours, it also works while synchronous.py is broken.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("asynchronous.py")
TARGET: Final = Path(__file__).with_name("synchronous.py")
_WIDTH: Final = 120
_BATCHED: Final = {"logs": "log_batches"}
"""An iterator whose items come in the batches of another one here, as a thread that waits for each would be slow."""
_HEAD: Final = '''"""The client, for scripts and notebooks.

Generated from asynchronous.py by `make crds`: change that, not this.
"""

from __future__ import annotations

import contextlib
'''
_CLASS: Final = '''

class Client(BlockingClient):
    """`AsyncClient` without the `await`. A context manager; works in notebooks too."""
'''


def generated(source: str) -> str:
    """The module, formatted as ruff does. Raises ValueError for a method of a form that it does not know."""
    module = ast.parse(source)
    client = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "AsyncClient")
    methods = [node for node in client.body if isinstance(node, ast.AsyncFunctionDef) and _is_public(node)]
    texts = [_method(node, source) for node in methods]
    return f"{_HEAD}{_imports(module, methods)}{_CLASS}\n" + "\n".join(texts)


def _is_public(node: ast.AsyncFunctionDef) -> bool:
    """`connect`, a class method, and what begins with an underscore are `BlockingClient`'s business."""
    return not node.name.startswith("_") and not node.decorator_list


def _method(node: ast.AsyncFunctionDef, source: str) -> str:
    iterated = _iterated(node)
    signature = "\n".join(source.splitlines()[node.lineno - 1 : node.body[0].lineno - 1])
    signature = signature.replace("async def ", "def ", 1)
    if iterated is not None:
        signature = signature.replace(f"-> AsyncIterator[{iterated}]:", f"-> Generator[{iterated}, None, None]:")
    doc = ast.get_source_segment(source, node.body[0])
    return f"{signature}\n        {doc}\n{_body(node, iterated=iterated is not None)}"


def _iterated(node: ast.AsyncFunctionDef) -> str | None:
    """X of AsyncIterator[X]; None for a coroutine."""
    if isinstance(node.returns, ast.Subscript) and ast.unparse(node.returns.value) == "AsyncIterator":
        return ast.unparse(node.returns.slice)
    return None


def _body(node: ast.AsyncFunctionDef, *, iterated: bool) -> str:
    if node.name in _BATCHED:
        return (
            f"        batches = self.{_BATCHED[node.name]}({_arguments(node)})\n"
            "        with contextlib.closing(batches):\n"
            "            for batch in batches:\n"
            "                yield from batch\n"
        )
    result = "" if isinstance(node.returns, ast.Constant) else "return "
    call = f"self._client.{node.name}({_arguments(node)})"
    how = "_iterate" if iterated else "_run"
    line = f"        {result}self.{how}({call})"
    return f"{line}\n" if len(line) <= _WIDTH else f"        {result}self.{how}(\n            {call}\n        )\n"


def _arguments(node: ast.AsyncFunctionDef) -> str:
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise ValueError(f"AsyncClient.{node.name}: name each argument")
    return ", ".join([*(a.arg for a in arguments.args[1:]), *(f"{a.arg}={a.arg}" for a in arguments.kwonlyargs)])


def _imports(module: ast.Module, methods: Sequence[ast.AsyncFunctionDef]) -> str:
    """Those of the asynchronous module whose names the signatures use, and our own."""
    parts = [part for node in methods for part in (node.args, node.returns) if part is not None]
    used = {name.id for part in parts for name in ast.walk(part) if isinstance(name, ast.Name)}
    used = used - {"AsyncIterator"} | {"Generator"}
    wanted = {"collections.abc": {"Generator"} & used, "tfgpujob.client.blocking": {"BlockingClient"}}
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            wanted.setdefault(node.module, set()).update(used & {alias.name for alias in node.names})
    lines = [f"from {name} import {', '.join(sorted(found))}" for name, found in sorted(wanted.items()) if found]
    ours = [line for line in lines if line.startswith("from tfgpujob")]
    return "\n".join([*(line for line in lines if line not in ours), "", *ours]) + "\n"


def main(arguments: Sequence[str]) -> int:
    if [*arguments] != ["--write"]:
        sys.stderr.write("usage: python generate.py --write\n")
        return 2
    TARGET.write_text(generated(SOURCE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
