"""Fields that an API server has silently dropped (pruned) from an object.

Servers before 1.27 may have no strict field validation: they drop a misspelt field of a pod, which then runs on the
wrong node or without its command. So the created object is compared with the one that was sent. Fields that the server
or a webhook added or changed don't count, nor do omitted empty values. Later servers refuse such a pod; there a missing
field was removed by a webhook, which is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

_NEAR: Final = 8
_MOST: Final = 32


def dropped_fields(sent: Any, made: Any, path: str) -> tuple[str, ...]:
    """Paths below `path` of the values in `sent` that are not in `made`."""
    # Most of a pod is returned unchanged, and comparing is many times faster than walking.
    if sent == made:
        return ()
    if isinstance(sent, Mapping) and isinstance(made, Mapping):
        given = [(key, value) for key, value in sent.items() if value]
        lost = [f"{path}.{key}" for key, _ in given if key not in made]
        kept = [dropped_fields(value, made[key], f"{path}.{key}") for key, value in given if key in made]
        return (*lost, *(field for fields in kept for field in fields))
    if isinstance(sent, list) and isinstance(made, list) and made:
        kept_whole = {_as_text(item) for item in made}
        lost_parts = [(i, item) for i, item in enumerate(sent) if _as_text(item) not in kept_whole][:_MOST]
        return tuple(f for i, item in lost_parts for f in dropped_fields(item, _like(item, i, made), f"{path}[{i}]"))
    return ()


def _like(item: Any, index: int, made: Sequence[Any]) -> Any:
    """Webhooks may insert elements: among those near its place the one of its name, else the one that lacks the fewest
    keys. Only one: comparing each with each would take the product of the lengths of nested lists."""
    first = max(0, index - _NEAR // 2)
    near = made[first : first + _NEAR]
    name = _name(item)
    namesakes = [candidate for candidate in near if name and _name(candidate) == name]
    return min(namesakes or near, key=lambda candidate: _lacks(item, candidate), default=None)


def _lacks(item: Any, candidate: Any) -> int:
    if not isinstance(item, Mapping) or not isinstance(candidate, Mapping):
        return 0 if type(item) is type(candidate) else 1
    return sum(key not in candidate for key in item)


def _as_text(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


def _name(item: Any) -> str:
    return str(item.get("name") or "") if isinstance(item, Mapping) else ""
