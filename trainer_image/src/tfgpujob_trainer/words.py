"""Numbers in sentences."""

from __future__ import annotations


def counted(count: int, noun: str, several: str = "") -> str:
    """1 step, 2 steps; `several` is the noun's plural where it is not formed with an s."""
    return f"{count} {noun if count == 1 else several or f'{noun}s'}"
