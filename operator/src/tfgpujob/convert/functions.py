"""Functions of a notebook, or of any program that runs, as the text of a Python file that defines them alone.

With a function go the imports, constants, functions and classes that it uses, and those that these use. What it uses
and no text can say, such as an array that was computed in a cell, is refused: in the job there is no such cell.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

_ENTRY: Final = '\n\nif __name__ == "__main__":\n    {name}()\n'


@dataclass(frozen=True, slots=True)
class Code:
    """A file's text, and the user's own modules that it imports."""

    text: str
    modules: tuple[Path, ...]


def module_of(functions: Mapping[str, Callable[..., Any]]) -> Code:
    """A module that has each function under the given name. Raises ValueError for what no text can say."""
    found = _Found()
    for name, function in functions.items():
        defined = found.define(_checked(function, name))
        if defined != name:
            found.definitions[f"{name} = {defined}"] = f"{name} = {defined}"
    return found.code()


def script_of(function: Callable[[], Any]) -> Code:
    """A script that calls the function. Raises ValueError for what no text can say."""
    found = _Found()
    name = found.define(_checked(function, "the function"))
    code = found.code()
    return Code(code.text.rstrip("\n") + "\n" + _ENTRY.format(name=name), code.modules)


def _checked(function: Any, name: str) -> FunctionType:
    if not isinstance(function, FunctionType):
        what = f"{name} is a {type(function).__name__}: give a function, which the job calls"
        raise ValueError(what)  # noqa: TRY004 (one kind of error for whatever cannot be said)
    if function.__name__ == "<lambda>":
        raise ValueError(f"{name} is a lambda, whose text can't be told from what is around it: write it with def")
    return function


@dataclass
class _Found:
    """What the file holds, in the order in which it must stand there."""

    imports: dict[str, None] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    modules: dict[Path, None] = field(default_factory=dict)
    future: bool = False

    def code(self) -> Code:
        head = ["from __future__ import annotations", ""] if self.future else []
        body = "\n\n\n".join(self.definitions.values())
        return Code("\n".join([*head, *sorted(self.imports), "", "", body]).lstrip("\n") + "\n", tuple(self.modules))

    def define(self, thing: FunctionType | type) -> str:
        """Take a function or class in, after what it uses; its name."""
        name = thing.__name__
        if name in self.definitions:
            return name
        codes = list(_codes_of(thing))
        if isinstance(thing, FunctionType) and codes[0].co_freevars:
            around = ", ".join(codes[0].co_freevars)
            raise ValueError(f"{name}() uses {around} of the function around it: make that an argument or a global")
        text = _text_of(thing, codes)
        self.future |= any(code.co_flags & __future__.annotations.compiler_flag for code in codes)
        self.definitions[name] = ""  # for functions that call each other
        known = _globals_of(thing)
        for used in _globals_in(text):
            if used in known:
                self._use(used, known[used], thing)
        del self.definitions[name]
        self.definitions[name] = text
        return name

    def _use(self, name: str, value: Any, by: FunctionType | type) -> None:
        if isinstance(value, ModuleType):
            self._import(value.__name__, f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}"))
        elif isinstance(value, FunctionType | type) and value.__module__ == by.__module__:
            defined = self.define(value)
            if defined != name:
                self.definitions[f"{name} ="] = f"{name} = {defined}"
        elif (place := _importable(value)) is not None:
            module, attribute = place
            suffix = "" if attribute == name else f" as {name}"
            self._import(module, f"from {module} import {attribute}{suffix}")
        elif _is_plain(value):
            self.definitions[f"{name} ="] = f"{name} = {value!r}"
        else:
            fix = "make it in the function, or let the function read it from a file"
            raise ValueError(f"{by.__name__} uses {name}, a {type(value).__name__} that was made elsewhere: {fix}")

    def _import(self, module: str, line: str) -> None:
        self.imports[line] = None
        name = module.split(".", maxsplit=1)[0]
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or _is_installed(name, Path(file)):
            return
        if Path(file).name == "__init__.py":
            raise ValueError(f"{name} is a package of yours that is not installed: name it in requirements")
        self.modules[Path(file)] = None


def _codes_of(thing: FunctionType | type) -> Iterator[CodeType]:
    """A function's code; of a class that of its methods, which say where the class is, in a notebook too."""
    if isinstance(thing, FunctionType):
        yield inspect.unwrap(thing).__code__
        return
    for value in vars(thing).values():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and function.__qualname__.startswith(f"{thing.__qualname__}."):
            yield function.__code__


def _text_of(thing: FunctionType | type, codes: Sequence[CodeType]) -> str:
    """The text of its definition, decorators included."""
    kinds = (ast.ClassDef,) if isinstance(thing, type) else (ast.FunctionDef, ast.AsyncFunctionDef)
    for code in codes:
        text = "".join(linecache.getlines(code.co_filename))
        for node in ast.walk(ast.parse(text)) if text else ():
            if isinstance(node, kinds) and node.name == thing.__name__:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if first <= code.co_firstlineno <= (node.end_lineno or first):
                    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))
    try:
        return textwrap.dedent(inspect.getsource(thing)).rstrip()
    except (OSError, TypeError) as error:
        fix = "define it in a file or in a cell of a notebook"
        raise ValueError(f"the text of {thing.__name__} is not to be found: {fix}") from error


def _globals_of(thing: FunctionType | type) -> Mapping[str, Any]:
    return thing.__globals__ if isinstance(thing, FunctionType) else vars(sys.modules[thing.__module__])


def _globals_in(text: str) -> Iterator[str]:
    """The global names that a definition reads, in its body, its decorators, its defaults and its bases."""
    waiting = [symtable.symtable(text, "<definition>", "exec")]
    seen = dict[str, None]()
    while waiting:
        table = waiting.pop()
        outermost = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (outermost or symbol.is_global()):
                seen[symbol.get_name()] = None
        waiting += table.get_children()
    yield from seen


def _importable(value: Any) -> tuple[str, str] | None:
    """Module and name under which another file finds the very same thing."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or "." in name or module == "__main__":
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value else None


def _is_plain(value: Any) -> bool:
    """Whether its repr() is the value again: numbers, texts, and collections of them."""
    try:
        return type(ast.literal_eval(repr(value))) is type(value) and bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False


def _is_installed(name: str, file: Path) -> bool:
    places = {sysconfig.get_path(place) for place in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(file.is_relative_to(place) for place in places) or name in metadata.packages_distributions()
