"""Paths of objects in the API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tfgpujob import names
from tfgpujob.core.observed.snapshot import DEVICE_TEMPLATES, KUEUE, POD_GROUPS, Kind
from tfgpujob.kube.errors import InvalidNameError

_CORE: Final = "/api/v1"


def _plural(kind: Kind) -> str:
    word = kind.partition(".")[0].lower()
    return f"{word}es" if word.endswith("s") else f"{word}s"


_COLLECTIONS: Final[Mapping[Kind, tuple[str, str]]] = {
    Kind.JOB: (f"/apis/{names.API_VERSION}", names.PLURAL),
    Kind.POD: (_CORE, "pods"),
    Kind.SERVICE: (_CORE, "services"),
    Kind.NETWORK_POLICY: ("/apis/networking.k8s.io/v1", "networkpolicies"),
    Kind.CLAIM: (_CORE, "persistentvolumeclaims"),
    **{kind: (f"/apis/{api_version}", "podgroups") for kind, api_version in POD_GROUPS.items()},
    **{kind: (f"/apis/{version}", "resourceclaimtemplates") for kind, version in DEVICE_TEMPLATES.items()},
    **{kind: (f"/apis/{api_version}", _plural(kind)) for kind, api_version in KUEUE.items()},
    Kind.POD_PRIORITY: ("/apis/scheduling.k8s.io/v1", "priorityclasses"),
    Kind.NODE: (_CORE, "nodes"),
    Kind.NAMESPACE: (_CORE, "namespaces"),
}
_NAME: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]*")


def of_kind(kind: Kind, namespace: str | None, name: str = "") -> str:
    """The collection in a namespace (None: in the whole cluster), or the object of this name in it."""
    return _path(*_COLLECTIONS[kind], namespace, name)


def api(kind: Kind) -> tuple[str, str]:
    """The path of the resource list of the kind's group and version, and the kind's plural."""
    return _COLLECTIONS[kind]


def events(namespace: str) -> str:
    return _path(_CORE, "events", namespace)


def leases(namespace: str, name: str = "") -> str:
    return _path("/apis/coordination.k8s.io/v1", "leases", namespace, name)


def _path(prefix: str, plural: str, namespace: str | None, name: str = "") -> str:
    where = f"{prefix}/namespaces/{namespace}/{plural}" if namespace is not None else f"{prefix}/{plural}"
    return f"{where}/{name}" if name else where


# A name from a user: one that would change the path is refused before anything is sent.


def jobs(namespace: str | None) -> str:
    """The jobs of a namespace, or of the whole cluster."""
    return of_kind(Kind.JOB, None if namespace is None else checked(namespace))


def job(namespace: str, name: str) -> str:
    return of_kind(Kind.JOB, checked(namespace), checked(name))


def core(namespace: str, plural: str) -> str:
    """Objects of the core API: pods, events, configmaps."""
    return _path(_CORE, plural, checked(namespace))


def checked(name: object) -> str:
    """The name itself; YAML may have made it a number.

    Raises InvalidNameError: with an empty name, `delete` would delete all jobs.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InvalidNameError(f"{name!r} is no name")
