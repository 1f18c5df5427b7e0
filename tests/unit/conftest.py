"""One live cluster for each test module that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.harness.live import LiveCluster, live_cluster


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """KUBECONFIG leads to it."""
    with live_cluster(tmp_path_factory.mktemp("live")) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        yield cluster
