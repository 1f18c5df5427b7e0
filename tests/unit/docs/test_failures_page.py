"""docs/failures.md and docs/security.md promise nothing that no test shows, and the former leaves no cause out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.harness.scenarios import SCENARIOS

from tfgpujob.core.status.diagnosis import Diagnosis

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/failures.md").read_text()
SECURITY = (ROOT / "docs/security.md").read_text()


@pytest.mark.parametrize(("page", "least"), [(PAGE, 30), (SECURITY, 5)], ids=["failures", "security"])
def test_every_test_that_a_page_names_exists(page: str, least: int) -> None:
    named = set(re.findall(r"`(test_\w+)`", page))
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    written = {name for text in sources for name in re.findall(r"def (test_\w+)\(", text)}
    assert len(named) > least
    assert named - written == set()


def test_every_story_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`scenario:([\w-]+)`", PAGE))
    assert len(named) > 15
    assert named - set(SCENARIOS) == set()


def test_every_cause_has_a_line_in_a_table_with_a_test() -> None:
    lines = {cause: line for line in PAGE.splitlines() for cause in re.findall(r"^\| `(\w+)` \|", line)}
    assert set(lines) == {str(cause) for cause in Diagnosis}
    assert [cause for cause, line in lines.items() if "`test_" not in line and "`scenario:" not in line] == []
