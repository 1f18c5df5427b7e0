"""Conditions in the status of any object: jobs, pods, nodes."""

from __future__ import annotations

from tfgpujob.core.observed.snapshot import Object


def is_true(obj: Object, condition: str) -> bool:
    """False where the object has no such condition, or no status yet."""
    # A loop: lists of jobs ask for thousands, and a generator takes twice the time.
    for found in (obj.get("status") or {}).get("conditions") or ():
        if found["type"] == condition and found["status"] == "True":
            return True
    return False
