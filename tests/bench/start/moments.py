"""When what happened at a start, in seconds since its submission, and how two kinds of start compare. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

FIRST_STEP: Final = "stepped"
NAMES: Final = (
    "accepted",
    "created",
    "scheduled",
    "began",
    "program",
    "started",
    "imported",
    "resolved",
    "restored",
    FIRST_STEP,
)
"""The job accepted; in a cluster worker 0's pod created, on a node, its container begun; its supervisor's first
instruction, its training process started, TensorFlow and the entrypoint imported, the peers' names resolved, the model
built and the checkpoint restored, the first new step done. Times from the API server have whole seconds."""

Moments = Mapping[str, float]


def of_ledger(ledger: Mapping[str, Any]) -> dict[str, float]:
    """Times since 1970, by the trainer's ledger: of its last start."""
    times = {name: at / 1000 for name, at in ledger["marks"].items() if name in NAMES}
    return {"program": (ledger["until"] - sum(ledger["parts"].values())) / 1000, **times}


def since(submitted: float, times: Mapping[str, float]) -> dict[str, float]:
    """Seconds, in the order in which they come."""
    return {name: round(max(0.0, times[name] - submitted), 2) for name in NAMES if name in times}


def medians(rounds: Sequence[Moments]) -> dict[str, float]:
    """Those that every round has."""
    return {name: round(median(r[name] for r in rounds), 2) for name in NAMES if all(name in r for r in rounds)}


def ratio(ours: Sequence[Moments], floor: Sequence[Moments]) -> dict[str, float]:
    """Our time to the first step over the floor's, round by round."""
    found = [a[FIRST_STEP] / b[FIRST_STEP] for a, b in zip(ours, floor, strict=True)]
    return {"median": round(median(found), 3), "least": round(min(found), 3), "most": round(max(found), 3)}
