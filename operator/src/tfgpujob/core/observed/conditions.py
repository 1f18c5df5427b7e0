"""Conditions in the status of any object: jobs, pods, nodes."""

from __future__ import annotations

from tfgpujob.core.observed.snapshot import Object


def is_true(obj: Object, condition: str) -> bool:
    """False where the object has no such condition, or no status yet."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(c["type"] == condition and c["status"] == "True" for c in conditions)
