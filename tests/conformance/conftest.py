"""The real server is the one that KUBECONFIG names, else the one that the integration tests run on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from localcluster.clusters import select


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """A running cluster's; the local one is started if need be."""
    named = os.environ.get("KUBECONFIG", "")
    if named and Path(named).exists():
        return Path(named)
    cluster = select()
    cluster.ensure_up()
    return cluster.kubeconfig
