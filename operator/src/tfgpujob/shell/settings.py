"""The operator's settings, from the environment that the Helm chart gives it."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tfgpujob import __version__
from tfgpujob.core.observed.gang import GANG_SCHEDULERS
from tfgpujob.core.observed.snapshot import Config

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LEAST_PROGRESS_SECONDS: Final = 15
"""Each poll may cost a status write."""
_LOG_FORMATS: Final = ("json", "text")


_FLAGS: Final = {
    "WORKERS": "how many jobs are reconciled at the same time",
    "RESYNC_SECONDS": "how often everything is listed",
    "PROGRESS_SECONDS": "how often a running job is asked how far it is: 15 or more; 0: never",
    "HEALTH_PORT": "where /healthz, /readyz and /metrics answer",
    "LOG_FORMAT": "json or text",
    "LOG_LEVEL": "DEBUG, INFO, WARNING or ERROR",
}


class SettingsError(Exception):
    """A setting is missing or invalid. The message names the variable and the fix."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    config: Config
    namespace: str
    """Namespace of the Lease: OPERATOR_NAMESPACE, else this pod's own, else `default`."""
    identity: str
    """Holder identity of the Lease. POD_NAME, so that a restarted container continues at once; else unique to the
    process."""
    watch_namespaces: tuple[str, ...] = ()
    """WATCH_NAMESPACES, comma-separated. Empty: all, which needs cluster-wide rights."""
    exclude_namespaces: frozenset[str] = frozenset()
    """EXCLUDE_NAMESPACES, comma-separated: objects in them are ignored."""
    watch_namespace_selector: str = ""
    """WATCH_NAMESPACE_SELECTOR: labels of the namespaces that are served, as `kubectl -l` takes them; empty: any."""
    watch_nodes: bool = True
    """Whether the operator watches nodes, to detect pods on lost nodes. Off with WATCH_NAMESPACES."""
    lease_name: str = "tfgpu-operator"
    workers: int = 16
    """How many jobs are reconciled at the same time."""
    resync_seconds: int = 300
    """Seconds between two lists of everything, which repair what the watches missed."""
    progress_seconds: int = 30
    """How often the progress of a running job is polled: 15 or more; 0: never."""
    health_port: int = 8080
    log_format: str = "json"
    log_level: str = "INFO"
    gang_backends: tuple[str, ...] = ()
    """GANG_BACKENDS, comma-separated: gang schedulers that jobs may use where the cluster serves their pod groups."""
    job_series: int = 0
    """JOB_SERIES: how many jobs have series of their own in /metrics."""
    webhook_url: str = field(default="", repr=False)
    """WEBHOOK_URL: where events about jobs are sent; empty: nowhere."""
    webhook_key: str = field(default="", repr=False)
    """WEBHOOK_KEY: the key of their signature."""
    history_database: str = ""
    """HISTORY_DATABASE: where records of jobs are kept, as a URL of SQLAlchemy; empty: nowhere."""
    history_days: int = 30
    """HISTORY_DAYS: how long a job is kept after it was last seen."""
    history_mib: int = 512
    """HISTORY_MIB: the oldest jobs are deleted from the database until the rest is no larger."""


def with_arguments(environment: Mapping[str, str], arguments: Sequence[str]) -> dict[str, str]:
    """The environment with the command's arguments applied: `--workers 32` is WORKERS=32. Exits 2 for unknown ones."""
    parser = argparse.ArgumentParser("tfgpu-operator", description="What is not given is the environment's.")
    for name, meaning in _FLAGS.items():
        parser.add_argument(f"--{name.lower().replace('_', '-')}", dest=name, metavar="VALUE", help=meaning)
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    return {**environment, **given}


