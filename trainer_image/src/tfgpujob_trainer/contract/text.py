"""Parts of sentences."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def counted(count: int, noun: str, several: str = "") -> str:
    """1 step, 2 steps; `several` is a plural that is not formed with an s."""
    return f"{count} {noun if count == 1 else several or f'{noun}s'}"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`did you mean 'x'?`, or the list of known words."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known) or 'none'}"
