"""Helm, as the quick start and the tests use it: install, test, uninstall, list, push, and render without a cluster.

With a `helm` binary on PATH that one works, version 3 or 4; else Helm's own code does, from the Helm 4 SDK wheel
that the tools' environment has. Both raise HelmError with Helm's words.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
Values = Mapping[str, Any]

CONFLICT = "conflict occurred while applying"
"""Message of Helm 4, which applies on the server's side; Helm 3 overwrites."""
CHART = Path(__file__).resolve().parents[1] / "charts" / "tfgpujob"


class HelmError(Exception):
    """Helm refused or did not get ready in time. The message is Helm's, and says what to look at next."""


def install(
    kubeconfig: Path,
    release: str,
    namespace: str,
    chart: Path | str = CHART,
    values: Values | None = None,
    *,
    timeout_seconds: int = 300,
) -> None:
    """Install the release, or upgrade it to exactly this chart and these values; return when all is ready.

    The chart is a folder, an archive, or an `oci://` reference with its version as tag.

    A release that an interrupted Helm left incomplete is removed first, as is one with changes by other clients that
    Helm does not revert, such as the number of replicas; objects that the chart marks `keep` stay.
    """
    helm, target = _helm(), _Release(kubeconfig, release, namespace)
    try:
        status = helm.status(target)
        if status.startswith("pending"):
            helm.uninstall(target, timeout_seconds)
            status = ""
        deploy = partial(helm.deploy, target, chart, dict(values or {}), timeout_seconds=timeout_seconds)
        try:
            deploy(upgrade=bool(status))
        except HelmError as error:
            if not status or CONFLICT not in str(error):
                raise
            helm.uninstall(target, timeout_seconds)
            deploy(upgrade=False)
    except HelmError as error:
        hint = f"Look at: kubectl --kubeconfig {kubeconfig} --namespace {namespace} describe pods"
        raise HelmError(f"cannot install {release} into namespace {namespace}: {error}\n{hint}") from error


def push(archive: Path, remote: str) -> None:
    """Put a packed chart into the registry behind `oci://host/path`, under its own name and version."""
    _helm().push(archive, remote)


def run_tests(kubeconfig: Path, release: str, namespace: str, *, timeout_seconds: int = 120) -> None:
    """Run the tests that the release's chart has."""
    _helm().run_tests(_Release(kubeconfig, release, namespace), timeout_seconds)


def uninstall(kubeconfig: Path, release: str, namespace: str, *, timeout_seconds: int = 120) -> None:
    """Remove the release, and wait; no release of that name is no error. What the chart marks `keep` stays."""
    _helm().uninstall(_Release(kubeconfig, release, namespace), timeout_seconds)


def status(kubeconfig: Path, release: str, namespace: str) -> str:
    """`deployed`, `failed`, `pending-install` …; empty when there is no such release."""
    return _helm().status(_Release(kubeconfig, release, namespace))


def template(
    chart: Path = CHART,
    values: Values | None = None,
    *,
    release: str = "tfgpu",
    namespace: str = "tfgpu-system",
    kube_version: str = "v1.34.0",
    api_versions: Sequence[str] = (),
) -> list[Object]:
    """The objects that an install on such a server would create; `api_versions` come on top of the usual ones."""
    found = _rendered(chart, values, _Options(release, namespace, kube_version, tuple(api_versions)))
    return [item for item in found if not _is_hook(item)]


def hooks(
    chart: Path = CHART,
    values: Values | None = None,
    *,
    release: str = "tfgpu",
    namespace: str = "tfgpu-system",
    kube_version: str = "v1.34.0",
) -> list[Object]:
    """What Helm creates at its time only, such as for `helm test`."""
    return [item for item in _rendered(chart, values, _Options(release, namespace, kube_version)) if _is_hook(item)]


def _is_hook(item: Object) -> bool:
    return "helm.sh/hook" in ((item.get("metadata") or {}).get("annotations") or {})


def _rendered(chart: Path, values: Values | None, options: _Options) -> list[Object]:
    text = _helm().render(chart, dict(values or {}), options)
    # The definition is 100 KB of YAML: libyaml takes a tenth of the time.
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


@dataclass(frozen=True, slots=True)
class _Options:
    """What a chart is rendered for, by the names that Helm's code has for them."""

    name: str
    namespace: str
    kube_version: str
    api_versions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Release:
    kubeconfig: Path
    name: str
    namespace: str


def _helm() -> _Binary | _Sdk:
    binary = shutil.which("helm")
    return _Binary(binary) if binary else _Sdk()


