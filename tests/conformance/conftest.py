"""The real server is the cluster that the integration tests run on (TFGPU_CLUSTER chooses it)."""

from __future__ import annotations

from pathlib import Path

import pytest
from localcluster.clusters import select


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """A running cluster's; the local one is started if need be."""
    cluster = select()
    cluster.ensure_up()
    return cluster.kubeconfig
