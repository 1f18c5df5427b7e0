"""The SUPPORT table is what the documentation shows."""

from __future__ import annotations

from pathlib import Path

from tfgpujob_trainer.cluster.strategy import _BUILDERS
from tfgpujob_trainer.contract.strategies import STRATEGIES
from tfgpujob_trainer.contract.support import SUPPORT, markdown


def test_the_documentation_shows_the_table():
    page = Path(__file__).parents[2] / "docs" / "exactness.md"
    assert markdown() in page.read_text(), "run: python -m tfgpujob_trainer.contract.support"


def test_every_strategy_can_be_built_and_has_a_column():
    assert set(_BUILDERS) == set(STRATEGIES)
    assert all(set(row) == set(STRATEGIES) for row in SUPPORT.values())
