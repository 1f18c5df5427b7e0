"""tests/recovery/parts.py and held.py: a part that fails, or finds what should not be, makes the whole not ok."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from tests.recovery.held import Held
from tests.recovery.parts import Figures, Part, run

Printed = pytest.CaptureFixture[str]


def good(figures: Figures) -> None:
    figures |= {"p50_seconds": 1.5, "bit_equal": True}


def raises(error: BaseException) -> Part:
    def part(figures: Figures) -> None:
        figures["kills"] = 3
        raise error

    return part


def told(capsys: Printed, parts: dict[str, Part]) -> tuple[int, dict[str, Any], list[str]]:
    """The exit code, the line of JSON, and what was said before."""
    code = run("recovery", parts)
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    return code, json.loads(line), printed.err.splitlines()


def test_what_was_found_before_and_after_a_part_that_fails_is_told(capsys: Printed) -> None:
    error = AssertionError("it hangs\n" + 1000 * "a line of a log\n")
    code, line, said = told(capsys, {"first": good, "bad": raises(error), "last": good})
    assert code == 1
    assert not line["ok"]
    assert (line["first"], line["bad"], line["last"]) == (good_figures(), {"kills": 3}, good_figures())
    assert line["failed"] == [{"part": "bad", "error": "AssertionError: it hangs"}]
    assert '{"bad": {"kills": 3}}' in said


def good_figures() -> Figures:
    figures = Figures("")
    good(figures)
    return figures


@pytest.mark.parametrize("figures", [{"bit_equal": False}, {"ok": False}])
def test_what_is_not_as_it_should_be_is_no_failure_but_not_ok(capsys: Printed, figures: dict[str, bool]) -> None:
    code, line, _ = told(capsys, {"wrong": lambda found: found.update(figures)})
    assert (code, line["ok"], line["failed"]) == (1, False, [])


@pytest.mark.parametrize(("samples", "expected"), [(3, None), (40, [])])
def test_after_too_few_kills_nobody_can_tell_what_has_grown(samples: int, expected: list[str] | None) -> None:
    held = Held({"worker-0": os.getpid()})
    for _ in range(samples):
        held.sample()
    assert held.grown() == expected
