"""A connection to an API server: how it is found, logged in to and talked to. The only file that imports the
Kubernetes client.

Raw dicts in and out: the client's typed models refuse what servers accept (an integer GPU count, a null
eventTime) and cost more time than the request. What is used of the client is how it finds the cluster,
logs in and sets up TLS.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import orjson
import yaml
import yarl
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from tfgpujob.core.snapshot import Object
from tfgpujob.shell.ask import start_of
from tfgpujob.shell.ports import ApiError, Credentials, WatchEvent
from tfgpujob.shell.settings import SettingsError

REQUEST_SECONDS: Final = 20.0
"""Longest wait for an answer. Also how long a write may still be under way after its task was cancelled."""
CONNECT_SECONDS: Final = 5.0
CONNECTIONS: Final = 64
IDLE_SECONDS: Final = 75.0
"""How long a connection is kept for the next request: a new one costs a TLS handshake. The server's limit is 90."""
WATCH_SECONDS: Final = 300
"""How long one watch request runs before a new one goes on from where it was."""
SILENCE_SECONDS: Final = 75.0
"""A watch without any line may be dead, and ends: the API server sends a bookmark every minute."""
MERGE_PATCH: Final = "application/merge-patch+json"

Messages = aiohttp.ClientWebSocketResponse
"""A websocket: messages both ways."""

_HOW: Final = "set KUBECONFIG to the file that leads to your cluster, or run in a pod with a token"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Connection:
    """One connection pool; an async context manager that closes it."""

    def __init__(self, configuration: Configuration, namespace: str = "default") -> None:
        """Inside a running event loop."""
        self.namespace = namespace
        """The namespace that the kubeconfig's context names, or that this pod is in."""
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
    async def connect(cls, context: str | None = None) -> Self:
        """The cluster that $KUBECONFIG names, else the one this pod runs in, else ~/.kube/config.

        `context` is one of the kubeconfig's, in place of its current one. Raises SettingsError when nothing leads
        anywhere.
        """
        configuration = Configuration()
        file = os.environ.get("KUBECONFIG") or None
        try:
            if context is None and _in_cluster():
                kube_config.load_incluster_config(client_configuration=configuration)
                return cls(configuration, (_SERVICE_ACCOUNT / "namespace").read_text().strip())
            with _errors_of_login() as errors:
                login = await kube_config.load_kube_config(
                    config_file=file, context=context, client_configuration=configuration, persist_config=False
                )
            contexts, current = kube_config.list_kube_config_contexts(config_file=file)
        except TypeError as error:
            # The client takes any YAML for its own.
            raise SettingsError(f"no cluster: {file or '~/.kube/config'} is no kubeconfig; {_HOW}") from error
        except (kube_config.ConfigException, OSError, yaml.YAMLError) as error:
            raise SettingsError(f"no cluster: {_why(file) or ' '.join(str(error).split())}; {_HOW}") from error
        if errors and not configuration.api_key and not configuration.cert_file:
            raise SettingsError(f"no login to the cluster: {'; '.join(errors)}")
        _keep_fresh(configuration, login)
        used = next((c for c in contexts if c["name"] == context), current)
        return cls(configuration, used["context"].get("namespace") or "default")

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

    async def watch_at(self, path: str, query: Mapping[str, str]) -> AsyncIterator[WatchEvent]:
        """Changes of a collection, until the stream ends or falls silent, which is no error.

        `query` has the resourceVersion to go on from, and selectors. Raises ApiError; code 410 when the version is
        too old.
        """
        following = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS), **query}
        try:
            async for line in self.stream(path, following, silence_seconds=SILENCE_SECONDS):
                yield _event(line)
        except (aiohttp.SocketTimeoutError, ValueError):
            # Old servers send no bookmarks while nothing changes, so silence alone says nothing. And a stream that is
            # cut in the middle of a line has ended.
            return

    async def stream(
        self, path: str, query: Mapping[str, str], *, silence_seconds: float | None = None
    ) -> AsyncIterator[bytes]:
        """The lines of an answer as they come, without their ends. Raises ApiError."""
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        try:
            answer = await self._request("GET", path, query, None, limits)
            async with answer as stream:
                if stream.status != 200:
                    _decoded(stream.status, stream.headers, await stream.read())
                async for line in _lines(stream.content):
                    yield line
        except aiohttp.SocketTimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"GET {path}: {error}") from error

    @asynccontextmanager
    async def messages(self, path: str, query: Mapping[str, str], protocol: str) -> AsyncIterator[Messages]:
        """A websocket, closed at the end. Raises ApiError when it is refused."""
        authorization = await self._authorization()
        try:
            stream = await self._session.ws_connect(
                yarl.URL(self._base + path, encoded=True).with_query(query),
                protocols=[protocol],
                # A server that is told to answer in JSON refuses: this is none.
                headers={"Accept": "*/*", **({"authorization": authorization} if authorization else {})},
                proxy=self._configuration.proxy,
                proxy_headers=self._configuration.proxy_headers,
                server_hostname=self._configuration.tls_server_name,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise ApiError(error.status, "Refused", f"{path}: {error.message}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{path}: {error}") from error
        async with stream:
            yield stream

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        seconds: float = REQUEST_SECONDS,
        content_type: str | None = None,
        most_bytes: int | None = None,
    ) -> Object:
        """One request, and the object that answers it. `content_type` is JSON if None. Raises ApiError.

        `most_bytes`: of the answer, where a pod gives it and may not be trusted; one that is longer is an error.
        """
        limits = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        try:
            response = await self._request(method, path, query, body, limits, content_type=content_type)
            payload = await (start_of(response.content, most_bytes) if most_bytes else response.read())
        except TimeoutError as error:
            raise ApiError(0, "Timeout", f"{method} {path}: no answer: {error or f'{seconds:g} s'}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error}") from error
        if most_bytes is not None and len(payload) > most_bytes:
            response.close()
            raise ApiError(0, "TooLong", f"{method} {path}: the answer is longer than {most_bytes} bytes")
        return _decoded(response.status, response.headers, payload)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Object | None,
        limits: aiohttp.ClientTimeout,
        *,
        content_type: str | None = None,
    ) -> aiohttp.ClientResponse:
        url = yarl.URL(self._base + path, encoded=True)
        authorization = await self._authorization()
        headers = {"authorization": authorization} if authorization else {}
        if content_type is not None:
            headers["content-type"] = content_type
        return await self._session.request(
            method,
            url.with_query(query) if query else url,
            headers=headers,
            data=None if body is None else orjson.dumps(body),
            timeout=limits,
            # Through its proxy a pod answers, and must not send us elsewhere with our rights.
            allow_redirects=False,
            proxy=self._configuration.proxy,
            proxy_headers=self._configuration.proxy_headers,
            server_hostname=self._configuration.tls_server_name,
        )

    async def _authorization(self) -> str | None:
        # Also runs the client's hook that reads a rotated ServiceAccount token again.
        header: str | None = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return header


