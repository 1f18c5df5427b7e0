"""The API server over HTTP. The only file that imports the Kubernetes client.

Raw dicts in and out: the client's typed models refuse what servers accept (an integer GPU count, a null
eventTime) and cost more time than the request. What is used of the client is how it finds the cluster,
logs in and sets up TLS.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import orjson
import yarl
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from tfgpujob import names
from tfgpujob.core.snapshot import Kind, Object
from tfgpujob.shell.ports import ApiError, Credentials, ListPage, WatchEvent
from tfgpujob.shell.settings import SettingsError

REQUEST_SECONDS: Final = 20.0
"""Longest wait for an answer. Also how long a write may still be under way after its task was cancelled."""
CONNECT_SECONDS: Final = 5.0
CONNECTIONS: Final = 64
IDLE_SECONDS: Final = 75.0
"""How long a connection is kept for the next request: a new one costs a TLS handshake. The server's limit is 90."""
LIST_SECONDS: Final = 60.0
WATCH_SECONDS: Final = 300
"""How long one watch request runs before a new one goes on from where it was."""
SILENCE_SECONDS: Final = 75.0
"""A watch without any line may be dead, and ends: the API server sends a bookmark every minute."""

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_COLLECTIONS: Final[Mapping[Kind, tuple[str, str]]] = {
    Kind.JOB: (f"/apis/{names.API_VERSION}", names.PLURAL),
    Kind.POD: ("/api/v1", "pods"),
    Kind.SERVICE: ("/api/v1", "services"),
    Kind.NODE: ("/api/v1", "nodes"),
}
_LEASES: Final = ("/apis/coordination.k8s.io/v1", "leases")
_EVENTS: Final = ("/api/v1", "events")


