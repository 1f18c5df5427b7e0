"""JSON of an API server, whatever strangers have put into their objects.

One object must never keep the others of its page from being read. API servers accept 10,000 levels; orjson refuses a
text with more than 1,024, and Python's own decoder ends the recursion at about 1,000.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import orjson

MAX_LEVELS: Final = 80
"""Of a text that orjson refuses, so many are read. More than a readable object has (`api/limits.py`) and the
list around it: what was cut here is still too deep, so nothing acts on it as if it were whole."""

# Possessive: a string of a mebibyte of escapes costs no memory for ways back. One without an end is a token too:
# else each quote in it would be tried as the begin of one.
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.?[^"\\]*+)*+"?|([\[{])|([\]}])', re.DOTALL)


_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def decoded(payload: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for what is none.

    What is nested deeper than MAX_LEVELS in a text that orjson refuses becomes null, a byte that is not UTF-8 U+FFFD, a
    number that no float can hold null.
    """
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        text = _cut(payload.decode(errors="replace"))
    value = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=lambda _: None)
    if not _SURROGATE.search(text):
        return value
    # Half a surrogate pair is a string to Python and to nobody else.
    return orjson.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _cut(text: str) -> str:
    """The text with null in place of each container that is nested too deep."""
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
    # Python refuses integers of more than 4,300 digits, and what is beyond 64 bits is a float to everybody else.
    if len(text) <= 20 and text.lstrip("-").isdecimal() and -(2**63) <= int(text) < 2**64:
        return int(text)
    value = float(text)
    return value if math.isfinite(value) else None
