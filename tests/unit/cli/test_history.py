"""`tfgpu history`, and `tfgpu describe` of a job that was deleted a week ago."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.harness.live import LiveCluster
from tests.unit.cli.typed import Output, typed
from tests.unit.ui.planted import OUT_OF_MEMORY, job

from tfgpujob.cli import main as cli
from tfgpujob.client import ApiError
from tfgpujob.exits import Exit
from tfgpujob.kube.connection import Connection

PROXY = "/api/v1/namespaces/tfgpu-system/services/tfgpu-tfgpujob-ui:http/proxy/history"
GONE = {**job("last-week", OUT_OF_MEMORY, namespace="default"), "gone": "2026-03-04T15:20:00Z"}


@pytest.fixture
def asked(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """The tokens that were shown."""
    shown: list[str | None] = []

    async def authorization(_: Connection) -> str | None:
        shown.append("Bearer mine")
        return shown[-1]

    monkeypatch.setattr(Connection, "authorization", authorization)
    live.front.behind |= {
        f"{PROXY}?namespace=default&name=last-week": {"items": [GONE]},
        f"{PROXY}?namespace=default": {"items": [GONE]},
        PROXY: {"items": []},
    }
    yield shown
    live.front.behind.clear()


def test_deleted_jobs_are_listed(asked: list[str | None], capsys: Output) -> None:
    assert typed(capsys, "history").out.splitlines()[1].split()[:2] == ["last-week", "Failed"]
    assert '"gone": "2026-03-04T15:20:00Z"' in typed(capsys, "history", "last-week", "-o", "json").out
    assert "no deleted job is known in the cluster" in typed(capsys, "history", "-A").err


def test_a_deleted_job_is_described_in_the_same_words(asked: list[str | None], capsys: Output) -> None:
    out = typed(capsys, "describe", "last-week").out
    assert out.startswith("default/last-week: Failed, deleted\n")
    assert "last-week-worker-1: OutOfMemory" in out
    assert "Use a smaller batch." in out
    assert "for 5m" in out, "as of the time when it was last seen"
    assert "tfgpu restart" not in out


def test_a_job_that_never_was_is_not_found(asked: list[str | None], capsys: Output) -> None:
    assert "see tfgpu list" in typed(capsys, "describe", "never", code=Exit.NOT_FOUND).err


def test_without_a_page_or_a_token_the_reason_is_said(live: LiveCluster, capsys: Output) -> None:
    live.front.behind.clear()
    assert cli.main(["history", "--page", "ops/mine"]) == Exit.CLUSTER
    assert "the page ops/mine does not answer: " in (said := capsys.readouterr().err)
    assert "history.enabled and ui.enabled" in said
    assert cli.main(["history", "--page", "mine"]) == Exit.USAGE
    assert "'mine' is no Service; write it as NAMESPACE/SERVICE" in capsys.readouterr().err
    assert cli.main(["describe", "never"]) == Exit.NOT_FOUND
    assert "if it was deleted, the history does not answer: " in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:

        async def none(_: Connection) -> str | None:
            return None

        patch.setattr(Connection, "authorization", none)
        assert cli.main(["history"]) == Exit.CLUSTER
        assert "this one is a certificate; log in again, or name another login" in capsys.readouterr().err
    assert ApiError.__name__ not in typed(capsys, "history", "--page", "../x", code=Exit.USAGE).err
