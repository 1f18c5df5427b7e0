"""Limits on the size of a spec, beyond which it is not read.

They are far above what a job needs: 512 replicas of 4 roles have 4 templates. They are far below what would fill the
operator's memory or exceed Python's recursion limit of 1,000.
"""

from __future__ import annotations

from typing import Any, Final

from tfgpujob.api.invalid import Invalid

MAX_LEVELS: Final = 48
MAX_VALUES: Final = 20_000
MAX_CHARACTERS: Final = 256 << 10
"""Total of all keys and strings."""
_MORE: Final = "keep such data in a ConfigMap or an image"


def too_large(spec: object, max_values: int = MAX_VALUES) -> Invalid | None:
    """Why the spec is too large to read; None if it is not. Not recursive, and stops at the first problem."""
    level: list[Any] = [spec] if isinstance(spec, dict | list) else []
    values, characters = 0, len(spec) if isinstance(spec, str) else 0
    for _ in range(MAX_LEVELS):
        children: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                characters += sum(map(len, container))
                children += container.values()
            else:
                children += container
            if len(children) + values > max_values:
                return Invalid("spec", f"has more than {max_values:,} values", _MORE)
        values += len(children)
        characters += sum(len(child) for child in children if isinstance(child, str))
        if characters > MAX_CHARACTERS:
            return Invalid("spec", f"has more than {MAX_CHARACTERS >> 10} KiB of text", _MORE)
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return None
    return Invalid("spec", f"is nested more than {MAX_LEVELS} levels deep", _MORE)
