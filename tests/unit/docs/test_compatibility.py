"""docs/compatibility.md lists the APIs that the code and the chart use, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from tfgpujob import names
from tfgpujob.core.observed.snapshot import Kind
from tfgpujob.kube import paths

ROOT = Path(__file__).resolve().parents[3]
_GROUP = r"[a-z][-a-z0-9]*(?:\.[-a-z0-9]+)+/v[0-9][0-9a-z]*|(?:apps|policy|batch)/v[0-9][0-9a-z]*"
_IN_CODE = re.compile(rf'"/apis/({_GROUP})')
_IN_CHART = re.compile(r"^apiVersion:.*", re.MULTILINE)


def listed() -> set[str]:
    """The first column of the table of APIs."""
    table = (ROOT / "docs/compatibility.md").read_text().partition("\n## APIs\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {version for row in rows for version in re.findall(r"`([^`]+)`", row)}


def used() -> set[str]:
    asked = {paths.api(kind)[0].removeprefix("/apis/").removeprefix("/api/") for kind in Kind}
    code = (ROOT / "operator/src/tfgpujob").rglob("*.py")
    asked |= {version for file in code for version in _IN_CODE.findall(file.read_text())}
    for file in (ROOT / "charts/tfgpujob/templates").rglob("*.yaml"):
        for line in _IN_CHART.findall(file.read_text()):
            asked |= {*re.findall(_GROUP, line)}
    return asked - {names.API_VERSION}


def test_every_api_that_is_used_is_listed_and_no_other() -> None:
    assert used() == listed()
