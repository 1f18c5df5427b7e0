"""Every planted bug is caught by the promise that it breaks, and without it nothing is."""

from __future__ import annotations

import pytest
from tests.harness.crashpoints import fault_free
from tests.harness.mutations import MUTATIONS, Mutation, caught
from tests.harness.promises import ALL, bounds

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_planted_bug_is_caught(mutation: Mutation) -> None:
    for scenario in mutation.scenarios:
        assert fault_free(scenario).problems == []
    assert caught(mutation) is not None


def test_every_promise_catches_a_planted_bug_by_name() -> None:
    told = {promise.__name__ for promise in ALL} | {"orphans", "over_and_over", *bounds.NAMES}
    assert told <= {mutation.breaks for mutation in MUTATIONS}
