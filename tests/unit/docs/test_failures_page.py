"""docs/failures.md leaves no cause out, and docs/evidence.md names for each of them tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.harness.scenarios import SCENARIOS

from tfgpujob.core.status.diagnosis import Diagnosis

ROOT = Path(__file__).resolve().parents[3]
FAILURES = (ROOT / "docs/failures.md").read_text()
EVIDENCE = (ROOT / "docs/evidence.md").read_text()


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", EVIDENCE))
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    written = {name for text in sources for name in re.findall(r"def (test_\w+)\(", text)}
    assert len(named) > 150
    assert named - written == set()


def test_every_story_that_is_named_exists() -> None:
    named = set(re.findall(r"`scenario:([\w-]+)`", EVIDENCE))
    assert len(named) > 15
    assert named - set(SCENARIOS) == set()


@pytest.mark.parametrize("page", [FAILURES, EVIDENCE], ids=["failures", "evidence"])
def test_every_cause_has_a_line_in_a_table(page: str) -> None:
    lines = {cause: line for line in page.splitlines() for cause in re.findall(r"^\| `(\w+)` \|", line)}
    assert set(lines) == {str(cause) for cause in Diagnosis}


def test_every_cause_has_a_test() -> None:
    lines = {cause: line for line in EVIDENCE.splitlines() for cause in re.findall(r"^\| `(\w+)` \|", line)}
    assert [cause for cause, line in lines.items() if "`test_" not in line and "`scenario:" not in line] == []
