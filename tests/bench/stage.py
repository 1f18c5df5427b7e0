"""The cluster to measure on: rights for the operator from the chart, namespaces, and no other operator."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localcluster import helm
from localcluster.clusters import Local, select
from localcluster.layout import ClusterError, Settings
from localcluster.release import NAMESPACE, RELEASE, chart_values
from tests.bench.process import OperatorProcess
from tests.integration.audit import AuditLog
from tests.integration.installed import NAME, USER
from tests.integration.kube import Kube

CRD = "tfgpujobs.tfgpu.dev"


@dataclass
class Stage:
    kube: Kube
    description: str
    folder: Path
    """For log files and kubeconfigs."""
    namespaces: Sequence[str]
    audit: AuditLog | None
    """The operator's requests; None where the cluster's audit log can't be read."""

    def operator(self, namespace: str, *, name: str = "bench") -> OperatorProcess:
        """An operator for this namespace, with the rights of the chart's ServiceAccount. Only one leads."""
        kubeconfig = self.kube.as_service_account(NAMESPACE, NAME, self.folder / "operator.kubeconfig")
        log = self.folder / f"operator-{name}.log"
        return OperatorProcess(kubeconfig, log, namespace=NAMESPACE, lease=NAME, namespaces=namespace, name=name)


@contextmanager
def stage(folder: Path, *purposes: str) -> Iterator[Stage]:
    """A namespace for each purpose. An operator that is installed rests meanwhile, and is put back at the end.

    Raises ClusterError.
    """
    cluster = select()
    cluster.ensure_up()
    kube = Kube(cluster.kubeconfig)
    with _only_operator(kube):
        mark = secrets.token_hex(3)
        namespaces = [f"bench-{purpose}-{mark}" for purpose in purposes]
        for namespace in namespaces:
            kube.create("Namespace", "", {"metadata": {"name": namespace}})
        try:
            log = cluster.audit_log
            audit = AuditLog(log, USER) if log is not None and log.is_file() else None
            yield Stage(kube, cluster.description, folder, namespaces, audit)
        finally:
            for namespace in namespaces:
                kube.delete("Namespace", "", namespace)


def check_limits() -> None:
    """Raises ClusterError when the local cluster holds kube's Job controller back: it must show its best."""
    settings = Settings.load() if isinstance(select(), Local) else None
    if settings is not None and settings.api_qps < Settings.api_qps:
        raise ClusterError(
            f"the local cluster's controllers may send {settings.api_qps} requests a second", "make cluster-down"
        )


@contextmanager
def _only_operator(kube: Kube) -> Iterator[None]:
    if helm.status(kube.kubeconfig, RELEASE, NAMESPACE) != "deployed":
        values = {**chart_values(), "replicas": 0, "crds": {"install": _is_helms(kube)}}
        helm.install(kube.kubeconfig, RELEASE, NAMESPACE, values=values)
        try:
            yield
        finally:
            helm.uninstall(kube.kubeconfig, RELEASE, NAMESPACE)
        return
    replicas = kube.get("Deployment", NAMESPACE, NAME)["spec"]["replicas"]
    kube.patch("Deployment", NAMESPACE, NAME, {"spec": {"replicas": 0}})
    try:
        yield
    finally:
        kube.patch("Deployment", NAMESPACE, NAME, {"spec": {"replicas": replicas}})


def _is_helms(kube: Kube) -> bool:
    """Whether the chart may bring the definition: Helm refuses to take over what somebody else has created."""
    found = kube.find("CustomResourceDefinition", "", CRD)
    annotations = (found or {"metadata": {}})["metadata"].get("annotations") or {}
    return found is None or annotations.get("meta.helm.sh/release-name") == RELEASE
