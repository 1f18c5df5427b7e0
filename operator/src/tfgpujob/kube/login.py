"""Finds the API server and logs in. The only file that imports the Kubernetes client.

The client finds the cluster, logs in and sets up TLS. Tokens, plugins' logins and certificates expire while a job is
followed for days: a refused login is loaded again, from the same files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import yaml
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import kube_config as kube_config_module

from tfgpujob.kube.errors import NoClusterError
from tfgpujob.kube.interface import Credentials
from tfgpujob.kube.proxy import proxy_of

RENEW_SECONDS: Final = 10.0
"""The shortest time between two loads of a login: a plugin may ask a person, or a remote server."""
_HOW: Final = "set KUBECONFIG to the file that leads to your cluster, or run in a pod with a token"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_Load = Callable[[], Awaitable[tuple[Configuration, ssl.SSLContext, str]]]


class Login:
    """Address of the API server, and the credentials."""

    def __init__(self, configuration: Configuration, tls: ssl.SSLContext, namespace: str, load: _Load) -> None:
        """`load` reads the configuration again. Call it inside a running event loop."""
        self.namespace = namespace
        """The namespace that the kubeconfig's context names, or that this pod is in."""
        self.server = str(configuration.host).rstrip("/")
        self._load = load
        self._use(configuration, tls)
        self._clock = asyncio.get_running_loop().time
        self._renewed_at = self._clock()
        self._turn = asyncio.Lock()
        self.number = 0
        """Number of the login; it increases when the login is loaded again."""

    @classmethod
    async def find(cls, context: str | None = None) -> Self:
        """The cluster of $KUBECONFIG, else the one this pod runs in, else ~/.kube/config.

        `context` is one of the kubeconfig's, instead of its current one. Raises NoClusterError when there is none.
        """
        file = os.environ.get("KUBECONFIG") or None
        in_pod = context is None and file is None and (_SERVICE_ACCOUNT / "token").exists()
        load = _in_cluster if in_pod else lambda: _of_kubeconfig(file, context)
        try:
            return cls(*await load(), load)
        except TypeError as error:
            # The client accepts any YAML file.
            raise NoClusterError(f"no cluster: {file or '~/.kube/config'} is no kubeconfig; {_HOW}") from error
        except (kube_config.ConfigException, OSError, yaml.YAMLError) as error:
            raise NoClusterError(f"no cluster: {_why(file) or ' '.join(str(error).split())}; {_HOW}") from error

    @classmethod
    async def of_token(cls, server: str, authority: str, token: str) -> Self:
        """Another one's token, for the API server at this URL whose certificate this file's authority has signed."""

        async def load() -> tuple[Configuration, ssl.SSLContext, str]:
            configuration = Configuration()
            configuration.host, configuration.ssl_ca_cert = server, authority
            configuration.api_key["BearerToken"] = f"Bearer {token}"
            return configuration, _tls(configuration), "default"

        async def again() -> tuple[Configuration, ssl.SSLContext, str]:
            raise NoClusterError("a token that was given is not renewed")

        return cls(*await load(), again)

    async def authorization(self) -> str | None:
        """The Authorization header."""
        # Also runs the client's hook that reads a rotated ServiceAccount token.
        header: str | None = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return header

    async def renew(self, number: int) -> bool:
        """Load the login again after a refusal; True if it has changed since."""
        async with self._turn:
            if number != self.number:
                return True
            too_early = self._renewed_at + RENEW_SECONDS - self._clock()
            if too_early > 0 and not self.number:
                return False  # it has just been read, and was refused as well
            await asyncio.sleep(too_early)
            self._renewed_at = self._clock()
            try:
                configuration, tls, _ = await self._load()
                self._use(configuration, tls)
            except (kube_config.ConfigException, OSError, yaml.YAMLError, TypeError, NoClusterError):
                # A file that is being written, or a plugin that can't log in now: the refusal is the error to report.
                return False
            self.number += 1
            return True

    async def credentials(self) -> Credentials:
        """Credentials for another client of the same server, which asks for them when its login was refused."""
        await self.renew(self.number)
        header = await self.authorization()
        scheme, _, token = (header or "").partition(" ")
        return Credentials(server=self.server, tls=self.tls, scheme=scheme.capitalize() or None, token=token or None)

    def _use(self, configuration: Configuration, tls: ssl.SSLContext) -> None:
        self.tls = tls
        self.tls_server_name: str | None = configuration.tls_server_name
        self.proxy: str | None = configuration.proxy
        self.proxy_headers: Any = configuration.proxy_headers
        self._configuration = configuration


async def _in_cluster() -> tuple[Configuration, ssl.SSLContext, str]:
    configuration = Configuration()
    kube_config.load_incluster_config(client_configuration=configuration)
    return configuration, _tls(configuration), (_SERVICE_ACCOUNT / "namespace").read_text().strip()


async def _of_kubeconfig(file: str | None, context: str | None) -> tuple[Configuration, ssl.SSLContext, str]:
    configuration = Configuration()
    with _errors_of_login() as errors, _no_file_left() as folder:
        login = await kube_config.load_kube_config(
            config_file=file,
            context=context,
            client_configuration=configuration,
            persist_config=False,
            temp_file_path=folder,
        )
        tls = _tls(configuration)
    contexts, current = kube_config.list_kube_config_contexts(config_file=file)
    if errors and not configuration.api_key and not configuration.cert_file:
        raise NoClusterError(f"no login to the cluster: {'; '.join(errors)}")
    _keep_fresh(configuration, login)
    if configuration.proxy is None:
        configuration.proxy = proxy_of(str(configuration.host), os.environ)
    used = next((c for c in contexts if c["name"] == context), current)
    return configuration, tls, used["context"].get("namespace") or "default"


def _tls(configuration: Configuration) -> ssl.SSLContext:
    made: ssl.SSLContext = RESTClientObject(configuration).ssl_context
    return made


@contextmanager
def _no_file_left() -> Iterator[str]:
    """A folder for the keys and certificates inside a kubeconfig, because TLS reads them only from files.

    The client would keep these files until a normal exit, and forever after a signal. It finds a key that it wrote
    before by its content, so it must forget the deleted ones.
    """
    written = kube_config_module._temp_files  # noqa: SLF001 (there is no other way)
    with tempfile.TemporaryDirectory(prefix="tfgpu-login-") as folder:
        try:
            yield folder
        finally:
            for content in [content for content, path in written.items() if Path(path).parent == Path(folder)]:
                del written[content]


@contextmanager
def _errors_of_login() -> Iterator[list[str]]:
    """What the client only logs: a plugin that can't log in, after which it would send anonymous requests."""
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
    """A plugin's token may be valid for only minutes: it is renewed before it is refused."""
    if not hasattr(login, "exec_plugin_expiry"):
        return
    turn = asyncio.Lock()

    async def renew(configuration: Configuration) -> None:
        async with turn:
            # Runs the plugin only if the token has nearly expired. The plugin may return a key too.
            with _no_file_left() as login._temp_file_path:  # noqa: SLF001 (it has no other way)
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
