"""tests/cases/pods.yaml: pod templates that an API server refuses, each with its wrong field, and ones it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_CASES = yaml.safe_load((Path(__file__).parents[2] / "cases" / "pods.yaml").read_text())


def _template(case: dict[str, Any]) -> dict[str, Any]:
    container = {"name": "tensorflow", "image": "train:1", **case.get("c", {})}
    return {"metadata": case.get("m", {}), "spec": {"containers": [container], **case.get("s", {})}}


REFUSED: list[tuple[str, dict[str, Any]]] = [(case["at"], _template(case)) for case in _CASES["refused"]]
ACCEPTED = [_template(case) for case in _CASES["accepted"]]
