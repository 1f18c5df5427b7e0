"""When an existing cluster is used, and when it is created again."""

from pathlib import Path

import pytest
from localcluster import build, needs, runtime
from localcluster.layout import Settings


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `up` does to the cluster: one that runs, with one node that is ready."""
    did: list[str] = []
    for step in ("check_machine", "install_packages", "check_kernel"):
        monkeypatch.setattr(needs, step, lambda: None)
    monkeypatch.setattr(build, "ensure_built", lambda: Path("/built"))
    monkeypatch.setattr(Settings, "load", Settings)
    monkeypatch.setattr(runtime, "is_ready", lambda _: True)
    monkeypatch.setattr(runtime, "down", lambda: did.append("down"))
    monkeypatch.setattr(runtime, "_start_cluster", lambda *_: did.append("start"))
    return did


def test_a_cluster_that_answers_late_is_left_alone(begun: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False, True])
    monkeypatch.setattr(runtime, "serves", lambda: next(answers))
    runtime.up(Settings())
    assert begun == []


def test_a_cluster_that_does_not_answer_is_begun_anew(begun: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "ANSWER_SECONDS", 0)
    monkeypatch.setattr(runtime, "serves", lambda: False)
    runtime.up(Settings())
    assert begun == ["down", "start"]


def test_a_cluster_whose_first_node_is_dead_is_not_waited_for(
    begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "is_ready", lambda _: False)
    monkeypatch.setattr(runtime, "serves", lambda: pytest.fail("it was asked"))
    runtime.up(Settings())
    assert begun == ["down", "start"]
