"""The case table, tests/cases/api/*.yaml: one job a case, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CASES = Path(__file__).parents[2] / "cases" / "api"
KEYS = {"case", "rules", "metadata", "spec", "errors", "schema", "allowHost", "allowedServiceAccounts"}


@dataclass(frozen=True)
class Case:
    name: str
    job: dict[str, Any]
    errors: list[dict[str, str]]
    """Each with `field` and a fragment of `problem`; empty for a valid job."""
    rules: set[str]
    """Ids of the rules that the job breaks; empty when a field is wrong by itself."""
    schema: list[str]
    """Fields that the CRD's schema refuses: those of `errors`, unless a rule is broken or the case says otherwise."""
    options: dict[str, Any] = field(default_factory=dict)


def load() -> list[Case]:
    return [_case(path.stem, raw) for path in sorted(CASES.glob("*.yaml")) for raw in yaml.safe_load(path.read_text())]


def _case(file: str, raw: dict[str, Any]) -> Case:
    assert set(raw) <= KEYS, f"{file}: unknown {set(raw) - KEYS}"
    options: dict[str, Any] = {"allow_host": raw.get("allowHost", False)}
    if "allowedServiceAccounts" in raw:
        options["allowed_service_accounts"] = frozenset(raw["allowedServiceAccounts"])
    job = {
        "apiVersion": "tfgpu.dev/v1alpha1",
        "kind": "TFGPUJob",
        "metadata": raw.get("metadata", {"name": "digits"}),
        "spec": raw["spec"],
    }
    return Case(
        name=f"{file}: {raw['case']}",
        job=job,
        errors=raw.get("errors", []),
        rules=set(raw.get("rules", [])),
        schema=raw.get("schema", [] if raw.get("rules") else [e["field"] for e in raw.get("errors", [])]),
        options=options,
    )
