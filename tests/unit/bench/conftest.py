"""A live cluster with a control plane for kube Jobs, and a benchmark that doesn't wait longer than it must."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.harness.live import LiveCluster, live_cluster
from tests.machine import PATIENCE
from tests.unit.bench.rig import Run, control_jobs


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    for name in ("load.POLL_SECONDS", "load.AGAIN_SECONDS", "pod_counter.RETRY_SECONDS", "leader.POLL_SECONDS"):
        monkeypatch.setattr(f"tests.bench.{name}", 0.02)
    # A busy machine is no disturbance that a test has asked for.
    monkeypatch.setattr("tests.bench.disturbance.STALL_SECONDS", PATIENCE)
    with live_cluster(tmp_path_factory.mktemp("live")) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        control_jobs(cluster)
        yield Run(cluster)


@pytest.fixture
def cluster(run: Run) -> LiveCluster:
    return run.live
