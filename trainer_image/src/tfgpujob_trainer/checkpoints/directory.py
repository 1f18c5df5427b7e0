"""The names of files in a checkpoint directory, and its owner, also for supervisors. Does not import TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMIT = "COMMIT"
_LAST_COPY = "last-copy-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The writer of a directory, for fencing: in a job a higher attempt, replica restart or round is newer."""

    job_uid: str
    attempt: int
    replica_restart: int
    round: int = 0

    def is_older_than(self, other: Owner) -> bool:
        """True if `other` is a newer start of the same job."""
        return self.job_uid == other.job_uid and self._age < other._age

    @property
    def _age(self) -> tuple[int, int, int]:
        return self.attempt, self.replica_restart, self.round

    def to_json(self) -> dict[str, Any]:
        """The record in OWNER.json."""
        start = {"attempt": self.attempt, "replicaRestart": self.replica_restart, "round": self.round}
        return {"jobUid": self.job_uid, **start}


def owner_at(directory: Path) -> Owner | None:
    """The owner of the directory; None if it has none."""
    try:
        return parse_owner(json.loads((directory / "OWNER.json").read_text()))
    except (OSError, ValueError):
        return None


def parse_owner(record: Mapping[str, Any]) -> Owner | None:
    """The record in OWNER.json, if it is valid."""
    try:
        return Owner(
            job_uid=record["jobUid"],
            attempt=record["attempt"],
            replica_restart=record["replicaRestart"],
            round=record.get("round", 0),
        )
    except (KeyError, TypeError, AttributeError):
        return None


def committed(directory: Path) -> list[Path]:
    """The committed checkpoints, the newest first."""
    return sorted((path.parent for path in directory.glob(f"step-*/{COMMIT}")), reverse=True)


def last_copy(directory: Path, step: int) -> Path:
    """The file in which a pod leaves its in-memory checkpoint of that step."""
    return directory / f"{_LAST_COPY}{step:010d}"


def half_of(path: Path) -> Path:
    """Its name while it is incomplete."""
    return path.with_name(f".{path.name}")


def whole_last_copies(directory: Path) -> list[Path]:
    """The complete ones that pods have left, the newest first."""
    return sorted(directory.glob(f"{_LAST_COPY}*"), reverse=True)


def last_copies(directory: Path) -> list[Path]:
    """The same, with incomplete ones."""
    return [*whole_last_copies(directory), *directory.glob(f".{_LAST_COPY}*")]


def step_of(name: str) -> int:
    """The step of a checkpoint, or of a last copy."""
    return int(name.rpartition("-")[2])
