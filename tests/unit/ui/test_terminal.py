"""Curves in a terminal, and the verb that draws them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from tests.harness.live import LiveCluster
from tests.unit.cli.typed import typed
from tests.unit.ui.runs import POINTS, local_run, started

from tfgpujob.cli import main as cli
from tfgpujob.exits import Exit
from tfgpujob.ui.terminal import HEIGHT, plot

FALLING = [(step, 1 - step / 40) for step in range(41)]


def test_a_line_that_falls() -> None:
    first, *lines, axis = plot({"loss": FALLING}, 40).splitlines()
    assert first == "loss  1 → 0"
    assert len(lines) == HEIGHT
    lengths = [len(line) for line in lines]
    assert lengths == sorted(lengths), "the higher, the shorter"
    assert lines[-1].startswith("0 │█")
    assert axis.split() == ["step", "0", "40"]


@given(POINTS)
def test_any_numbers_have_a_picture_of_its_size(points: list[tuple[int, float]]) -> None:
    lines = plot({"loss": points, "a\x1b[31m": points}, 60).splitlines()
    assert len(lines) == 2 * (HEIGHT + 2) + 1
    assert all(len(line) <= 80 for line in lines)
    assert "\x1b" not in "".join(lines)


def test_the_tool_draws_a_run_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = '{"tfgpu": "progress", "phase": "training", "step": %d, "loss": %g, "metrics": {"auc": 0.9}}\n'
    local_run(tmp_path, worker_0="".join(told % (step, 1 / (1 + step)) for step in range(10)))
    out = typed(capsys, "plot", "digits", "--dir", str(tmp_path / "digits")).out
    titles = [line.split("  ")[0] for line in out.splitlines() if "→" in line]
    assert titles == ["loss", "auc"]
    assert "1 → 0.1" in out
    assert cli.main(["plot", "other", "--dir", str(tmp_path / "other")]) == Exit.NOT_FOUND
    assert "no run is there; name its folder with --dir" in capsys.readouterr().err
    local_run(tmp_path, name="empty")
    assert cli.main(["plot", "empty", "--dir", str(tmp_path / "empty")]) == Exit.NOT_FOUND
    assert "no curves of empty are known" in capsys.readouterr().err


def test_the_tool_compares_runs(
    tmp_path: Path, live: LiveCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = '{"tfgpu": "progress", "phase": "training", "step": 1, "loss": %g}\n'
    for name, loss in (("a", 0.5), ("b", 0.25)):
        local_run(tmp_path / "runs", name=name, worker_0=told % loss)
    out = typed(capsys, "compare", "a", "b", "--local").out
    assert re.search(r"^ +a +b\n(.*\n)*last loss +0\.5 +0\.25\n", out)
    assert "strategy" not in out
    found = json.loads(typed(capsys, "compare", "a", "b", "--local", "-o", "json").out)
    assert found["last loss"] == {"a": "0.5", "b": "0.25"}
    assert found["strategy"]["a"] == found["strategy"]["b"]
    started(live, "one")
    assert "phase" in json.loads(typed(capsys, "compare", "one", "-o", "json").out)


def test_the_tool_draws_a_job_of_a_cluster(live: LiveCluster, capsys: pytest.CaptureFixture[str]) -> None:
    started(live, "drawn")
    curves = {"names": ["loss"], "points": [[10, 2.5], [20, 1.5]]}
    where = "/api/v1/namespaces/default/pods/drawn-worker-0:8080/proxy/progress?series=0"
    live.front.behind[where] = {"train": curves, "validation": {"names": [], "points": []}}
    assert typed(capsys, "plot", "drawn").out.startswith("loss  2.5 → 1.5\n")
