"""Figures of the source that have a limit."""

from __future__ import annotations

import pytest
from tests import figures


@pytest.mark.slow
def test_helpers_stand_in_modules_of_helpers() -> None:
    found = [*figures.tests_that_import_tests(figures.ROOT / "tests")]
    assert len(found) < 10, f"move what they import beside these tests: {found}"
