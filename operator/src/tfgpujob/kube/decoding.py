"""JSON of an API server, whatever users have put into their objects.

One object must never prevent the others of its page from being read. API servers accept 10,000 levels; orjson rejects
more than 1,024, and Python's decoder exceeds the recursion limit at about 1,000.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import orjson

MAX_LEVELS: Final = 80
"""Levels that are read of a text that orjson rejects. More than a readable object (`api/limits.py`) and the list around
it have: what was cut here is still too deep to be accepted."""

# Possessive, so that a long string of escapes takes no memory for backtracking. A string without an end is a token too;
# otherwise each quote in it would be tried as the start of one.
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.?[^"\\]*+)*+"?|([\[{])|([\]}])', re.DOTALL)


_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def decoded(payload: bytes) -> Any:
    """The value of a JSON text. Raises ValueError if it is not JSON.

    In a text that orjson rejects, containers deeper than MAX_LEVELS and numbers beyond the range of a float become
    null, and bytes that are not UTF-8 become U+FFFD.
    """
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        text = _cut(payload.decode(errors="replace"))
    value = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=lambda _: None)
    if not _SURROGATE.search(text):
        return value
    # Only Python accepts half a surrogate pair as a string.
    return orjson.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _cut(text: str) -> str:
    """The text with null for each container that is nested too deeply."""
    kept, level, begin = [], 0, 0
    for token in _TOKEN.finditer(text):
        if token[1]:
            level += 1
            if level == MAX_LEVELS + 1:
                kept.append(text[begin : token.start()])
        elif token[2]:
            level -= 1
            if level == MAX_LEVELS:
                kept.append("null")
                begin = token.end()
    if level > MAX_LEVELS:
        raise ValueError("the text ends inside a container")
    return "".join([*kept, text[begin:]])


def _number(text: str) -> int | float | None:
    # Python rejects integers of more than 4,300 digits; other decoders read integers beyond 64 bits as floats.
    if len(text) <= 20 and text.lstrip("-").isdecimal() and -(2**63) <= int(text) < 2**64:
        return int(text)
    value = float(text)
    return value if math.isfinite(value) else None
