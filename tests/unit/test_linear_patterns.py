"""No text makes a regular expression slow: each pattern of the operator's package is linear in what it is given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests import linear

import tfgpujob
import tfgpujob_contract

pytestmark = pytest.mark.slow

_SOURCES = (Path("operator/src"), Path("trainer_image/src"))


def test_every_pattern_of_the_package_is_linear() -> None:
    found = linear.patterns(tfgpujob) | linear.patterns(tfgpujob_contract)
    limit = "tfgpujob_contract.limits.PATTERNS[<Limit.LOCKED_MEMORY: 'locked memory'>]"
    assert {limit, "tfgpujob.kube.decoding._TOKEN"} <= {*found}
    texts = {pattern: place for place, pattern in found.items()}
    assert {place: said for pattern, place in texts.items() if (said := linear.worst(pattern))} == {}


@pytest.mark.parametrize("root", _SOURCES, ids=str)
def test_the_walk_finds_every_pattern(root: Path) -> None:
    repository = Path(__file__).parents[2]
    files = sorted((repository / root).rglob("*.py"))
    assert len(files) > 100
    assert [place for file in files for place in linear.used_as_text(file)] == []


@pytest.mark.parametrize(
    "planted",
    [
        # N1: a termination message of 4,096 characters took 3.4 s.
        r"(mlock\w*|ibv_(reg_mr|create_)\w*)[^\n]*Cannot allocate memory",
        r"(fork_exec|os\.fork)\([^\n]*\n([ ^~]*\n)?BlockingIOError",
        r"keras/src/[\s\S]*Invalid reduction dimension 0 for input with 0 dimensions",
        r"\$\$|\$\(([^)]+)\)",
        r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|([\[{])|([\]}])',
        r"\s*\[Op:\w+\]",
        r"v?(\d+)\.(\d+)",
        r".*/job:(ps)/.*/task:(\d+)/.*",
        r"(a+)+$",
        r"x(?:[ab]|bb?)*y",
    ],
)
def test_a_pattern_that_is_not_linear_is_found(planted: str) -> None:
    assert linear.worst(re.compile(planted))


def test_patterns_of_the_api_are_run_by_a_linear_engine() -> None:
    """Those of pydantic's fields: Rust's engine has no ways back, and refuses patterns that would need them."""
    files = [path.read_text() for path in (Path(__file__).parents[2] / "operator/src").rglob("*.py")]
    assert not any("regex_engine" in text for text in files)