class KubeCluster:
    """`ports.Cluster` on a real API server. One connection pool; an async context manager that closes it."""

    def __init__(self, configuration: Configuration) -> None:
        """Inside a running event loop."""
        self._configuration = configuration
        self._base = str(configuration.host).rstrip("/")
        tls = RESTClientObject(configuration).ssl_context
        # Without the first two, every request reads the proxy environment and feeds a cookie jar.
        self._session = aiohttp.ClientSession(
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=tls, keepalive_timeout=IDLE_SECONDS),
            headers={"Accept": "application/json", "Content-Type": "application/json"},
            read_bufsize=2**21,
        )

    @classmethod
    async def connect(cls) -> Self:
        """The cluster that $KUBECONFIG names, else the one this pod runs in, else ~/.kube/config.

        Raises SettingsError when none of them leads anywhere.
        """
        configuration = Configuration()
        try:
            if _in_cluster():
                kube_config.load_incluster_config(client_configuration=configuration)
            else:
                await kube_config.load_kube_config(
                    config_file=os.environ.get("KUBECONFIG") or None,
                    client_configuration=configuration,
                    persist_config=False,
                )
        except kube_config.ConfigException as error:
            raise SettingsError(f"no cluster: {error}; set KUBECONFIG, or run in a pod with a token") from error
        return cls(configuration)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def credentials(self) -> Credentials:
        """How to reach the same server with another client; a token is as fresh as it is here."""
        header = await self._authorization()
        scheme, _, token = (header or "").partition(" ")
        found = self._configuration
        return Credentials(
            server=self._base,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            scheme=scheme.capitalize() or None,
            token=token or None,
        )

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        return await self._send("GET", _path(_COLLECTIONS[kind], namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None, *, selector: str = "", limit: int = 500, token: str = ""
    ) -> ListPage:
        query = {"limit": str(limit)}
        if selector:
            query["labelSelector"] = selector
        if token:
            query["continue"] = token
        page = await self._send("GET", _path(_COLLECTIONS[kind], namespace), query=query, seconds=LIST_SECONDS)
        metadata = page.get("metadata") or {}
        return ListPage(
            items=page.get("items") or [],
            resource_version=metadata.get("resourceVersion", ""),
            token=metadata.get("continue") or "",
        )

    async def watch(
        self, kind: Kind, namespace: str | None, *, selector: str, resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        path = _path(_COLLECTIONS[kind], namespace)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            "resourceVersion": resource_version,
        }
        if selector:
            query["labelSelector"] = selector
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        try:
            answer = await self._request("GET", path, query, None, limits)
            async with answer as stream:
                if stream.status != 200:
                    _decoded(stream.status, stream.headers, await stream.read())
                async for line in _lines(stream.content):
                    yield _event(line)
        except aiohttp.SocketTimeoutError:
            # Old servers send no bookmarks while nothing changes, so silence alone says nothing.
            return
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"watch {path}: {error}") from error

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        # A server too old to know the parameter ignores it.
        query = {"fieldValidation": "Strict"} if kind is Kind.POD else None
        return await self._send("POST", _path(_COLLECTIONS[kind], namespace), query=query, body=body)

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        preconditions = {"uid": uid}
        if resource_version:
            preconditions["resourceVersion"] = resource_version
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        await self._send("DELETE", _path(_COLLECTIONS[kind], namespace, name), body=options)

    async def replace_status(self, job: Object) -> Object:
        metadata = job["metadata"]
        path = _path(_COLLECTIONS[Kind.JOB], metadata["namespace"], metadata["name"])
        return await self._send("PUT", f"{path}/status", body=job)

    async def create_event(self, namespace: str, body: Object) -> None:
        await self._send("POST", _path(_EVENTS, namespace), body=body)

    async def get_lease(self, namespace: str, name: str) -> Object:
        return await self._send("GET", _path(_LEASES, namespace, name))

    async def create_lease(self, namespace: str, body: Object) -> Object:
        return await self._send("POST", _path(_LEASES, namespace), body=body)

    async def replace_lease(self, namespace: str, body: Object) -> Object:
        return await self._send("PUT", _path(_LEASES, namespace, body["metadata"]["name"]), body=body)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        seconds: float = REQUEST_SECONDS,
    ) -> Object:
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        try:
            response = await self._request(method, path, query, body, limits)
            payload = await response.read()
        except TimeoutError as error:
            raise ApiError(0, "Timeout", f"{method} {path}: no answer: {error or f'{seconds:g} s'}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error}") from error
        return _decoded(response.status, response.headers, payload)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Object | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        url = yarl.URL(self._base + path, encoded=True)
        authorization = await self._authorization()
        return await self._session.request(
            method,
            url.with_query(query) if query else url,
            headers={"authorization": authorization} if authorization else None,
            data=None if body is None else orjson.dumps(body),
            timeout=limits,
            proxy=self._configuration.proxy,
            proxy_headers=self._configuration.proxy_headers,
            server_hostname=self._configuration.tls_server_name,
        )

    async def _authorization(self) -> str | None:
        # Also runs the client's hook that reads a rotated ServiceAccount token again.
        header: str | None = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return header


def _in_cluster() -> bool:
    return not os.environ.get("KUBECONFIG") and _SERVICE_ACCOUNT.exists()


def _path(collection: tuple[str, str], namespace: str | None, name: str = "") -> str:
    prefix, plural = collection
    where = f"{prefix}/namespaces/{namespace}/{plural}" if namespace is not None else f"{prefix}/{plural}"
    return f"{where}/{name}" if name else where


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """aiohttp's own line reader refuses lines as long as an object may be."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _event(line: bytes) -> WatchEvent:
    answer = orjson.loads(line)
    if answer["type"] == "ERROR":
        status = answer["object"]
        raise ApiError(status.get("code", 0), status.get("reason", ""), status.get("message", ""))
    return WatchEvent(answer["type"], answer["object"])


def _decoded(status: int, headers: Mapping[str, str], payload: bytes) -> Object:
    try:
        answer = orjson.loads(payload)
    except ValueError:
        answer = None
    if status < 300 and isinstance(answer, dict):
        return answer
    if not isinstance(answer, dict):
        # A proxy in between, or the server's own filters, answer in plain text.
        answer = {"message": payload[:500].decode(errors="replace").strip()}
    if status < 300:
        raise ApiError(0, "BadAnswer", f"the API server answered {status} with something that is not an object")
    raise ApiError(status, answer.get("reason") or "", answer.get("message") or "", _retry_after(headers, answer))


def _retry_after(headers: Mapping[str, str], answer: Mapping[str, Any]) -> float | None:
    details = answer.get("details") or {}
    try:
        return float(headers.get("Retry-After") or details["retryAfterSeconds"])
    except (KeyError, TypeError, ValueError):
        return None
