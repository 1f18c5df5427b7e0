"""Texts that others wrote, so that a terminal or a browser shows them and does nothing."""

from __future__ import annotations

import re
from typing import Final

OBEYED: Final = re.compile(r"(\x1b\[[0-9;:]*m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal does not show but do: colours, and everything else; and halves of characters, which nothing shows."""


def printable(text: str, *, colours: bool = False) -> str:
    """Lines stay, and `colours` if it may."""

    def shown(found: re.Match[str]) -> str:
        return found[0] if colours and found[1] else found[0].encode("unicode_escape").decode()

    return OBEYED.sub(shown, text)
