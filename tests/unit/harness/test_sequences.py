"""Some random stories, the same ones every time, and those that once broke a promise."""

from __future__ import annotations

import pytest
from tests.harness.kept_sequences import KEPT
from tests.harness.sequences import play, replay

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", KEPT)
def test_kept_story(name: str) -> None:
    assert replay(KEPT[name]) == []


@pytest.mark.parametrize("stories", [25, pytest.param(100, marks=pytest.mark.deep)])
@pytest.mark.parametrize("seed", range(4))
def test_random_stories(seed: int, stories: int) -> None:
    assert play(stories, seed) == ""
