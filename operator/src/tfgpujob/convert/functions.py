"""Functions of a notebook, or of any running program, as the source of a Python file that defines only them.

The imports, constants, functions and classes that a function uses are included, and those that they use. A value that
has no source, such as an array computed in a cell, is refused, because the job has no such cell.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import inspect
import linecache
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

_OF_EVERY_FILE: Final = frozenset({"__name__"})
"""Names that every file defines."""
_ENTRY: Final = '\n\nif __name__ == "__main__":\n    {name}()\n'


@dataclass(frozen=True, slots=True)
class Code:
    """The source of a file, and the user's own modules that it imports."""

    text: str
    modules: tuple[Path, ...]


def module_of(functions: Mapping[str, Callable[..., Any]]) -> Code:
    """A module that has each function under the given name. Raises ValueError for a value without source."""
    found = _Found()
    for name, function in functions.items():
        defined = found.define(_checked(function, name))
        if defined != name and found.bind(name, function):
            found.definitions[f"{name} ="] = f"{name} = {defined}"
    return found.code()


def script_of(function: Callable[[], Any]) -> Code:
    """A script that calls the function. Raises ValueError for a value without source."""
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
    """The content of the file, in its order."""

    imports: dict[str, None] = field(default_factory=dict)
    definitions: dict[str, str] = field(default_factory=dict)
    modules: dict[Path, None] = field(default_factory=dict)
    bound: dict[str, Any] = field(default_factory=dict)
    """The value of each global name. Everything shares one file, wherever it came from."""
    future: bool = False

    def code(self) -> Code:
        head = ["from __future__ import annotations", ""] if self.future else []
        body = "\n\n\n".join(self.definitions.values())
        return Code("\n".join([*head, *sorted(self.imports), "", "", body]).lstrip("\n") + "\n", tuple(self.modules))

    def bind(self, name: str, value: Any) -> bool:
        """True if the name is new. Raises ValueError if it has another value already."""
        if name not in self.bound:
            self.bound[name] = value
            return True
        held = self.bound[name]
        if held is value or (type(held) is type(value) and _is_plain(value) and repr(held) == repr(value)):
            return False
        raise ValueError(
            f"{name} would stand for two things in the job, {_shown(held)} and {_shown(value)}: rename one of them"
        )

    def define(self, thing: FunctionType | type) -> str:
        """Add a function or class after what it uses; returns its name."""
        name = thing.__name__
        if not self.bind(name, thing):
            return name
        codes = list(_codes_of(thing))
        if isinstance(thing, FunctionType) and codes[0].co_freevars:
            around = ", ".join(codes[0].co_freevars)
            raise ValueError(f"{name}() uses {around} of the function around it: make that an argument or a global")
        text = _text_of(thing, codes)
        if hasattr(thing, "__wrapped__") and not text.startswith("@"):
            raise ValueError(f"{name}() was wrapped outside its definition: write the decorator above it, with @")
        self.future |= any(code.co_flags & __future__.annotations.compiler_flag for code in codes)
        self.definitions[name] = ""  # for functions that call each other
        known = _globals_of(thing)
        for used in _globals_in(text):
            if used in known and used not in _OF_EVERY_FILE:
                self._use(used, known[used], thing, text)
            elif used not in known and hasattr(builtins, used):
                self.bind(used, getattr(builtins, used))
        del self.definitions[name]
        self.definitions[name] = text
        return name

    def _use(self, name: str, value: Any, by: FunctionType | type, text: str) -> None:
        if isinstance(value, ModuleType):
            self._use_module(name, value, text)
        elif isinstance(value, FunctionType | type) and value.__module__ == by.__module__:
            defined = self.define(value)
            if defined != name and self.bind(name, value):
                self.definitions[f"{name} ="] = f"{name} = {defined}"
        elif (place := _importable(value)) is not None:
            self.bind(name, value)
            module, attribute = place
            suffix = "" if attribute == name else f" as {name}"
            self._import(module, f"from {module} import {attribute}{suffix}")
        elif _is_plain(value):
            self.bind(name, value)
            self.definitions[f"{name} ="] = f"{name} = {value!r}"
        else:
            fix = "make it in the function, or let the function read it from a file"
            raise ValueError(f"{by.__name__} uses {name}, a {type(value).__name__} that was made elsewhere: {fix}")

    def _use_module(self, name: str, module: ModuleType, text: str) -> None:
        """Import it under that name, with the submodules that the source reads: `import a` does not import `a.b`."""
        self.bind(name, module)
        path = module.__name__
        below = _read_below(text, name, path)
        if path != name:
            self._import(path, f"import {path} as {name}")
        elif not below:
            self._import(path, f"import {path}")
        for one in below:
            top = one.partition(".")[0]
            self.bind(top, sys.modules[top])
            self._import(one, f"import {one}")

    def _import(self, module: str, line: str) -> None:
        self.imports[line] = None
        self._bring(module.partition(".")[0])

    def _bring(self, name: str) -> None:
        """Add the module's file, and those that it imports, as far as they are the user's own."""
        file = _file_of(name)
        if file is None or file in self.modules or _is_installed(name, file):
            return
        if file.name == "__init__.py":
            raise ValueError(f"{name} is a package of yours that is not installed: name it in requirements")
        self.modules[file] = None
        for imported in _imports_in(file):
            self._bring(imported)


