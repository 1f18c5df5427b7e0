"""The short form of a log of 10 GB: 60 megabytes, in lines and in one, through streams that break off."""

from __future__ import annotations

import pytest
from tests.endurance.reader import read
from tests.endurance.torrent import Torrent

pytestmark = pytest.mark.slow
MOST_HELD = 115 << 20
"""Bytes: 83 MiB are Python and what the tool imports. The whole log would make it 140."""


async def test_a_long_log_is_passed_on_and_not_held() -> None:
    found = await read(Torrent(lines=100_000, width=600, break_after=40_000))
    assert (found.code, found.problem, found.lines) == (0, "", 100_000)
    assert found.streams >= 3, "it was renewed"
    assert max(point.value for point in found.rss) < MOST_HELD


async def test_a_line_without_end_is_passed_on_and_not_held() -> None:
    found = await read(Torrent(lines=60_000, width=1000, endless=True))
    assert (found.code, found.bytes) == (0, 60_000 * 1000 + 1)
    assert max(point.value for point in found.rss) < MOST_HELD
