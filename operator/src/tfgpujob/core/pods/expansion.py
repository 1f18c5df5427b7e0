"""`$(NAME)` in a container's command, environment and mounts, as Kubernetes replaces it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from tfgpujob.core.observed.snapshot import Object

_REFERENCE: Final = re.compile(r"\$\$|\$\(([^)]++)(\)?)")
_KEY: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
MAX_CHARACTERS: Final = 2 << 20
"""Total of all values: Linux starts no process with more. Each `$(A)$(A)` doubles its text."""


def expanded(text: str, value_of: Callable[[str], str | None], room: int = MAX_CHARACTERS) -> str:
    """`$$` is a dollar sign, and a reference whose value is None, or has no `room`, stays."""

    def value(found: re.Match[str]) -> str:
        nonlocal room
        if found[1] is None:
            return "$"
        if not found[2]:  # it ends with the text, and so would all others in it
            return "$(" + found[1].replace("$$", "$")
        known = value_of(found[1])
        if known is None or len(known) > room:
            return found[0]
        room -= len(known)
        return known

    return _REFERENCE.sub(value, text)


def environment(pod: Object, container: Object) -> Mapping[str, str]:
    """The container's environment variables whose values follow from the pod object alone.

    Without those from the node, a Secret or a ConfigMap, and those that refer to them.
    """
    known: dict[str, str] = {}
    room = MAX_CHARACTERS
    for variable in container.get("env") or ():
        name: str = variable["name"]
        try:
            if "valueFrom" in variable:
                known[name] = _of_field(pod["metadata"], variable["valueFrom"]["fieldRef"]["fieldPath"])
            else:
                known[name] = expanded(variable.get("value", ""), known.__getitem__, room)
                room -= len(known[name])
        except KeyError:
            known.pop(name, None)
    return known


def _of_field(metadata: Object, path: str) -> str:
    """Raises KeyError for a field that only the node knows."""
    found = _KEY.fullmatch(path)
    if found:
        return str((metadata.get(found[1]) or {}).get(found[2], ""))
    return str({"metadata.name": metadata["name"], "metadata.namespace": metadata["namespace"]}[path])
