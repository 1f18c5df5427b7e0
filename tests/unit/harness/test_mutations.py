"""Every planted bug is caught, and without it nothing is."""

from __future__ import annotations

import pytest
from tests.harness.crashpoints import fault_free
from tests.harness.mutations import MUTATIONS, Mutation, caught


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bug_is_caught(mutation: Mutation) -> None:
    for scenario in mutation.scenarios:
        assert fault_free(scenario).problems == []
    assert caught(mutation) is not None