def _codes_of(thing: FunctionType | type) -> Iterator[CodeType]:
    """The code of a function, or of a class's methods, which have its location, in a notebook too."""
    if isinstance(thing, FunctionType):
        yield inspect.unwrap(thing).__code__
        return
    for value in vars(thing).values():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and function.__qualname__.startswith(f"{thing.__qualname__}."):
            yield function.__code__


def _text_of(thing: FunctionType | type, codes: Sequence[CodeType]) -> str:
    """The source of its definition, with decorators."""
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
    """For a decorated function those of the function itself: the wrapper's belong to the decorator's module."""
    if isinstance(thing, FunctionType):
        known: Mapping[str, Any] = inspect.unwrap(thing).__globals__
        return known
    return vars(sys.modules[thing.__module__])


def _globals_in(text: str) -> Iterator[str]:
    """The global names that a definition reads: body, decorators, defaults and bases."""
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


def _read_below(text: str, name: str, path: str) -> Sequence[str]:
    """The submodules at this path that the source reads as attributes of the name."""
    found = set[str]()
    for node in ast.walk(ast.parse(text)):
        attributes, of, reached = list[str](), node, path
        while isinstance(of, ast.Attribute):
            attributes.append(of.attr)
            of = of.value
        if not isinstance(of, ast.Name) or of.id != name:
            continue
        # A module with another name than its path, such as os.path, is imported with its parent.
        for attribute in reversed(attributes):
            module = sys.modules.get(f"{reached}.{attribute}")
            if getattr(getattr(module, "__spec__", None), "name", None) != f"{reached}.{attribute}":
                break
            reached = f"{reached}.{attribute}"
        if reached != path:
            found.add(reached)
    return sorted(one for one in found if not any(other.startswith(f"{one}.") for other in found))


def _file_of(name: str) -> Path | None:
    """The file of the module, imported or not; None if it has none, or does not exist."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
    else:
        spec = util.find_spec(name)
        file = spec.origin if spec is not None and spec.has_location else None
    return None if file is None else Path(file)


def _imports_in(file: Path) -> Iterator[str]:
    """The modules that a file imports, by the first part of their names."""
    for node in ast.walk(ast.parse(file.read_bytes(), str(file))) if file.suffix == ".py" else ():
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _importable(value: Any) -> tuple[str, str] | None:
    """Module and name under which another file can import the same object."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or "." in name or module == "__main__":
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value else None


def _shown(value: Any) -> str:
    """The value as an error shows it."""
    if isinstance(value, FunctionType):
        code = inspect.unwrap(value).__code__
        return f"the function {value.__name__} at {Path(code.co_filename).name}:{code.co_firstlineno}"
    name = getattr(value, "__name__", None)
    return f"a {type(value).__name__}" + (f" called {name}" if isinstance(name, str) else "")


def _is_plain(value: Any) -> bool:
    """True if evaluating its repr() gives the value: numbers, strings, and collections of them."""
    try:
        return type(ast.literal_eval(repr(value))) is type(value) and bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False


def _is_installed(name: str, file: Path) -> bool:
    places = {sysconfig.get_path(place) for place in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(file.is_relative_to(place) for place in places) or name in metadata.packages_distributions()
