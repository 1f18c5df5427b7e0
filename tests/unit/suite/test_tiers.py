"""Which tests run when (tests/tiers.py), and the CPU seconds that they may use (tests/cpu.py)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import release.__main__ as release
from tests import cpu, tiers
from tests.integration.parts import unit_of
from tests.pages import ROOT

pytestmark = pytest.mark.slow

NOW = datetime(2026, 11, 26, tzinfo=UTC)


def ran(days: int) -> tiers.Ran:
    return tiers.Ran(commit="c", time=(NOW - timedelta(days=days)).isoformat(), load=1.0)


ALL = {f"{part} {number}/6": ran(1) for part in ("unit", "trainer", "cluster") for number in range(1, 7)}


def test_each_shard_is_some_commits() -> None:
    assert {tiers.shard_of(f"{number:040x}") for number in range(12)} == {f"{k}/6" for k in range(1, 7)}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"trainer 3/6": ran(14)}, []),
        ({"trainer 3/6": ran(15)}, ["trainer 3/6 passed 15 days ago, at most 14 are allowed"]),
    ],
)
def test_a_release_waits_for_shards_that_have_not_passed_lately(changed: dict[str, tiers.Ran], said: list[str]) -> None:
    assert tiers.stale({**ALL, **changed}, NOW) == said


def test_a_shard_that_never_passed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ran.json"
    tiers.record("unit", "1/6", file)
    tiers.record("trainer", "all", file)
    said = tiers.stale(tiers.read(file), datetime.now(UTC))
    assert "cluster 6/6 has never passed" in said
    assert len(said) == 11


def test_a_stale_shard_keeps_a_release_from_being_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tiers, "read", dict)
    assert release.main(["9.9.9", "--write"]) == 1
    assert "trainer 2/6 has never passed" in capsys.readouterr().err


def test_what_a_change_concerns(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = " M operator/src/tfgpujob/shell/workqueue.py\n M tests/unit/kube/test_cluster.py"
    monkeypatch.setattr(tiers, "git", lambda *_: changed)
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests/unit").rglob("test_*.py")}
    found = tiers.concerned(files)
    assert {"tests/unit/shell/test_workqueue.py", "tests/unit/kube/test_cluster.py"} <= found
    assert len(found) < len(files) / 4


def test_shards_hold_each_file_once_and_cost_alike() -> None:
    costs = {f"file{i}": float(1 + i % 7) for i in range(40)}
    shards = [cpu.shard(costs, f"{number}/6") for number in range(1, 7)]
    assert sorted(file for shard in shards for file in shard) == sorted(costs)
    sums = [sum(costs[file] for file in shard) for shard in shards]
    assert max(sums) - min(sums) <= 7


@pytest.mark.parametrize("which", ["0/6", "7/6", "2", "a/b"])
def test_a_shard_that_is_none_is_refused(which: str) -> None:
    with pytest.raises(pytest.UsageError, match="write 1/6 to 6/6"):
        cpu.shard({}, which)


def test_tests_that_share_a_fixture_stay_together() -> None:
    ids = [f"tests/integration/{name}" for name in ("test_nodes.py::test_a", "test_nodes.py::test_b[x]")]
    assert {unit_of(nodeid) for nodeid in ids} == {"tests/integration/test_nodes.py"}
    assert unit_of("tests/integration/test_cli.py::test_a") == "tests/integration/test_cli.py::test_a"


def pytest_run(folder: Path, *arguments: str) -> tuple[int, str]:
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    deep: deep\n    serial: serial\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.cpu", "-p", "no:cacheprovider", str(folder), *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return run.returncode, run.stdout


BURNS = """
import os, time, pytest
{mark}
def test_burns():
    pid = os.fork()
    while pid == 0 and time.process_time() < 1.0:
        pass
    os.waitpid(pid, 0) if pid else os._exit(0)
"""


def test_a_test_that_burns_too_much_in_a_fork_fails_unless_it_is_deep(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(BURNS.format(mark=""))
    (tmp_path / "test_deep.py").write_text(BURNS.format(mark="@pytest.mark.deep"))
    code, printed = pytest_run(tmp_path, "--most-seconds", "0.1")
    assert code == 1, printed
    assert re.findall(r"^ERROR \S*(test_\w+\.py)", printed, re.MULTILINE) == ["test_planted.py"]
    assert "mark it deep" in printed


def test_a_tier_beyond_its_budget_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
    (tmp_path / "budgets.json").write_text(json.dumps({"test-unit": 0.5}))
    monkeypatch.setenv("BUDGETS", str(tmp_path / "budgets.json"))
    code, printed = pytest_run(tmp_path, "--budget", "test-unit", "-n", "2")
    assert code == 1, printed
    assert "1 passed" in printed
    assert re.search(r"\d+ CPU seconds, of at most \d+ for test-unit: too many", printed)


def test_a_shard_without_tests_passes(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("import pytest\n@pytest.mark.deep\ndef test_one():\n    pass\n")
    code, printed = pytest_run(tmp_path, "--shard", "2/2")
    assert (code, "1 deselected" in printed) == (0, True), printed
    before = tiers.RAN.read_bytes()
    code, printed = pytest_run(tmp_path, "--shard", "1/2", "--part", "unit", "--collect-only")
    assert (code, tiers.RAN.read_bytes() == before) == (0, True), "a list of tests is no run"
