"""The cluster to test on, and this checkout's images on it.

TFGPU_CLUSTER chooses the cluster (localcluster/clusters.py). An `existing` one must be able to pull the images, which
TFGPU_OPERATOR_IMAGE and TFGPU_TRAINER_IMAGE then name.

`python -m tests.integration.target` makes all ready, with progress on standard error, and prints the kubeconfig's path.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from localcluster import release
from localcluster.clusters import Cluster, select
from localcluster.layout import ClusterError


@dataclass(frozen=True, slots=True)
class Target:
    cluster: Cluster
    kubeconfig: Path
    operator_image: str
    """Also what most test pods run: every cluster here has it, and it has Python."""
    trainer_image: str
    """The real trainer, on CPU."""
    audit_log: Path | None
    """None where it can't be read from here."""


def prepare() -> Target:
    """A running cluster of two nodes that has the images. Raises ClusterError."""
    cluster = select()
    cluster.ensure_up(nodes=2, images=release.images())
    return selected()


def selected() -> Target:
    """The same, once it has been prepared."""
    cluster = select()
    return Target(
        cluster=cluster,
        kubeconfig=cluster.kubeconfig,
        operator_image=os.environ.get("TFGPU_OPERATOR_IMAGE") or release.operator_image(),
        trainer_image=os.environ.get("TFGPU_TRAINER_IMAGE") or release.trainer_image(),
        audit_log=cluster.audit_log,
    )


if __name__ == "__main__":
    try:
        print(prepare().kubeconfig)
    except ClusterError as error:
        sys.exit(f"error: {error.problem}\n  fix: {error.fix}")
