"""One way to call two servers: the one in memory, and the one that KUBECONFIG names."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from localcluster.release import NAMESPACE, RELEASE
from tests.harness.actors import GarbageCollector
from tests.harness.apiserver import ApiServer
from tests.harness.faults import Injector
from tests.harness.memory_cluster import MemoryCluster
from tests.harness.refusals import invalid
from tests.harness.resources import Object, resource, with_meta
from tests.harness.vtime import EPOCH
from tests.integration.kube import Kube, Refused
from tests.machine import PATIENCE

from tfgpujob import names
from tfgpujob.api.crd import build, root_schema
from tfgpujob.kube.cluster import KubeCluster
from tfgpujob.kube.errors import ApiError
from tfgpujob.kube.interface import Cluster

OF_THE_CHART = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE},
}


Version = tuple[int, int]
"""Version of Kubernetes: major and minor."""
CEL: Version = (1, 28)
"""Since which a server takes the definition with rules."""


class Side(Protocol):
    """What the scripts need beyond kube.interface.Cluster: everybody else's requests, in raw dicts. Raises ApiError."""

    cluster: Cluster

    def get(self, kind: str, namespace: str, name: str) -> Object: ...
    def create(self, kind: str, namespace: str, body: Object) -> Object: ...
    def replace(self, kind: str, namespace: str, body: Object, *, status: bool = False) -> Object: ...
    def delete(self, kind: str, namespace: str, name: str, **options: Any) -> None:
        """Options: uid, resource_version, grace, propagation."""

    def bind(self, namespace: str, name: str, node: str) -> None: ...
    def watch(self, kind: str, namespace: str, since: str) -> list[tuple[str, Object]]:
        """(type, object) of what has happened since that resourceVersion; ERROR events are raised."""

    def forget_history(self) -> None:
        """Make resourceVersion 1 too old to watch from."""

    async def until(self, condition: Callable[[], bool]) -> bool:
        """Let the controllers (garbage collector, quota) work until it holds."""


class MemorySide:
    def __init__(self) -> None:
        self.server = ApiServer(lambda: EPOCH)
        self.server.schemas[names.KIND] = _check_name
        self.cluster: Cluster = MemoryCluster(self.server, Injector(), "operator", lambda: None)
        self._collector = GarbageCollector(self.server)

    def get(self, kind: str, namespace: str, name: str) -> Object:
        return self.server.get(kind, namespace, name)

    def create(self, kind: str, namespace: str, body: Object) -> Object:
        return self.server.create(kind, namespace, body, by="user")

    def replace(self, kind: str, namespace: str, body: Object, *, status: bool = False) -> Object:
        return self.server.replace(kind, namespace, body, by="user", status=status)

    def delete(self, kind: str, namespace: str, name: str, **options: Any) -> None:
        self.server.delete(kind, namespace, name, by="user", **options)

    def bind(self, namespace: str, name: str, node: str) -> None:
        self.server.bind(namespace, name, node)

    def watch(self, kind: str, namespace: str, since: str) -> list[tuple[str, Object]]:
        return [(c.type, c.object) for c in self.server.history.since(int(since), kind, namespace)]

    def forget_history(self) -> None:
        self.server.history.compact()

    async def until(self, condition: Callable[[], bool]) -> bool:
        for _ in range(5):
            if condition():
                return True
            self._collector.collect()
        return condition()


def _check_name(obj: Object) -> Object:
    """What our CRD says of metadata.name; the rest of its schema is the business of the API's own tests."""
    schema = root_schema(cel=False)["properties"]["metadata"]["properties"]["name"]
    name = obj["metadata"]["name"]
    if len(name) > schema["maxLength"] or not re.search(schema["pattern"], name):
        raise invalid(resource(names.KIND), name, ["metadata.name: Invalid value"])
    return dict(obj)


class RealSide:
    """Everybody else's requests by tests/integration/kube.py, the operator's by kube/cluster.py."""

    def __init__(self, cluster: KubeCluster, kubeconfig: Path) -> None:
        self.cluster: Cluster = cluster
        self._kube = Kube(kubeconfig)

    def version(self) -> Version:
        told = self._send("GET", "/version")
        # Some distributions write 36+.
        return int(told["major"]), int(str(told["minor"]).rstrip("+"))

    def install_crd(self) -> None:
        """Where nothing has installed it yet, in the variant that the chart has for this server.

        It is marked as the chart's: Helm takes over nothing else.
        """
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        with suppress(ApiError):
            self._send("POST", crds, with_meta(build(cel=self.version() >= CEL), **OF_THE_CHART))

    def serves_jobs(self) -> bool:
        try:
            self._send("GET", _path(names.KIND, "default"))
        except ApiError:
            return False
        return True

    def get(self, kind: str, namespace: str, name: str) -> Object:
        return self._send("GET", _path(kind, namespace, name))

    def create(self, kind: str, namespace: str, body: Object) -> Object:
        return self._send("POST", _path(kind, namespace), body)

    def replace(self, kind: str, namespace: str, body: Object, *, status: bool = False) -> Object:
        path = _path(kind, namespace, body["metadata"]["name"])
        return self._send("PUT", path + ("/status" if status else ""), body)

    def delete(self, kind: str, namespace: str, name: str, **options: Any) -> None:
        preconditions = {"uid": options.get("uid"), "resourceVersion": options.get("resource_version")}
        body = {
            "preconditions": {key: value for key, value in preconditions.items() if value},
            "gracePeriodSeconds": options.get("grace"),
            "propagationPolicy": options.get("propagation", "Background"),
        }
        self._send("DELETE", _path(kind, namespace, name), {k: v for k, v in body.items() if v is not None})

    def bind(self, namespace: str, name: str, node: str) -> None:
        target = {"kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self._send("POST", f"{_path('Pod', namespace, name)}/binding", body)

    def watch(self, kind: str, namespace: str, since: str) -> list[tuple[str, Object]]:
        query = {"watch": "true", "resourceVersion": since, "timeoutSeconds": "1"}
        lines = self._text("GET", f"{_path(kind, namespace)}?{urlencode(query)}").splitlines()
        events = [json.loads(line) for line in lines if line.strip()]
        for event in events:
            if event["type"] == "ERROR":
                status = event["object"]
                raise ApiError(status["code"], status["reason"], status["message"])
        return [(event["type"], event["object"]) for event in events]

    def forget_history(self) -> None:
        """A real server's watch cache begins later than revision 1 anyway."""

    async def until(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Object:
        answer: Object = json.loads(self._text(method, path, body))
        return answer

    def _text(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        try:
            return self._kube.text(method, path, body)
        except Refused as refused:
            raise ApiError(refused.code, refused.reason, refused.message) from None


def _path(kind: str, namespace: str, name: str = "") -> str:
    row = resource(kind)
    prefix = f"/apis/{row.api_version}" if row.group else f"/api/{row.api_version}"
    where = f"{prefix}/namespaces/{namespace}/{row.plural}" if row.namespaced else f"{prefix}/{row.plural}"
    return f"{where}/{name}" if name else where
