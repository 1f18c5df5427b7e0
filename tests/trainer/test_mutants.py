"""Bugs that are planted in the trainer fail the file of `make test` that is named for each."""

from __future__ import annotations

import pytest
from tests.trainer.mutants import MUTANTS, PACKAGE, Mutant, fails


@pytest.mark.deep
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_planted_bug_is_caught(mutant: Mutant):
    assert fails(mutant), mutant.caught_by


def test_each_can_be_planted():
    for mutant in MUTANTS:
        text = (PACKAGE / "tfgpujob_trainer" / mutant.file).read_text()
        assert text.count(mutant.old) == 1, mutant.name
