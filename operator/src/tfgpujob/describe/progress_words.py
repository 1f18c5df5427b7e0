"""The trainer's progress lines as text for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tfgpujob.core.observed.progress_series import LINE
from tfgpujob.units import duration


def progress_of(line: str) -> str | None:
    """A progress line of the trainer as text, with what a script has printed before it; None for any other line."""
    before, mark, record = line.partition(LINE)
    try:
        return " ".join(filter(None, (before, progress_words(json.loads(mark + record))))) if mark else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def progress_words(record: Mapping[str, Any]) -> str:
    """`step 60/240, epoch 5/20, loss 0.4123, 15000 examples/s, 12s to go`, as far as it is known: other programs may
    report less."""
    known = {name: value for name, value in record.items() if value is not None}
    step, steps = int(known["step"]), int(known.get("steps", 0))
    parts = [f"step {step}/{steps}" if steps else f"step {step}"]
    if "epoch" in known:
        parts.append(f"epoch {known['epoch']}/{known['epochs']}" if "epochs" in known else f"epoch {known['epoch']}")
    if "loss" in known:
        parts.append(f"loss {float(known['loss']):.4f}")
    if "examplesPerSecond" in known:
        parts.append(f"{float(known['examplesPerSecond']):.0f} examples/s")
    if steps and "stepSeconds" in known:
        parts.append(f"{duration((steps - step) * float(known['stepSeconds']))} to go")
    return ", ".join(parts)
