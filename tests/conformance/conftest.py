"""The real server is the cluster that the integration tests run on (TFGPU_CLUSTER chooses it)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from localcluster.clusters import select
from tests.integration.eventually import eventually
from tests.integration.kube import Kube

CRD = ("CustomResourceDefinition", "", "tfgpujobs.tfgpu.dev")


@pytest.fixture(scope="session")
def kubeconfig() -> Iterator[Path]:
    """A running cluster's; the local one is started if need be.

    The definition that the scripts create goes with them: Helm applies another one only where it is the only manager.
    """
    cluster = select()
    cluster.ensure_up()
    kube = Kube(cluster.kubeconfig)
    was_there = kube.find(*CRD) is not None
    yield cluster.kubeconfig
    if not was_there:
        kube.delete(*CRD)
        eventually(lambda: kube.find(*CRD) is None, "the definition is gone")
