"""The page of Keras' hooks is what the trainer does, and says why of each that is not called."""

from __future__ import annotations

import re

import pytest
from tests.trainer.hooks import PAGE, STRATEGIES, WHY, page


@pytest.mark.deep
def test_the_page_is_what_the_trainer_does():
    assert page() == PAGE.read_text(), "python -m tests.trainer.hooks --write"


def test_each_hook_that_is_not_called_has_a_reason():
    rows = re.findall(r"^\| `(\S+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert all(len(cells.split(" | ")) == len(STRATEGIES) for _, cells in rows)
    missed = {name for name, cells in rows if set(cells.split(" | ")) != {"yes"}}
    assert missed == WHY.keys()
    # Under a strategy that waits for all workers each is called, or refused by name.
    assert not [name for name, cells in rows if "no" in cells.split(" | ")[:-1]]