class _Environment:
    """What is not set, or only spaces, is its default. Each method raises SettingsError."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def text(self, name: str, default: str = "") -> str:
        return self._variables.get(name, "").strip() or default

    def required(self, name: str, meaning: str) -> str:
        if value := self.text(name):
            return value
        raise SettingsError(f"{name} is not set: set it to {meaning}")

    def number(self, name: str, default: int, least: int = 1) -> int:
        value = self.text(name, str(default))
        if not value.isdecimal() or int(value) < least:
            wanted = f"a whole number of at least {least}"
            raise SettingsError(f"{name} is {value!r}: set it to {wanted}, or leave it out for {default}")
        return int(value)

    def one_of(self, name: str, values: Sequence[str]) -> str:
        """The first is the default."""
        value = self.text(name, values[0])
        if value not in values:
            raise SettingsError(f"{name} is {value!r}: set it to {' or '.join(values)}")
        return value

    def switch(self, name: str) -> bool:
        return self.one_of(name, ("false", "true")) == "true"

    def items(self, name: str) -> tuple[str, ...]:
        return tuple(item.strip() for item in self.text(name).split(",") if item.strip())

    def labels(self, name: str) -> tuple[tuple[str, str], ...]:
        """KEY=VALUE, comma-separated."""
        pairs = [item.partition("=") for item in self.items(name)]
        if any(not key or not equals for key, equals, _ in pairs):
            raise SettingsError(f"{name} is {self._variables[name]!r}: set it to KEY=VALUE, with a comma between two")
        return tuple((key, value) for key, _, value in pairs)

    def url(self, name: str) -> str:
        """The error does not have the URL, which may have a token."""
        url = self.text(name)
        try:
            found = urlsplit(url)
            usable = found.scheme in {"http", "https"} and bool(found.hostname) and found.port != 0
        except ValueError:
            usable = False
        if url and not usable:
            raise SettingsError(f"{name} is no URL that begins with https:// or http://: set it to one")
        return url


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Raises SettingsError."""
    given = _Environment(environment)
    progress_seconds = given.number("PROGRESS_SECONDS", Settings.progress_seconds, least=0)
    if 0 < progress_seconds < _LEAST_PROGRESS_SECONDS:
        raise SettingsError(
            f"PROGRESS_SECONDS is {progress_seconds}: set it to 15 or more, or to 0 to turn polling off"
        )
    namespace_selector = given.text("WATCH_NAMESPACE_SELECTOR")
    if namespace_selector and given.items("WATCH_NAMESPACES"):
        raise SettingsError("WATCH_NAMESPACES and WATCH_NAMESPACE_SELECTOR are both set: leave one of them out")
    gang_backends, default_gang = given.items("GANG_BACKENDS"), given.text("GANG_DEFAULT")
    for gang in gang_backends:
        if gang not in GANG_SCHEDULERS:
            raise SettingsError(f"GANG_BACKENDS is {gang!r}: name any of {', '.join(GANG_SCHEDULERS)}")
    if default_gang and default_gang not in gang_backends:
        raise SettingsError(f"GANG_DEFAULT is {default_gang!r}: name one of GANG_BACKENDS, or leave it out")
    config = Config(
        operator_image=given.required("OPERATOR_IMAGE", "the image that this operator runs from"),
        trainer_image=given.required("TRAINER_IMAGE", "the image that jobs without an image of their own get"),
        operator_version=__version__,
        allow_host_namespaces=frozenset(given.items("ALLOW_HOST_NAMESPACES")),
        allowed_service_accounts=frozenset(given.items("ALLOWED_SERVICE_ACCOUNTS")),
        restricted=given.one_of("POD_SECURITY", ("baseline", "restricted")) == "restricted",
        network_policy_namespaces=frozenset(given.items("NETWORK_POLICY_NAMESPACES")),
        # New in each process: a pod's token is read from the pod.
        progress_key=os.urandom(32),
        operator_namespace=given.text("OPERATOR_NAMESPACE", _own_namespace()),
        operator_labels=given.labels("OPERATOR_LABELS"),
        gangs=(),
        default_gang=default_gang,
        coscheduling_scheduler=given.text("COSCHEDULING_SCHEDULER"),
        volume_claims=given.switch("VOLUME_CLAIMS"),
        device_claims=given.switch("DEVICE_CLAIMS"),
        device_template=None,
        image_volumes=given.switch("IMAGE_VOLUMES"),
        idle_seconds=given.number("GPU_IDLE_SECONDS", 0, least=0),
        kueue_enabled=given.switch("KUEUE_ENABLED"),
        queue_required=given.switch("MANAGE_JOBS_WITHOUT_QUEUE_NAME"),
    )
    return Settings(
        config=config,
        namespace=config.operator_namespace,
        identity=given.text("POD_NAME", f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"),
        watch_namespaces=given.items("WATCH_NAMESPACES"),
        exclude_namespaces=frozenset(given.items("EXCLUDE_NAMESPACES")),
        watch_namespace_selector=namespace_selector,
        watch_nodes=not given.items("WATCH_NAMESPACES"),
        lease_name=given.text("LEASE_NAME", Settings.lease_name),
        workers=given.number("WORKERS", Settings.workers),
        resync_seconds=given.number("RESYNC_SECONDS", Settings.resync_seconds),
        progress_seconds=progress_seconds,
        health_port=given.number("HEALTH_PORT", Settings.health_port),
        log_format=given.one_of("LOG_FORMAT", _LOG_FORMATS),
        log_level=given.text("LOG_LEVEL", Settings.log_level).upper(),
        gang_backends=gang_backends,
        job_series=given.number("JOB_SERIES", Settings.job_series, least=0),
        webhook_url=given.url("WEBHOOK_URL"),
        webhook_key=given.required("WEBHOOK_KEY", "the key that the webhook's events are signed with")
        if given.text("WEBHOOK_URL")
        else "",
        history_database=given.text("HISTORY_DATABASE"),
        history_days=given.number("HISTORY_DAYS", Settings.history_days),
        history_mib=given.number("HISTORY_MIB", Settings.history_mib),
    )


def _own_namespace() -> str:
    return _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.exists() else "default"
