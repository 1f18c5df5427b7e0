"""The SUPPORT table is what the documentation shows."""

from __future__ import annotations

from pathlib import Path

from tfgpujob_trainer.contract.support import markdown


def test_the_documentation_shows_the_table():
    page = Path(__file__).parents[2] / "docs" / "exactness.md"
    assert markdown() in page.read_text(), "run: python -m tfgpujob_trainer.contract.support"
