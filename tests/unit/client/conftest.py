"""One live cluster for each test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.harness.live import LiveCluster, live_cluster


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path_factory.mktemp("live")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _kubeconfig(live: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(live.kubeconfig))
