"""A short run of the fuzzer, and each planted bug found by it. `make fuzz` is the long one."""

from __future__ import annotations

import pytest
from tests.harness.fuzz import BUGS, Planted, found_after, run
from tests.harness.fuzz_targets import TARGETS, Target

pytestmark = pytest.mark.slow

INPUTS = 60
"""Inputs for each target."""
MOST = 400
FOUND = (1_005_310,)
"""Seeds that have found something: a runPolicy that was a mebibyte of text was kept of a spec that was not."""


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.__name__)
def test_what_strangers_write_harms_nobody_else(target: Target) -> None:
    findings = [finding for seed in (*range(INPUTS), *FOUND) if (finding := run(target, seed)) is not None]
    assert not findings


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_fuzzer_finds_each_planted_bug_and_nothing_without_it(bug: Planted) -> None:
    after = found_after(bug, MOST)
    assert after is not None, "not found"
    assert run(bug.target, after - 1) is None, "the finding is there without the bug"
