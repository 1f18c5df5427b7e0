"""Every job in the documentation is one that the operator accepts and the trainer reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.contract.sides import CONFIG, pod_of, read_by_trainer

from tfgpujob.api import JobSpec, parse_job
from tfgpujob.core.plan import resolve

DOCS = Path(__file__).resolve().parents[2] / "docs"
_YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def jobs() -> list[Any]:
    """Each TFGPUJob in each document, named after the document and its place there."""
    found = []
    for path in sorted(DOCS.rglob("*.md")):
        blocks = [document for text in _YAML.findall(path.read_text()) for document in yaml.safe_load_all(text)]
        for i, document in enumerate(blocks):
            if isinstance(document, dict) and document.get("kind") == "TFGPUJob":
                found.append(pytest.param(document, id=f"{path.relative_to(DOCS)} {i}"))
    return found


@pytest.mark.parametrize("job", jobs())
def test_a_job_of_the_documentation_works(job: dict[str, Any]) -> None:
    job["metadata"] |= {"namespace": "team", "uid": "u"}
    spec = parse_job(job)
    assert isinstance(spec, JobSpec), spec
    if "trainer" in job["spec"]:
        role, index = next(iter(resolve(spec, CONFIG).pods()))
        assert "error" not in read_by_trainer(pod_of(job, role, index))


def test_there_are_jobs() -> None:
    assert len(jobs()) >= 2
