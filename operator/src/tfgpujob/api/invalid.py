"""What is wrong with a job, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Invalid:
    """One problem: its field, what is wrong, and the fix. Its text is one sentence."""

    field: str
    """The path as Kubernetes writes it: spec.replicaSpecs.worker.replicas."""
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}; {self.fix}"
