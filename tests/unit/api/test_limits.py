"""How large a spec may be to be read, and what is left of one that is larger."""

from __future__ import annotations

from typing import Any

import pytest

from tfgpujob.api.limits import MAX_CHARACTERS, MAX_LEVELS, MAX_VALUES, too_large
from tfgpujob.core.observed.parsed import parsed_spec
from tfgpujob.core.observed.snapshot import Config
from tfgpujob.core.observed.trim import trim_job

CONFIG = Config(operator_image="o", trainer_image="t", operator_version="1")


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("fits", "exceeds", "problem"),
    [
        (nested(MAX_LEVELS), nested(MAX_LEVELS + 1), "nested more than 48 levels"),
        ({"a": [0] * (MAX_VALUES - 1)}, {"a": [0] * MAX_VALUES}, "more than 20,000 values"),
        ({"a": "x" * (MAX_CHARACTERS - 1)}, {"a": "x" * MAX_CHARACTERS}, "more than 256 KiB of text"),
        ("x" * MAX_CHARACTERS, "x" * (MAX_CHARACTERS + 1), "more than 256 KiB of text"),
        ({"x" * MAX_CHARACTERS: 0}, {"x" * MAX_CHARACTERS: "y"}, "more than 256 KiB of text"),
    ],
)
def test_up_to_where_a_spec_is_read(fits: Any, exceeds: Any, problem: str) -> None:
    assert not too_large(fits)
    assert problem in str(too_large(exceeds))


def test_of_a_spec_that_is_too_large_run_policy_is_left() -> None:
    job = {"metadata": {"name": "a", "namespace": "b"}, "spec": {"runPolicy": {"suspend": True}, "x": nested(500)}}
    trimmed = trim_job(job)
    assert trimmed["spec"] == {"runPolicy": {"suspend": True}}
    assert trim_job(trimmed) == trim_job(trimmed, trimmed) == trimmed, "kopf's events are reduced twice"
    assert "nested" in str(parsed_spec(trimmed, CONFIG))
    assert trim_job({**job, "spec": {"runPolicy": nested(500)}})["spec"] == {}
