"""The cluster to measure on: rights for the operator from the chart, namespaces, and no other operator."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from localcluster import helm
from localcluster.clusters import Local, select
from localcluster.layout import ClusterError, Settings
from localcluster.release import NAMESPACE, RELEASE, chart_values
from tests import commits
from tests.bench.process import OperatorProcess
from tests.integration.audit import AuditLog
from tests.integration.installed import NAME, USER
from tests.integration.kube import Kube, Refused
from urllib3.exceptions import HTTPError

T = TypeVar("T")
CRD = "tfgpujobs.tfgpu.dev"
AWAY_SECONDS = 60.0
"""How long an API server that is away is waited for, before and after the measurements."""


def say(text: str) -> None:
    """To the person who waits."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@dataclass
class Stage:
    kube: Kube
    description: str
    version: str
    """Version of the API server."""
    folder: Path
    """For log files and kubeconfigs."""
    namespaces: Sequence[str]
    audit: AuditLog | None
    """The operator's requests; None where the cluster's audit log can't be read."""
    identity: str = "bench"
    """Identity of our operator in the Lease: an operator of another run with the same identity would acquire it at
    once."""

    lease: tuple[str, str] = (NAMESPACE, NAME)
    """Namespace and name of the Lease that all operators of this release want."""

    base_source: str | None = None
    """PYTHONPATH of the operator that ours is compared with."""

    @property
    def base_name(self) -> str:
        """Name of the operator that ours is compared with, and of its Lease."""
        return f"{self.identity}-base"

    def operator(self, namespace: str, *, name: str = "", source: str | None = None) -> OperatorProcess:
        """An operator for this namespace, with the rights of the chart's ServiceAccount. Only one leads."""
        return self._operator(namespace, name or self.identity, NAME, source)

    def base(self, namespace: str) -> OperatorProcess:
        """The operator that ours is compared with; it leads beside ours, in this namespace."""
        return self._operator(namespace, self.base_name, self.base_name, self.base_source)

    def _operator(self, namespace: str, name: str, lease: str, source: str | None) -> OperatorProcess:
        kubeconfig = self.kube.as_service_account(NAMESPACE, NAME, self.folder / "operator.kubeconfig")
        log = self.folder / f"operator-{name}.log"
        where = {"namespace": NAMESPACE, "lease": lease, "namespaces": namespace}
        return OperatorProcess(kubeconfig, log, **where, name=name, source=source)


@contextmanager
def stage(folder: Path, *purposes: str, base: str = "") -> Iterator[Stage]:
    """A namespace for each purpose. An operator that is installed rests meanwhile, and is put back at the end.

    `base`: the commit whose operator ours is compared with.

    Raises ClusterError.
    """
    cluster = select()
    cluster.ensure_up()
    kube = Kube(cluster.kubeconfig)
    version = patiently(lambda: kube.call("GET", "/version"))["gitVersion"]
    with _only_operator(kube):
        mark = secrets.token_hex(3)
        namespaces = [f"bench-{purpose}-{mark}" for purpose in purposes]
        for namespace in namespaces:
            patiently(partial(kube.create, "Namespace", "", {"metadata": {"name": namespace}}))
        try:
            log = cluster.audit_log
            audit = AuditLog(log, USER) if log is not None and log.is_file() else None
            on = Stage(kube, cluster.description, version, folder, namespaces, audit, f"bench-{mark}")
            with _second_lease(kube, on.base_name) if base else nullcontext():
                on.base_source = commits.operator(base, folder / "base") if base else None
                yield on
        finally:
            for namespace in namespaces:
                _delete_namespace(kube, namespace)


def patiently(call: Callable[[], T]) -> T:
    """The call's result, tried again while the API server is away or busy. Raises ClusterError and Refused."""
    deadline = time.monotonic() + AWAY_SECONDS
    while True:
        try:
            return call()
        except (Refused, HTTPError, OSError) as error:
            if isinstance(error, Refused) and error.code != 429 and error.code < 500:
                raise
            if time.monotonic() > deadline:
                problem = f"no answer from the API server for {AWAY_SECONDS:g} s: {error}"
                raise ClusterError(problem, "see that it runs, and start again") from error
        time.sleep(0.5)


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
    replicas = _scale(kube, 0)
    try:
        yield
    finally:
        _scale(kube, replicas)


@contextmanager
def _second_lease(kube: Kube, name: str) -> Iterator[None]:
    """The operator's ServiceAccount may hold a Lease of this name, which the chart does not give it."""
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [name]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    kube.create("Role", NAMESPACE, {"metadata": {"name": name}, "rules": [{**rule, "verbs": ["get", "update"]}]})
    kube.create("RoleBinding", NAMESPACE, {"metadata": {"name": name}, "roleRef": role, "subjects": [account]})
    try:
        yield
    finally:
        for kind in ("RoleBinding", "Role", "Lease"):
            if patiently(partial(kube.find, kind, NAMESPACE, name)):
                patiently(partial(kube.delete, kind, NAMESPACE, name))


def _delete_namespace(kube: Kube, name: str) -> None:
    try:
        patiently(lambda: kube.delete("Namespace", "", name))
    except Refused as refused:
        # It is being deleted already.
        if refused.code != 409:
            raise


def _scale(kube: Kube, replicas: int) -> int:
    """The installed operator's pods; how many were asked for before."""
    before: int = patiently(lambda: kube.get("Deployment", NAMESPACE, NAME))["spec"]["replicas"]
    patiently(lambda: kube.patch("Deployment", NAMESPACE, NAME, {"spec": {"replicas": replicas}}))
    return before


def _is_helms(kube: Kube) -> bool:
    """True if the chart may install the CRD: Helm refuses to take over what another client has created."""
    found = kube.find("CustomResourceDefinition", "", CRD)
    annotations = (found or {"metadata": {}})["metadata"].get("annotations") or {}
    return found is None or annotations.get("meta.helm.sh/release-name") == RELEASE
