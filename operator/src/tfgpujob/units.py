"""Quantities as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Two units at most: 42s, 3m05s, 2h10m, 4d03h."""
    whole = max(0, int(seconds))
    for unit, size, below, step in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // step:02d}{below}"
    return f"{whole}s"


def hours(seconds: int) -> str:
    """Hours with the significant digits: 0.02, 3.5, 1240."""
    value = seconds / 3600
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def counted(count: int, noun: str, several: str = "") -> str:
    """1 pod, 2 pods; `several` is a plural that is not formed with an s."""
    return f"{count} {noun if count == 1 else several or f'{noun}s'}"
