"""docs/failures.md promises nothing that no test shows, and leaves no cause out."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness.scenarios import SCENARIOS

from tfgpujob.core.status.diagnosis import Diagnosis

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/failures.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    written = {name for text in sources for name in re.findall(r"def (test_\w+)\(", text)}
    assert len(named) > 30
    assert named - written == set()


def test_every_story_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`scenario:([\w-]+)`", PAGE))
    assert len(named) > 15
    assert named - set(SCENARIOS) == set()


def test_every_cause_has_a_line_in_a_table_with_a_test() -> None:
    lines = {cause: line for line in PAGE.splitlines() for cause in re.findall(r"^\| `(\w+)` \|", line)}
    assert set(lines) == {str(cause) for cause in Diagnosis}
    assert [cause for cause, line in lines.items() if "`test_" not in line and "`scenario:" not in line] == []
