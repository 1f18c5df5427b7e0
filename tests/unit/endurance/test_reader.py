"""The short form of a log of 10 GB: hundreds of megabytes, in lines and in one, through streams that break off."""

from __future__ import annotations

import pytest
from tests.endurance.reader import MOST_HELD, read
from tests.endurance.torrent import Torrent

pytestmark = pytest.mark.slow


async def test_a_long_log_is_passed_on_and_not_held() -> None:
    found = await read(Torrent(lines=100_000, width=3000, break_after=40_000))
    assert (found.code, found.problem, found.lines) == (0, "", 100_000)
    assert found.streams >= 3, "it was renewed"
    assert max(point.value for point in found.rss) < MOST_HELD


async def test_a_line_without_end_is_passed_on_and_not_held() -> None:
    found = await read(Torrent(lines=300_000, width=1000, endless=True))
    assert (found.code, found.bytes) == (0, 300_000 * 1000 + 1)
    assert max(point.value for point in found.rss) < MOST_HELD
