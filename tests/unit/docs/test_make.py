"""`make test` runs all of its parts and says how each went."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from tests.pages import ROOT


def environment() -> dict[str, str]:
    """Without what a make above this one has set."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}


@pytest.mark.parametrize(
    ("parts", "code", "went"),
    [
        ("help", 0, [("help", "passed")]),
        ("no-such-part help", 2, [("no-such-part", "FAILED"), ("help", "passed")]),
    ],
)
def test_a_part_that_fails_keeps_no_other_from_running(parts: str, code: int, went: list[tuple[str, str]]) -> None:
    command = ["make", "--no-print-directory", "test", f"PARTS={parts}"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    rows = re.findall(r"^(\S+) +(passed|FAILED) +\d+ s$", done.stdout, re.MULTILINE)
    assert rows == went
    assert "this list" in done.stdout
