"""`make bench-page` in its small form: the figures are there. What they are is judged by the whole one."""

from __future__ import annotations

import json

import pytest
from tests.page.__main__ import BOUNDS, main
from tests.unit.cli.typed import Output


@pytest.mark.deep
def test_the_figures_are_there_and_nothing_is_written_while_idle(capsys: Output) -> None:
    main(["--quick"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures.keys() >= {"name", "ok", "jobs", "gone", "page_mb", "operator_mb", *BOUNDS}
    assert (figures["jobs"], figures["gone"], figures["idle_writes"]) == (25, 5, 0)
    assert figures["page_ms"] > 0
    assert figures["list_ms"] > 0
