"""The line of a field in a file, for errors."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from tfgpujob.kubectl_yaml import Loader, key_of

_INDEX = re.compile(r"\[(\d+)\]")
_NULL = "tag:yaml.org,2002:null"


def line_of(text: str, number: int, field: str) -> int:
    """The line of the field in the object of this number, the items of a List counted in its place, from 0.

    For a missing field, the line of the deepest parent that exists.
    """
    documents = (node for node in yaml.compose_all(text, Loader=Loader) if node is not None)
    objects = [obj for document in documents if document.tag != _NULL for obj in _flat(document)]
    return _line(objects[number], objects[number].start_mark.line, field) + 1


def _flat(node: yaml.Node) -> Iterator[yaml.Node]:
    parts = {key_of(key): value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}
    items = parts.get("items")
    if "kind" in parts and str(parts["kind"].value).endswith("List") and isinstance(items, yaml.SequenceNode):
        for item in items.value:
            yield from _flat(item)
    else:
        yield node


def _line(node: yaml.Node, line: int, path: str) -> int:
    """A key may contain dots, so the longest one that the path begins with is used; a label's is in brackets."""
    if isinstance(node, yaml.SequenceNode) and (index := _INDEX.match(path)) and int(index[1]) < len(node.value):
        item = node.value[int(index[1])]
        return _line(item, item.start_mark.line, path[index.end() :].removeprefix("."))
    if isinstance(node, yaml.MappingNode):
        named = [(str(key_of(key)), key, value) for key, value in node.value]
        if found := [part for part in named if _begins(path, part[0])]:
            name, key, value = max(found, key=lambda part: len(part[0]))
            rest = path[len(name) + (2 if path.startswith("[") else 0) :].removeprefix(".")
            return _line(value, key.start_mark.line, rest)
    return line


def _begins(path: str, key: str) -> bool:
    whole = f"[{key}]" if path.startswith("[") else key
    return path.startswith(whole) and path[len(whole) : len(whole) + 1] in {"", ".", "["}
