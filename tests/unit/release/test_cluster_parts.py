"""`make test-cluster` leaves the cluster as it was, whatever comes of the tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from localcluster.layout import ClusterError
from tests.integration import __main__ as parts


class Cluster:
    """One that only knows whether it runs."""

    def __init__(self, is_up: bool) -> None:
        self.is_up = is_up
        self.ended = False

    def end(self) -> None:
        self.ended = True


def call(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, rows: Sequence[parts.Row] | ClusterError) -> int:
    def run(*_: object) -> list[parts.Row]:
        if isinstance(rows, ClusterError):
            raise rows
        return list(rows)

    monkeypatch.setattr(parts, "select", lambda: cluster)
    monkeypatch.setattr(parts, "run", run)
    monkeypatch.setattr("sys.argv", ["tests.integration", "quick"])
    return parts.main()


@pytest.mark.parametrize("is_up", [True, False])
@pytest.mark.parametrize("code", [0, 1])
def test_a_cluster_is_ended_unless_it_was_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_up: bool, code: int
) -> None:
    cluster = Cluster(is_up)
    assert call(monkeypatch, cluster, [("smoke", 0, 1.0), ("namespaces", code, 2.0)]) == code
    assert cluster.ended is not is_up
    assert f"namespaces        {'FAILED' if code else 'passed'}      2 s" in capsys.readouterr().out


def test_a_cluster_that_does_not_come_up_is_ended_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(is_up=False)
    assert call(monkeypatch, cluster, ClusterError("no room", "make some")) == 2
    assert cluster.ended
    assert "no room" in capsys.readouterr().err
