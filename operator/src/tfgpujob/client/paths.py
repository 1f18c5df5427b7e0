"""Where objects are in the API. A name that would lead elsewhere is refused before anything is asked."""

from __future__ import annotations

import re
from typing import Final

from tfgpujob import names
from tfgpujob.client.errors import InvalidNameError

_NAME: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]*")


def jobs(namespace: str | None) -> str:
    """Those of a namespace, or of the whole cluster."""
    where = f"/namespaces/{checked(namespace)}" if namespace is not None else ""
    return f"/apis/{names.API_VERSION}{where}/{names.PLURAL}"


def job(namespace: str, name: str) -> str:
    return f"{jobs(namespace)}/{checked(name)}"


def core(namespace: str, plural: str) -> str:
    """Objects of Kubernetes' own: pods, events, configmaps."""
    return f"/api/v1/namespaces/{checked(namespace)}/{plural}"


def checked(name: object) -> str:
    """The name itself, which YAML may have made a number.

    Raises InvalidNameError: without a name, `delete` would delete all jobs that there are.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InvalidNameError(f"{name!r} is no name")
