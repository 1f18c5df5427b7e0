"""What the time of a job is spent on, and the moments of a restart in place, by name."""

from __future__ import annotations

from typing import Final

QUEUED: Final = "queued"
PULLING: Final = "pulling"
WAITING: Final = "waiting"
IMPORTING: Final = "importing"
BUILDING: Final = "building"
RESTORING: Final = "restoring"
TRACING: Final = "tracing"
INPUT: Final = "input"
ALL_REDUCE: Final = "allReduce"
SAVING: Final = "saving"
EVALUATING: Final = "evaluating"
RECOMPUTING: Final = "recomputing"
USEFUL: Final = "useful"
LOST: Final = "lost"
RESTARTING: Final = "restarting"
BACKOFF: Final = "backoff"
SUSPENDED: Final = "suspended"
OTHER: Final = "other"
OF_TRAINER: Final = (
    WAITING,
    IMPORTING,
    BUILDING,
    RESTORING,
    TRACING,
    INPUT,
    ALL_REDUCE,
    SAVING,
    EVALUATING,
    RECOMPUTING,
    USEFUL,
    LOST,
    RESTARTING,
    OTHER,
)
"""The parts of a pod's ledger. docs/goodput.md explains each."""
PARTS: Final = (QUEUED, PULLING, *OF_TRAINER[:-1], BACKOFF, SUSPENDED, OTHER)
"""All parts, in the order of a job's life."""

FAILED: Final = "failed"
"""The last sign of life."""
DETECTED: Final = "detected"
ENDED: Final = "ended"
"""The processes are gone."""
CREATED: Final = "created"
"""The next pod is created."""
STARTED: Final = "started"
"""The next processes are started."""
IMPORTED: Final = "imported"
"""TensorFlow and the entrypoint are imported."""
RESOLVED: Final = "resolved"
"""The names of all peers resolve."""
RESTORED: Final = "restored"
"""The model is built, and the checkpoint read."""
STEPPED: Final = "stepped"
"""The first step that is no repetition is done."""
MOMENTS: Final = (FAILED, DETECTED, ENDED, CREATED, STARTED, RESTORED, STEPPED)
"""The moments that the operator records of the last restart, in their order. The start of a pod has only the last
three, a restart in place no CREATED."""
