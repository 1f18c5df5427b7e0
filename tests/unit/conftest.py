"""What all unit tests share: one live cluster for each module that asks for one, and a logger that can be heard."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

# It may be exported, as `make demo` suggests. The Kubernetes client uses it by default as soon as it is imported, and
# the tests' commands would run in that cluster.
os.environ.pop("KUBECONFIG", None)

import pytest
from tests.harness.live import LiveCluster, live_cluster

from tfgpujob.client import Client


@pytest.fixture(autouse=True)
def _heard() -> None:
    """A story that was played before leaves the operator's logger quiet."""
    logger = logging.getLogger("tfgpujob")
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """KUBECONFIG leads to it."""
    with live_cluster(tmp_path_factory.mktemp("live")) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        yield cluster


@pytest.fixture
def client(live: LiveCluster) -> Iterator[Client]:
    """It asks that cluster."""
    del live
    with Client() as client:
        yield client
