"""Makes text from other sources safe for a terminal or a browser."""

from __future__ import annotations

import re
from typing import Final

OBEYED: Final = re.compile(r"(\x1b\[[0-9;:]*m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, with colours as the first group, and lone surrogates, which can't be shown."""


def printable(text: str, *, colours: bool = False) -> str:
    """The text without control characters. Newlines are kept, and colours if `colours`."""

    def shown(found: re.Match[str]) -> str:
        return found[0] if colours and found[1] else found[0].encode("unicode_escape").decode()

    return OBEYED.sub(shown, text)
