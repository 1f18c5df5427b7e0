"""make figures counts what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import figures


@pytest.mark.parametrize(
    ("code", "counts"),
    [
        ("ctx.plan.absent", True),
        ("snapshot.absent", False),
        ("spec.run_policy.elastic_policy", True),
        ('"resize" in status["plan"]', True),
        ('"resize" in events', False),
        ('job["status"]["plan"]["limit"]', True),
        ("from tfgpujob.core.policies import resize", True),
        ("from tfgpujob.core.policies import suspend", False),
    ],
)
def test_a_file_that_reads_who_is_in_the_gang_is_counted(tmp_path: Path, code: str, counts: bool) -> None:
    (tmp_path / "some.py").write_text(code)
    assert [*figures.membership(tmp_path)] == [Path("some.py")] * counts


def test_an_import_of_a_module_of_tests_is_counted(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("from tests.test_b import one, two\nfrom tests.gangs import three\n")
    assert [*figures.tests_that_import_tests(tmp_path)] == ["test_a.py: tests.test_b"]


def test_helpers_stand_in_modules_of_helpers() -> None:
    found = [*figures.tests_that_import_tests(figures.ROOT / "tests")]
    assert len(found) < 10, f"move what they import beside these tests: {found}"


@pytest.mark.parametrize(
    ("text", "counts"), [("Whoever joins goes on.", True), ("Of those that run.", True), ("The pods that run.", False)]
)
def test_an_idiom_is_found(text: str, counts: bool) -> None:
    assert bool(figures.IDIOMS.search(text)) is counts


def test_the_loss_of_a_worker_runs_files_that_nothing_else_does() -> None:
    assert {"core/membership/changes.py", "core/policies/restart/gang.py"} <= figures.after_a_loss()
