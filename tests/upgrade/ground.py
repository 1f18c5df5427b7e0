"""Where `make upgrade` takes place: a real cluster, or the server of the harness."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.objects import SCHEDULER
from tests.bench.process import OperatorProcess
from tests.bench.stage import CRD
from tests.bench.stage import stage as cluster_stage
from tests.endurance.operator import live_out
from tests.harness.live import live_cluster
from tests.integration.kube import Kube, Object, path_of
from tests.soak.stand_in import Life, StandIn
from tests.upgrade import previous
from tests.upgrade.run import Ground


@contextmanager
def in_memory(folder: Path) -> Iterator[Ground]:
    """The server of the harness over HTTP, whose kubelet runs the pods."""
    with live_cluster(folder, operator=False) as live:

        def operator(name: str, source: str | None) -> OperatorProcess:
            where = {"namespace": "default", "lease": "upgrade", "namespaces": "default"}
            return OperatorProcess(live.kubeconfig, folder / f"{name}.log", **where, name=name, source=source)

        lives: dict[str, Life] = {}
        over = threading.Event()
        living = threading.Thread(target=live_out, args=(live, lives, over), daemon=True)
        living.start()
        try:
            yield Ground(kube=Kube(live.kubeconfig), namespace="default", lives=lives, operator=operator)
        finally:
            over.set()
            living.join(60)


@contextmanager
def on_cluster(folder: Path) -> Iterator[Ground]:
    """A real cluster, with stand-in pods. It begins with the last release's definition; the first operator of this
    checkout brings its own, which stays when the old operator is back (docs/releases.md).
    """
    with cluster_stage(folder, "upgrade") as cluster:
        namespace = cluster.namespaces[0]
        stand_in = StandIn(cluster.kube, namespace)
        current = _definition(cluster.kube)
        _define(cluster.kube, _previous_of(current))

        def operator(name: str, source: str | None) -> OperatorProcess:
            if source is None:
                _define(cluster.kube, current)
            return cluster.operator(namespace, name=name, source=source)

        try:
            stand_in.start()
            yield Ground(
                kube=cluster.kube,
                namespace=namespace,
                lives=stand_in.lives,
                operator=operator,
                pod_template={"spec": {"schedulerName": SCHEDULER}},
            )
        finally:
            stand_in.stop()
            _define(cluster.kube, current)


def _definition(kube: Kube) -> Object:
    return kube.get("CustomResourceDefinition", "", CRD)


def _define(kube: Kube, wanted: Object) -> None:
    held = _definition(kube)
    kube.call("PUT", path_of("CustomResourceDefinition", "", CRD), {**held, "spec": wanted["spec"]})


def _previous_of(current: Object) -> Object:
    """The one of its two that fits this server: with rules where the chart has brought some, else without."""
    with_rules, without = previous.DEFINITIONS
    return previous.definition(with_rules if "x-kubernetes-validations" in str(current["spec"]) else without)
