"""Everybody's requests but the operator's: raw dicts, one request a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kubernetes.client import ApiClient, Configuration, CoreV1Api
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import load_kube_config
from kubernetes.stream import stream
from tests.served import kubeconfig

Object = dict[str, Any]

RESOURCES: Mapping[str, tuple[str, str, bool]] = {
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "ClusterQueue": ("/apis/kueue.x-k8s.io/v1beta1", "clusterqueues", False),
    "ConfigMap": ("/api/v1", "configmaps", True),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "Deployment": ("/apis/apps/v1", "deployments", True),
    "DeviceClass": ("/apis/resource.k8s.io/v1", "deviceclasses", False),
    "Event": ("/api/v1", "events", True),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases", True),
    "LocalQueue": ("/apis/kueue.x-k8s.io/v1beta1", "localqueues", True),
    "Namespace": ("/api/v1", "namespaces", False),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies", True),
    "Node": ("/api/v1", "nodes", False),
    "PersistentVolumeClaim": ("/api/v1", "persistentvolumeclaims", True),
    "Pod": ("/api/v1", "pods", True),
    "PriorityClass": ("/apis/scheduling.k8s.io/v1", "priorityclasses", False),
    "ResourceQuota": ("/api/v1", "resourcequotas", True),
    "ResourceClaim": ("/apis/resource.k8s.io/v1", "resourceclaims", True),
    "ResourceSlice": ("/apis/resource.k8s.io/v1", "resourceslices", False),
    "ResourceFlavor": ("/apis/kueue.x-k8s.io/v1beta1", "resourceflavors", False),
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings", True),
    "Service": ("/api/v1", "services", True),
    "ServiceAccount": ("/api/v1", "serviceaccounts", True),
    "TFGPUJob": ("/apis/tfgpu.dev/v1alpha1", "tfgpujobs", True),
    "Workload": ("/apis/kueue.x-k8s.io/v1beta1", "workloads", True),
    "WorkloadPriorityClass": ("/apis/kueue.x-k8s.io/v1beta1", "workloadpriorityclasses", False),
}
"""Collection path, plural, whether namespaced."""


class Refused(Exception):  # noqa: N818 - it reads as what the server did
    """The API server answered with 400 or more."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message


class Kube:
    """One user of one API server."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._configuration = Configuration()
        load_kube_config(str(kubeconfig), client_configuration=self._configuration, persist_config=False)
        self._rest = RESTClientObject(self._configuration)
        self._base = str(self._configuration.host).rstrip("/")
        self._served: dict[str, list[Object]] = {}

    def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Object:
        """The decoded answer. Raises Refused."""
        answer: Object = json.loads(self.text(method, path, body, content_type))
        return answer

    def text(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json, */*",
    ) -> str:
        headers = {"Accept": accept, "Content-Type": content_type}
        token = self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            headers["authorization"] = token
        response = self._rest.request(method, self._base + path, headers=headers, body=body, _request_timeout=120)
        payload: str = response.read().decode(errors="replace")
        if response.status >= 400:
            raise _refused(response.status, payload)
        return payload

    def get(self, kind: str, namespace: str, name: str) -> Object:
        return self.call("GET", path_of(kind, namespace, name))

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """None when there is none."""
        try:
            return self.get(kind, namespace, name)
        except Refused as refused:
            if refused.code != 404:
                raise
            return None

    def list(self, kind: str, namespace: str, **query: str) -> list[Object]:
        items: list[Object] = self.call("GET", f"{path_of(kind, namespace)}?{urlencode(query)}")["items"]
        return items

    def create(self, kind: str, namespace: str, body: Mapping[str, Any]) -> Object:
        prefix = RESOURCES[kind][0].removeprefix("/apis/").removeprefix("/api/")
        return self.call("POST", path_of(kind, namespace), {"apiVersion": prefix, "kind": kind, **body})

    def patch(self, kind: str, namespace: str, name: str, change: Mapping[str, Any]) -> Object:
        """A merge patch."""
        return self.call("PATCH", path_of(kind, namespace, name), change, "application/merge-patch+json")

    def apply(self, body: Object, *, dry_run: bool = False) -> Object:
        """As `kubectl apply --server-side --force-conflicts` does, of any kind that the server has. Raises Refused."""
        group, namespace = body["apiVersion"], body["metadata"].get("namespace")
        prefix = f"/apis/{group}" if "/" in group else f"/api/{group}"
        if prefix not in self._served:
            self._served[prefix] = self.call("GET", prefix)["resources"]
        row = next(row for row in self._served[prefix] if row["kind"] == body["kind"] and "/" not in row["name"])
        where = f"{prefix}/namespaces/{namespace}" if row["namespaced"] else prefix
        query = urlencode({"fieldManager": "kubectl", "force": "true", **({"dryRun": "All"} if dry_run else {})})
        path = f"{where}/{row['name']}/{body['metadata']['name']}?{query}"
        return self.call("PATCH", path, json.dumps(body), "application/apply-patch+yaml")

    def delete(self, kind: str, namespace: str, name: str, *, grace_seconds: int | None = None) -> None:
        """No object of that name is no error."""
        options: Object = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            self.call("DELETE", path_of(kind, namespace, name), options)
        except Refused as refused:
            if refused.code != 404:
                raise

    def log(self, namespace: str, pod: str, container: str, *, lines: int | None = None) -> str:
        """The whole log, or its last `lines` lines."""
        query = urlencode({"container": container, **({} if lines is None else {"tailLines": lines})})
        return self.text("GET", f"{path_of('Pod', namespace, pod)}/log?{query}")

    def has_gpus(self) -> bool:
        """Whether a node has a GPU, or pretends to."""
        return any(int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) for node in self.list("Node", ""))

    def run_in(self, namespace: str, pod: str, container: str, *command: str) -> str:
        """What the command prints in the container, to either stream."""
        # A client of its own: `stream` changes it while it runs.
        api = CoreV1Api(ApiClient(self._configuration))
        printed: str = stream(
            api.connect_get_namespaced_pod_exec,
            pod,
            namespace,
            container=container,
            command=list(command),
            stdout=True,
            stderr=True,
        )
        return printed

    def as_service_account(self, namespace: str, name: str, file: Path) -> Path:
        """Writes a kubeconfig that logs in with a token of this ServiceAccount, and returns it."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
        made = self.call("POST", f"{path_of('ServiceAccount', namespace, name)}/token", body)
        cluster: Object = {}
        if self._configuration.ssl_ca_cert:
            cluster["certificate_authority"] = str(self._configuration.ssl_ca_cert)
        if not self._configuration.verify_ssl:
            cluster["insecure_skip_tls_verify"] = True
        return kubeconfig(file, self._base, {"token": made["status"]["token"]}, **cluster)


def path_of(kind: str, namespace: str, name: str = "") -> str:
    prefix, plural, namespaced = RESOURCES[kind]
    where = f"{prefix}/namespaces/{namespace}/{plural}" if namespaced and namespace else f"{prefix}/{plural}"
    return f"{where}/{name}" if name else where


def _refused(code: int, payload: str) -> Refused:
    try:
        status = json.loads(payload)
    except ValueError:
        return Refused(code, "", payload[:500])
    return Refused(code, status.get("reason") or "", status.get("message") or "")
