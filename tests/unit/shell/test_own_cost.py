"""What a job costs the operator's own code, counted in calls, so that it is the same on every machine."""

from __future__ import annotations

import sys

import pytest
from tests.bench.own_code import calls

JOBS = 3


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python count other calls")
def test_a_job_costs_no_more_calls_than_it_did() -> None:
    """`python -m tests.bench.own_code` names the functions. The bounds are a tenth above what was counted last."""
    found, _ = calls(JOBS)
    assert found.until_pods < 14_000
    assert found.whole_life < 31_000
