"""Stories that once broke a promise, by what they taught. Each is played in every test run."""

from __future__ import annotations

from typing import Any

KEPT: dict[str, tuple[tuple[Any, ...], ...]] = {
    "a clock that went back leaves the expiry to come": (
        ("create", "a", "expiring"),
        ("wait", 12.0),
        ("quota", 0),
        ("wait", 12.0),
        ("heal",),
        ("wait", 12.0),
        ("clock", -300.0),
    ),
}
