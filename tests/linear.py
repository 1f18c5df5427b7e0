"""Whether a regular expression takes time linear in its text, whatever the text is.

The texts are made of the pattern itself: each run of its parts, repeated, after what leads to it and before what ends
the search in vain. Time is the thread's own, and a text is grown step by step, so that an exponential pattern ends the
trial early.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

LONG: Final = 16 << 10
MOST: Final = 12.0
"""How many times longer eight times the text may take."""
NOISE_SECONDS: Final = 0.003
"""What takes less for LONG is linear: what is not takes several times as much."""
_STEPS: Final = (*(round(16 * 1.25**step) for step in range(10)), 512, 2048, LONG)
_ENDS: Final = ("", "\n\0")
_CHARACTERS: Final = 12
_ANY: Final = "a0 "
_FITTING: Final = "aA0 _-./:\n\"'"


def patterns(package: ModuleType) -> dict[str, re.Pattern[Any]]:
    """Every compiled pattern that a module of the package, a class in it or a container in either holds."""
    found: dict[str, re.Pattern[Any]] = {}
    for module in (package, *_modules(package)):
        for name, value in vars(module).items():
            for place, pattern in _held(value, module.__name__, depth=4):
                found.setdefault(f"{module.__name__}.{name}{place}", pattern)
    return found


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


def _held(value: object, module: str, depth: int) -> Iterator[tuple[str, re.Pattern[Any]]]:
    if isinstance(value, re.Pattern):
        yield "", value
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from ((f"[{key!r}]{place}", found) for place, found in _held(item, module, depth - 1))
    elif depth and isinstance(value, tuple | list | set | frozenset):
        for number, item in enumerate(value):
            yield from ((f"[{number}]{place}", found) for place, found in _held(item, module, depth - 1))
    elif depth and isinstance(value, type) and value.__module__ == module:
        for name, item in vars(value).items():
            yield from ((f".{name}{place}", found) for place, found in _held(item, module, depth - 1))


def used_as_text(source: Path) -> list[str]:
    """Where a file gives a pattern as a text, or compiles one inside a function: no walk would find it."""
    tree = ast.parse(source.read_text())
    names = {
        a.asname or a.name
        for n in ast.walk(tree)
        if isinstance(n, ast.ImportFrom) and n.module == "re"
        for a in n.names
    }
    found = [f"{source}: from re import {name}" for name in names]
    at_begin = {id(node) for top in tree.body if not isinstance(top, ast.FunctionDef) for node in _outside(top)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            of_re = node.func.value.id == "re" and node.func.attr not in {"escape"}
            if of_re and not (node.func.attr == "compile" and id(node) in at_begin):
                found.append(f"{source}:{node.lineno}: re.{node.func.attr}")
    return found


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all in it that is run when the module is imported."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _outside(child)


def worst(pattern: re.Pattern[Any]) -> str:
    """The text and the figures that show that the pattern is not linear; empty if none does."""
    # What match tries, search tries first.
    for method in (pattern.search, pattern.fullmatch):
        for before, seed in sorted(_seeds(pattern)):
            for end in _ENDS:
                said = _grown(method, before, seed, end)
                if said:
                    return f"{method.__name__} of {before!r} + n * {seed!r} + {end!r}: {said}"
    return ""


def _grown(method: Callable[[Any], Any], before: str, seed: str, end: str) -> str:
    for length in _STEPS:
        took = _seconds(method, before, seed, end, length)
        if took > NOISE_SECONDS:
            # On a busy machine a moment may be slow.
            took, less = (
                min(_seconds(method, before, seed, end, size) for _ in range(3)) for size in (length, length // 8)
            )
            if took > NOISE_SECONDS and took > MOST * less:
                return f"{took:.3f} s for {length} characters, {less:.6f} s for {length // 8}"
    return ""


def _seconds(method: Callable[[Any], Any], before: str, seed: str, end: str, length: int) -> float:
    text = (before + seed * max(1, (length - len(before)) // len(seed)))[:length] + end
    began = time.thread_time()
    method(text)
    return time.thread_time() - began


def _seeds(pattern: re.Pattern[Any]) -> set[tuple[str, str]]:
    """What leads to a run of parts, and the run."""
    parsed = parser.parse(pattern.pattern, pattern.flags & ~re.TEMPLATE)
    characters = [*dict.fromkeys((*[*dict.fromkeys(_characters(parsed))][:_CHARACTERS], *_ANY))]
    found = {("", character) for character in characters}
    for before, parts in _sequences(parsed, ""):
        for choice in range(4):
            texts = [_text(part, choice, characters) for part in parts]
            for begin in range(len(texts)):
                leading = before + "".join(texts[:begin])
                for run in ("".join(texts[begin:end]) for end in range(begin + 1, len(texts) + 1)):
                    found |= {("", run), (leading, run), ("", leading + run)}
                found |= {(leading, character) for character in characters} if choice == 0 else set()
    return {(before, seed) for before, seed in found if seed}


def _sequences(parts: Any, before: str) -> Iterator[tuple[str, list[Any]]]:
    """Each sequence of parts in a pattern, with a text that leads to it."""
    listed = list(_joined(parts))
    yield before, listed
    for number, (code, value) in enumerate(listed):
        leading = before + "".join(_text(part, 0, _ANY) for part in listed[:number])
        for inner in _inner(code, value):
            yield from _sequences(inner, leading)


def _joined(parts: Any) -> Iterator[Any]:
    """The parts, with the letters of a word as one."""
    word = ""
    for code, value in parts:
        if code is op.LITERAL:
            word += chr(value)
            continue
        if word:
            yield _WORD, word
        word = ""
        yield code, value
    if word:
        yield _WORD, word


def _inner(code: Any, value: Any) -> list[Any]:
    if code is op.BRANCH:
        return list(value[1])
    if code in {op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT}:
        return [value[2]]
    if code is op.SUBPATTERN:
        return [value[3]]
    if code is op.ATOMIC_GROUP:
        return [value]
    return [value[1]] if code in {op.ASSERT, op.ASSERT_NOT} else []


def _characters(parts: Any) -> Iterator[str]:
    for code, value in parts:
        if code in {op.LITERAL, op.NOT_LITERAL}:
            yield chr(value)
        elif code is op.IN:
            yield from (_of_class(value, choice) for choice in range(3))
        for inner in _inner(code, value):
            yield from _characters(inner)


def _text(part: Any, choice: int, characters: Sequence[str]) -> str:
    """A text that matches the part; `choice` selects one of several. `characters`: the pattern's own."""
    code, value = part
    if code is _WORD:
        return str(value)
    if code is op.ANY:
        return ["a", *characters][choice % (len(characters) + 1)]
    if code is op.NOT_LITERAL:
        return _of_class([(op.NEGATE, None), (op.LITERAL, value)], choice, characters)
    if code is op.IN:
        return _of_class(value, choice, characters)
    if code in {op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT}:
        repeated = "".join(_text(inner, choice, characters) for inner in _joined(value[2]))
        return repeated * int(min(max(value[0], 1), 64))
    inner = _inner(code, value) if code in {op.BRANCH, op.SUBPATTERN, op.ATOMIC_GROUP} else []
    return "".join(_text(one, choice, characters) for one in _joined(inner[choice % len(inner)])) if inner else ""


def _of_class(items: Any, choice: int = 0, characters: Sequence[str] = ()) -> str:
    """Letters and the like for even choices, and for odd ones what the pattern has elsewhere."""
    matches = re.compile(_class_of(items)).match
    first, last = (_FITTING, characters) if choice % 2 == 0 else (characters, _FITTING)
    fitting: list[str] = [one for one in (*first, *last, *map(chr, range(32, 127))) if matches(one)]
    return fitting[choice // 2 % len(fitting)] if fitting else "é"


_WORD: Final = "word"
_CATEGORIES: Final = {
    op.CATEGORY_DIGIT: r"\d", op.CATEGORY_NOT_DIGIT: r"\D", op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S", op.CATEGORY_WORD: r"\w", op.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip


def _class_of(items: Any) -> str:
    text = ""
    for code, value in items:
        if code is op.NEGATE:
            text += "^"
        elif code is op.LITERAL:
            text += re.escape(chr(value))
        elif code is op.RANGE:
            text += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        elif code is op.CATEGORY:
            text += _CATEGORIES[value]
    return f"[{text}]"
