"""The completion mark of a finished run: a later start succeeds at once. Does not import TensorFlow."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class CompletionMark:
    """`checkpoints/COMPLETED.json` of one output directory."""

    output: Path

    @property
    def path(self) -> Path:
        """Where the mark is."""
        return self.output / "checkpoints" / "COMPLETED.json"

    def summary_for(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """The summary of a finished run of this same config, else None."""
        try:
            record = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return None
        summary: dict[str, Any] = record.get("summary", {})
        return summary if record.get("config") == config else None

    def write(self, config: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Mark the run as finished."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, json.dumps({"config": config, "summary": summary}))

    def remove(self) -> None:
        """Remove the mark: the run continues."""
        self.path.unlink(missing_ok=True)


def replace_file(path: Path, text: str) -> None:
    """Replace a small file atomically; it is on disk when this returns.

    Process ids are not unique among pods, and a pod that was taken for lost may still write to a shared volume.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
