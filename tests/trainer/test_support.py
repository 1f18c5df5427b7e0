"""The SUPPORT table is what the documentation shows."""

from __future__ import annotations

from pathlib import Path

from tfgpujob_contract.strategies import STRATEGIES
from tfgpujob_trainer.cluster.strategy import _BUILDERS
from tfgpujob_trainer.contract.support import SUPPORT, markdown
from tfgpujob_trainer.model.moving_statistics import batch_normalization_notes


def test_the_documentation_shows_the_table():
    page = Path(__file__).parents[2] / "docs" / "exactness.md"
    assert markdown() in page.read_text(), "run: python -m tfgpujob_trainer.contract.support"


def test_every_strategy_can_be_built_and_has_a_column():
    assert set(_BUILDERS) == set(STRATEGIES)
    assert all(set(row) == set(STRATEGIES) for row in SUPPORT.values())


def test_a_deep_network_is_named_by_its_first_layers():
    names = [f"bn_{i}" for i in range(50)]
    [note] = batch_normalization_notes(names, "MultiWorkerMirrored", accumulate=1, synchronized=False)
    assert note.startswith("bn_0, bn_1, bn_2 and 47 more: ")