class _Binary:
    """The `helm` command."""

    def __init__(self, path: str) -> None:
        self._path = path

    def status(self, release: _Release) -> str:
        try:
            found = json.loads(self._run("status", release.name, "--output", "json", *_where(release)))
        except HelmError as error:
            if "not found" in str(error):
                return ""
            raise
        return str(found["info"]["status"])

    def deploy(
        self, release: _Release, chart: Path | str, values: Object, *, upgrade: bool, timeout_seconds: int
    ) -> None:
        verb = ("upgrade", "--reset-values") if upgrade else ("install", "--create-namespace")
        how = ("--wait", "--timeout", f"{timeout_seconds}s", "--values", "-")
        plain = ("--plain-http",) if _is_here(chart) else ()
        self._run(*verb, release.name, str(chart), *_where(release), *how, *plain, stdin=json.dumps(values))

    def push(self, archive: Path, remote: str) -> None:
        self._run("push", str(archive), remote, *(("--plain-http",) if _is_here(remote) else ()))

    def run_tests(self, release: _Release, timeout_seconds: int) -> None:
        self._run("test", release.name, *_where(release), "--timeout", f"{timeout_seconds}s")

    def uninstall(self, release: _Release, timeout_seconds: int) -> None:
        how = ("--wait", "--timeout", f"{timeout_seconds}s", "--ignore-not-found")
        self._run("uninstall", release.name, *_where(release), *how)

    def render(self, chart: Path, values: Object, options: _Options) -> str:
        extra = [argument for version in options.api_versions for argument in ("--api-versions", version)]
        where = ("--namespace", options.namespace, "--kube-version", options.kube_version, "--values", "-")
        return self._run("template", options.name, str(chart), *where, *extra, stdin=json.dumps(values))

    def _run(self, *arguments: str, stdin: str = "") -> str:
        command = [self._path, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HelmError(done.stderr.strip().removeprefix("Error: "))
        return done.stdout


def _is_here(chart: Path | str) -> bool:
    """Whether it is in a registry of this machine, which needs no TLS."""
    return str(chart).startswith("oci://127.0.0.1:")


def _where(release: _Release) -> tuple[str, ...]:
    return ("--kubeconfig", str(release.kubeconfig), "--namespace", release.namespace)


class _Sdk:
    """Helm 4 as a library."""

    def __init__(self) -> None:
        try:
            import helm_python  # noqa: PLC0415 - 85 MB, for those who have no helm
        except ImportError as error:
            raise HelmError("no helm on PATH and no helm-python-sdk: install Helm, or run: make venv") from error
        self._sdk = helm_python

    def status(self, release: _Release) -> str:
        with self._translated(), self._config(release) as config:
            try:
                return str(config.status(release.name)["status"])
            except self._sdk.HelmNotFoundError:
                return ""

    def deploy(
        self, release: _Release, chart: Path | str, values: Object, *, upgrade: bool, timeout_seconds: int
    ) -> None:
        with self._translated(), self._config(release) as config, self._sdk.HelmContext() as context:
            verb = partial(config.upgrade, reset_values=True)
            if not upgrade:
                verb = partial(config.install, create_namespace=True)
            how = {"context": context, "namespace": release.namespace, "timeout": timeout_seconds}
            how["plain_http"] = _is_here(chart)
            # Native code doesn't see ^C, so it runs in a thread, and ^C cancels it.
            with ThreadPoolExecutor(1) as pool:
                deployed = pool.submit(verb, chart, release.name, values, wait="watcher", **how)
                try:
                    deployed.result()
                except KeyboardInterrupt:
                    context.cancel()
                    raise

    def push(self, archive: Path, remote: str) -> None:
        with self._translated():
            self._sdk.push(archive, remote, plain_http=_is_here(remote))

    def run_tests(self, release: _Release, timeout_seconds: int) -> None:
        with self._translated(), self._config(release) as config:
            config.test(release.name, timeout=timeout_seconds)

    def uninstall(self, release: _Release, timeout_seconds: int) -> None:
        with self._translated(), self._config(release) as config:
            config.uninstall(release.name, ignore_not_found=True, timeout=timeout_seconds, wait="watcher")

    def render(self, chart: Path, values: Object, options: _Options) -> str:
        with self._translated(), self._sdk.Chart.load(chart) as loaded:
            # The library takes the last two options, but Chart.render() has no parameters for them.
            arguments = (loaded._raw(), json.dumps(values), json.dumps(asdict(options)))  # noqa: SLF001
            rendered = self._sdk._native.call_string("helm_render", *arguments)  # noqa: SLF001
        manifests: dict[str, str] = json.loads(rendered)
        return "\n---\n".join(text for path, text in manifests.items() if not path.endswith("NOTES.txt"))

    def _config(self, release: _Release) -> Any:
        return self._sdk.Config(kubeconfig_path=release.kubeconfig, namespace=release.namespace)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._sdk.HelmError as error:
            raise HelmError(str(error)) from error