def _in_cluster() -> bool:
    return not os.environ.get("KUBECONFIG") and (_SERVICE_ACCOUNT / "token").exists()


@contextmanager
def _errors_of_login() -> Iterator[list[str]]:
    """What the client only logs: a plugin that can't log in, after which it would ask as nobody."""
    told: list[str] = []
    heard = logging.Handler(logging.ERROR)
    heard.emit = lambda record: told.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    logger = logging.getLogger("kubernetes")
    logger.addHandler(heard)
    try:
        yield told
    finally:
        logger.removeHandler(heard)


def _keep_fresh(configuration: Configuration, login: Any) -> None:
    """A plugin's token may last for minutes, and whoever follows a job asks for days."""
    if not hasattr(login, "exec_plugin_expiry"):
        return
    turn = asyncio.Lock()

    async def renew(configuration: Configuration) -> None:
        async with turn:
            # Runs the plugin only if the token has nearly expired.
            await login.load_from_exec_plugin()
        configuration.api_key["BearerToken"] = login.token

    configuration.refresh_api_key_hook = renew


def _why(file: str | None) -> str:
    """Why there is no kubeconfig to read; empty when there is one."""
    if file is None:
        return (
            "" if (Path.home() / ".kube/config").exists() else "KUBECONFIG is not set, and there is no ~/.kube/config"
        )
    return "" if any(Path(part).exists() for part in file.split(os.pathsep)) else f"there is no {file}"


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """aiohttp's own line reader refuses lines as long as an object may be."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


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
