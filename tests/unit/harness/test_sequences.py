"""A few hundred random stories, the same ones every time, and those that once broke a promise."""

from __future__ import annotations

import pytest
from tests.harness.kept_sequences import KEPT
from tests.harness.sequences import play, replay

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", KEPT)
def test_kept_story(name: str) -> None:
    assert replay(KEPT[name]) == []


@pytest.mark.parametrize("seed", range(4))
def test_random_stories(seed: int) -> None:
    assert play(60, seed) == ""
